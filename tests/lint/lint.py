#!/usr/bin/env python3
"""What a compiler does not see: tests/lint/lint.py BUILD/src/app/outboxd

Layers, banned functions, generated documents, names in documents, lengths, format. Needs no server, takes seconds.
"""

import fnmatch
import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import reference  # noqa: E402

# Who may use whom (docs/ARCHITECTURE.md). A folder may always use itself.
LAYERS = {
    "base": set(),
    "core": {"base"},
    "pg": {"core", "base"},
    "kafka": {"core", "base"},
    "relay": {"pg", "kafka", "core", "base"},
    "inbox": {"pg", "kafka", "core", "base"},
    "saga": {"pg", "kafka", "core", "base"},
    "lib": {"pg", "core", "base"},
    "app": {"relay", "inbox", "saga", "pg", "kafka", "core", "base"},
}

# Libraries, by the beginning of the name that is included, and the folders that know them.
LIBRARIES = {
    "libpq": {"pg", "lib"},
    "postgres": {"pg"},
    "librdkafka/": {"kafka"},
    "microhttpd": {"app"},
    "pthread": {"base", "relay", "inbox", "saga", "app", "kafka"},
    "threads.h": set(),
    "sys/socket": {"base", "pg", "kafka", "relay", "app"},
}

# Function -> why, and the folders where it is right.
BANNED = {
    "strcpy": ("it does not know the room", set()),
    "strcat": ("it does not know the room", set()),
    "strncpy": ("it leaves texts without an end", set()),
    "strncat": ("its length is not the room's", set()),
    "sprintf": ("it does not know the room", set()),
    "vsprintf": ("it does not know the room", set()),
    "gets": ("it does not know the room", set()),
    "strtok": ("it has hidden state", set()),
    "atoi": ("it takes rubbish for 0: parse_int", set()),
    "atol": ("it takes rubbish for 0: parse_int", set()),
    "system": ("no shell", set()),
    "popen": ("no shell", set()),
    "exit": ("only the app ends the process", {"app"}),
    "sleep": ("it cannot be woken: poll with a time-out", set()),
    "localtime": ("it has hidden state: gmtime_r", set()),
    "gmtime": ("it has hidden state: gmtime_r", set()),
}

LINES_MAX = 600
CLANG_FORMAT = 14  # Debian 12's; other versions differ in details

failures = []
checks = 0


def check(good, message):
    global checks
    checks += 1
    if not good:
        failures.append(message)


def tracked(*patterns):
    """Files that match, * also across folders: what git has or would add, in an unpacked archive all but builds."""
    git = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ) if (ROOT / ".git").exists() else None
    if git and git.returncode == 0:
        names = git.stdout.split("\0")
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
        names = [name for name in names if not re.match(r"build|\.", name)]
    return sorted({name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns) and (ROOT / name).is_file()})


def code_only(text):
    """Without comments and texts; lines stay where they are."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: '""' + "\n" * m.group().count("\n"), text, flags=re.S)


def check_layers(sources):
    owner = {}
    for name in tracked("src/*.h", "src/*.def"):
        owner.setdefault(pathlib.Path(name).name, pathlib.Path(name).parts[1])
    for name in sources:
        folder = pathlib.Path(name).parts[1]
        check(folder in LAYERS, f"{name}: the folder {folder} has no place in the layers")
        allowed = LAYERS.get(folder, set()) | {folder}
        for line, text in enumerate((ROOT / name).read_text().splitlines(), 1):
            include = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', text)
            if not include:
                continue
            used = include.group(2)
            if include.group(1) == '"':
                home = owner.get(pathlib.Path(used).name, folder)
                check(home in allowed, f"{name}:{line}: {folder} may not use {home} ({used})")
            for library, users in LIBRARIES.items():
                if used.startswith(library):
                    check(folder in users, f"{name}:{line}: {folder} may not know <{used}>")


def check_banned(sources):
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\(")
    for name in sources:
        folder = pathlib.Path(name).parts[1]
        text = code_only((ROOT / name).read_text())
        found = list(pattern.finditer(text))
        check(True, "")
        for match in found:
            why, allowed = BANNED[match.group(1)]
            line = text.count("\n", 0, match.start()) + 1
            if folder not in allowed:
                check(False, f"{name}:{line}: {match.group(1)}() is banned: {why}")


def check_generated(outboxd):
    for path, text in reference.generate(outboxd).items():
        file = ROOT / path
        same = file.is_file() and file.read_text() == text
        check(same, f"{path}: differs from what the binary says; run tools/reference.py {outboxd}")


def check_options(outboxd):
    """The usage lines and the table of options know the same commands and options."""
    text = subprocess.run([outboxd, "help", "--markdown"], env={}, check=True, capture_output=True, text=True).stdout
    usage = {line.split()[2].strip("`"): set(re.findall(r"--[a-z-]+", line.split("` |")[0])) for line in text.splitlines()
             if line.startswith("| `outboxd ")}
    rows = {}
    for command, name in re.findall(r"^\| `([a-z-]+)` \| `(--[a-z-]+)", text, re.M):
        rows.setdefault(command, set()).add(name)
    for command in rows.keys() | usage.keys():
        check(command in usage, f"src/app/options.c: there is no command {command}")
        missing = usage.get(command, set()) - rows.get(command, set())
        check(not missing, f"src/app/options.c: {command} has no row for {', '.join(sorted(missing))}")


def check_alerts():
    """Whoever is woken by an alert finds its name in OPERATIONS.md."""
    advice = (ROOT / "docs/OPERATIONS.md").read_text()
    for name in tracked("docs/monitoring/*.yml"):
        for alert in re.findall(r"^\s*- alert: (\w+)", (ROOT / name).read_text(), re.M):
            check(alert in advice, f"docs/OPERATIONS.md: does not say what to do about {alert} ({name})")


def check_shell(names):
    for name in names:
        done = subprocess.run(["bash", "-n", ROOT / name], capture_output=True, text=True)
        check(done.returncode == 0, f"{name}: {done.stderr.strip()}")


def check_settings(outboxd):
    """A document that names a setting which does not exist is wrong, or the setting was forgotten."""
    out = subprocess.run([outboxd, "config", "--json"], env={}, check=True, capture_output=True, text=True).stdout
    known = set(json.loads(out))
    for name in tracked("*.md", "docs/*", "systemd/*"):
        if not (ROOT / name).is_file() or pathlib.Path(name).suffix in {".png", ".svg"}:
            continue
        for line, text in enumerate((ROOT / name).read_text().splitlines(), 1):
            for match in re.finditer(r"\bOUTBOX_[A-Z0-9_]*[A-Z0-9](_?[<*])?", text):
                setting = match.group()
                if match.group(1) or setting == "OUTBOX_KAFKA" or setting.startswith("OUTBOX_KAFKA_"):
                    continue
                check(setting.removesuffix("_FILE") in known, f"{name}:{line}: there is no setting {setting}")


def check_names(outboxd):
    """The same of metrics and commands, in what operators read."""
    def ask(option):
        return subprocess.run([outboxd, "help", option], env={}, check=True, capture_output=True, text=True).stdout

    series = set()
    for name, kind in re.findall(r"^\| `(outboxd_\w+)` \| (\w+) ", ask("--metrics"), re.M):
        series |= {name + end for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else set()
        series.add(name)
    commands = set(re.findall(r"^\| `outboxd ([a-z-]+)", ask("--markdown"), re.M))
    check(len(series) > 20 and len(commands) > 10, "tests/lint/lint.py: finds no metrics or commands in the reference")
    for name in tracked("*.md", "docs/*.md", "docs/monitoring/*", "docs/deploy/*"):
        for line, text in enumerate((ROOT / name).read_text().splitlines(), 1):
            for metric in re.findall(r"\boutboxd_(?!token\b|test\b|linux)[a-z_]+[a-z]\b(?!\*)", text):
                check(metric in series, f"{name}:{line}: there is no metric {metric}")
            for command in re.findall(r"(?:`|^ *\$? *|&& |; )outboxd ([a-z][a-z-]*)\b", text):
                check(command in commands, f"{name}:{line}: there is no command {command}")


def check_lengths(names):
    for name in names:
        lines = (ROOT / name).read_text().count("\n")
        check(lines <= LINES_MAX, f"{name}: {lines} lines; a file of more than {LINES_MAX} is two files")


def check_words(names):
    pattern = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
    for name in names:
        for line, text in enumerate((ROOT / name).read_text().splitlines(), 1):
            if pattern.search(text):
                check(False, f"{name}:{line}: unfinished work belongs into an issue")
        check(True, "")


def check_registered():
    meson = (ROOT / "tests/meson.build").read_text()
    for name in tracked("tests/unit/test_*.c"):
        test = pathlib.Path(name).stem.removeprefix("test_")
        check(f"'{test}'" in meson, f"{name}: not in tests/meson.build, so it never runs")


def check_format(sources):
    tool = shutil.which(f"clang-format-{CLANG_FORMAT}") or shutil.which("clang-format")
    version = re.search(r"version (\d+)", subprocess.run([tool, "--version"], capture_output=True, text=True).stdout) if tool else None
    if not version or int(version.group(1)) != CLANG_FORMAT:
        print(f"lint: no clang-format {CLANG_FORMAT} here, format not checked")
        return
    result = subprocess.run([tool, "--dry-run", "-Werror", *sources], cwd=ROOT, capture_output=True, text=True)
    bad = sorted(set(re.findall(r"^([^:\n]+):\d+:\d+: error", result.stderr, re.M)))
    for name in sources:
        check(name not in bad, f"{name}: format differs; run ./dev fmt")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: tests/lint/lint.py BUILD/src/app/outboxd")
    outboxd = str(pathlib.Path(sys.argv[1]).resolve())
    sources = tracked("src/*.c", "src/*.h")
    tests = tracked("tests/*.c", "tests/*.h")
    check_layers(sources)
    check_banned(sources)
    check_generated(outboxd)
    check_options(outboxd)
    check_alerts()
    check_shell(["dev", *tracked("docs/*.bash")])
    check_settings(outboxd)
    check_names(outboxd)
    check_lengths(sources + tests + tracked("src/*.def", "sql/*.sql", "*.py"))
    check_words(sources + tests + tracked("src/*.def", "sql/*.sql", "*.py", "dev"))
    check_registered()
    check_format(sources + tests)
    for failure in failures:
        print(failure)
    print(f"lint: {checks} checks, {len(failures)} failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
