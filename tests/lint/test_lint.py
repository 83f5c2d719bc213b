"""A lint that finds nothing proves nothing: each check is shown something that it must refuse."""

import importlib.util
import pathlib

import pytest

# By its path: `lint` is also the name of this folder.
spec = importlib.util.spec_from_file_location("outboxd_lint", pathlib.Path(__file__).with_name("lint.py"))
lint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    monkeypatch.setattr(lint, "failures", [])

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("src/base/log.h", "")
    write("src/pg/pg.h", "")
    write("src/kafka/publisher.h", "")
    return write


def sources():
    return lint.tracked("src/*.c", "src/*.h")


@pytest.mark.parametrize(
    "name, include, good",
    [
        ("src/core/a.c", '"log.h"', True),
        ("src/core/a.c", '"pg.h"', False),
        ("src/pg/a.c", '"publisher.h"', False),
        ("src/relay/a.c", '"publisher.h"', True),
        ("src/pg/a.c", "<libpq-fe.h>", True),
        ("src/app/a.c", "<libpq-fe.h>", False),
        ("src/relay/a.c", "<librdkafka/rdkafka.h>", False),
        ("src/core/a.c", "<pthread.h>", False),
        ("src/other/a.c", "<stdio.h>", False),
    ],
)
def test_layers(tree, name, include, good):
    tree(name, f"#include {include}\n")
    lint.check_layers(sources())
    assert bool(lint.failures) != good


@pytest.mark.parametrize(
    "name, code, good",
    [
        ("src/core/a.c", "strcpy(a, b);", False),
        ("src/core/a.c", "x = atoi (s);", False),
        ("src/core/a.c", "exit(1);", False),
        ("src/app/a.c", "exit(1);", True),
        ("src/core/a.c", "_exit(1); my_exit(1); a->system(1); nanosleep(t, t); snprintf(a, n, f);", True),
        ("src/core/a.c", '/* sleep(1) */ f("system(x)"); // gets(x)', True),
    ],
)
def test_banned(tree, name, code, good):
    tree(name, code + "\n")
    lint.check_banned(sources())
    assert bool(lint.failures) != good


def test_long_and_unfinished(tree):
    tree("src/core/a.c", "\n" * 601)
    tree("src/core/b.c", "\n" * 600)
    tree("src/core/c.c", "/* TO" + "DO: later */\n")
    lint.check_lengths(sources())
    lint.check_words(sources())
    assert [failure.split(":")[0] for failure in lint.failures] == ["src/core/a.c", "src/core/c.c"]


def test_settings_in_documents(tree, monkeypatch):
    class Done:
        stdout = '{"OUTBOX_WORKERS": "2"}'

    monkeypatch.setattr(lint.subprocess, "run", lambda *args, **more: Done)
    tree("README.md", "`OUTBOX_WORKERS`, OUTBOX_WORKERS_FILE, OUTBOX_KAFKA_X_Y, OUTBOX_KAFKA_<PROPERTY>, OUTBOX_*\n")
    lint.check_settings("outboxd")
    assert lint.failures == []
    tree("docs/a.md", "one\nOUTBOX_WRKERS\n")
    lint.check_settings("outboxd")
    assert lint.failures == ["docs/a.md:2: there is no setting OUTBOX_WRKERS"]


def test_metrics_and_commands_in_documents(tree, monkeypatch):
    class Done:
        stdout = "".join(f"| `outboxd_m{chr(97 + n)}` | gauge | |\n| `outboxd c{chr(97 + n)}` | does |\n" for n in range(21))
        stdout += "| `outboxd_seconds` | histogram | |\n"

    monkeypatch.setattr(lint.subprocess, "run", lambda *args, **more: Done)
    tree("README.md", "`outboxd ca --x`, outboxd_ma, `outboxd_seconds_bucket`\n    outboxd cb\nwhat outboxd does\n")
    lint.check_names("outboxd")
    assert lint.failures == []
    tree("docs/a.md", "outboxd_mx_total\n`outboxd czz`\n    outboxd cyy now\n")
    lint.check_names("outboxd")
    assert [failure.split(": ")[1] for failure in lint.failures] == [
        "there is no metric outboxd_mx_total", "there is no command czz", "there is no command cyy"]


def test_generated(tree, monkeypatch):
    monkeypatch.setattr(lint.reference, "generate", lambda outboxd: {"docs/a": "new\n", "docs/b": "same\n"})
    tree("docs/a", "old\n")
    tree("docs/b", "same\n")
    lint.check_generated("outboxd")
    assert len(lint.failures) == 1 and lint.failures[0].startswith("docs/a:")


def test_unregistered(tree):
    tree("tests/meson.build", "foreach name : ['a']\n")
    tree("tests/unit/test_a.c", "")
    tree("tests/unit/test_b.c", "")
    lint.check_registered()
    assert len(lint.failures) == 1


def test_options_without_a_row(tree, monkeypatch):
    class Done:
        stdout = "| `outboxd a [--x] [--y]` | does |\n| `outboxd b` | does |\n\n| `a` | `--x N` | is |\n| `c` | `--z` | is |\n"

    monkeypatch.setattr(lint.subprocess, "run", lambda *args, **more: Done)
    lint.check_options("outboxd")
    assert sorted(lint.failures) == ["src/app/options.c: a has no row for --y", "src/app/options.c: there is no command c"]


def test_alert_without_advice(tree):
    tree("docs/OPERATIONS.md", "Alerts: `Known`.\n")
    tree("docs/monitoring/alerts.yml", "rules:\n  - alert: Known\n  - alert: Forgotten\n")
    lint.check_alerts()
    assert len(lint.failures) == 1 and "Forgotten" in lint.failures[0]
