"""The alert rules and the dashboard name metrics and labels that exist, and the alerts fire when they should."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rig import daemon as daemons

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/monitoring"


@pytest.fixture(scope="module")
def known():
    """{series name: its labels}, histograms with their three."""
    table = subprocess.run([daemons.binary(), "help", "--metrics"], check=True, capture_output=True, text=True).stdout
    found = {"up": set()}
    for name, kind, labels in re.findall(r"^\| `(outboxd_\w+)` \| (\w+) \| (.*?) \|", table, re.M):
        labels = set(re.findall(r"`(\w+)", labels))
        if kind == "histogram":
            found |= {name + "_bucket": labels | {"le"}, name + "_sum": labels, name + "_count": labels}
        else:
            found[name] = labels
    assert len(found) > 20
    return found


def faults(known, expression):
    """Names that do not exist, and labels that a metric does not have."""
    wrong = [name for name in re.findall(r"\boutboxd_\w+", expression) if name not in known]
    for name, matchers in re.findall(r"\b(outboxd_\w+)\{([^}]*)\}", expression):
        for label in re.findall(r"(\w+)\s*[=!]", matchers):
            if name in known and label not in known[name] | {"job", "instance"}:
                wrong.append(f"{name}{{{label}}}")
    return wrong


def expressions():
    board = json.loads((FOLDER / "dashboard.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [variable["query"]["query"] for variable in board["templating"]["list"] if isinstance(variable["query"], dict)]
    found += re.findall(r"expr: (.*)", (FOLDER / "alerts.yml").read_text())
    assert len(found) > 25
    return found


def test_every_name_exists(known):
    assert {text: wrong for text in expressions() if (wrong := faults(known, text))} == {}


def test_every_metric_is_shown_or_watched(known):
    text = "\n".join(expressions())
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
    assert [name for name in sorted(families) if name not in text] == []


def test_the_check_finds_what_is_wrong(known):
    assert faults(known, "rate(outboxd_event_total[5m])") == ["outboxd_event_total"]
    assert faults(known, 'outboxd_events_total{outcome="sent"}') == ["outboxd_events_total{outcome}"]
    assert faults(known, 'sum(outboxd_events_total{result="sent", job="x"})') == []


@pytest.mark.parametrize("args", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool(args):
    promtool = shutil.which("promtool")
    assert promtool, "promtool (Debian package prometheus) is not installed: run ./dev setup"
    done = subprocess.run([promtool, *args], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested():
    alerts = set(re.findall(r"- alert: (\w+)", (FOLDER / "alerts.yml").read_text()))
    fired = set(re.findall(r"- alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n", (FOLDER / "alerts_test.yml").read_text()))
    assert alerts == fired


def test_the_dashboard_has_no_overlaps():
    cells = set()
    for panel in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells and at["x"] + at["w"] <= 24, panel["title"]
        cells |= own
