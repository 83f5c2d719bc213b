"""The program's own SQL, read from its sources: what a test runs by hand is what the daemon runs.

Also mutants: the same program with a rule of its SQL blanked out, to see that a test notices.
"""

import ast
import functools
import re
import subprocess

from . import daemon

FOLDERS = ("src/base", "src/core", "src/pg")
STATEMENT = re.compile(r'const struct statement \w+\s*=\s*\{\s*"(\w+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\}')
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')

NO_LOOK_AT_SKIPPED = ("WHERE xmax <> (SELECT pg_current_xact_id()::xid)", "WHERE false")
"""For mutant(): a claim that does not notice rows which it had to pass over."""


@functools.cache
def _texts(file):
    flags = [f"-I{daemon.SOURCE / folder}" for folder in FOLDERS]
    source = subprocess.run(["cc", "-E", "-P", "-std=gnu17", *flags, daemon.SOURCE / file], check=True, text=True,
                            capture_output=True).stdout
    return {name: "".join(ast.literal_eval(part) for part in LITERAL.findall(literals))
            for name, literals in STATEMENT.findall(source)}


def sql(file, name, schema="public"):
    """The text of the statement that is prepared as `name` in src/pg/`file`, as it is sent."""
    return _texts(f"src/pg/{file}")[name].replace("@.", f'"{schema}".')


def without(text, *rules):
    """The statement without these parts; each must be there, or the test tests nothing."""
    for rule in rules:
        assert rule in text, f"no {rule!r} in {text}"
        text = text.replace(rule, " ")
    return text


def mutant(folder, *changes):
    """A copy of the program in which texts of its SQL are replaced by others that are not longer: (old, new) each.
    Returns the folder, as start(build=…) takes it."""
    program = daemon.binary().read_bytes()
    for old, new in changes:
        old, new = old.encode(), new.encode()
        assert len(new) <= len(old) and old in program, f"cannot replace {old!r} by {new!r}"
        program = program.replace(old, new.ljust(len(old)))
    folder.mkdir()
    path = folder / "outboxd"
    path.write_bytes(program)
    path.chmod(0o755)
    return folder
