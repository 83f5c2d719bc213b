"""The record of the fault suite: what each test breaks, what was promised, what was seen.

    @fault("the broker is killed", how="SIGKILL of one of three", promise="nothing lost, order kept")
    def test_…(…, seen):
        …
        seen(judge(topic).check(), "after 5 s")  # what a reader of docs/FAULTS.md should know

A run adds its outcomes to build/faults.json (a test that ran before is replaced), and tools/faults.py makes
docs/FAULTS.md of it. As a pytest plugin this module provides the marker and the fixture `seen`.

RIG_LONG=1 makes the outages as long as a bad day has them; the default run keeps them short.
"""

import json
import os
import random
from pathlib import Path

import pytest

RECORD = Path(__file__).resolve().parents[2] / "build" / "faults.json"


OUTCOMES = pytest.StashKey()  # of the session: nodeid → entry
SEEN = pytest.StashKey()  # of a test: its notes


def fault(name, how, promise):
    return pytest.mark.fault(name=name, how=how, promise=promise)


def length(seconds, long):
    """Of an outage."""
    return long if os.environ.get("RIG_LONG") == "1" else seconds


def pytest_addoption(parser):
    parser.addoption("--minutes", type=float, default=1, help="length of the chaos run")
    parser.addoption("--seed", type=int, help="of every random choice; RIG_SEED does the same")


def pytest_configure(config):
    config.addinivalue_line("markers", "fault(name, how, promise): a fault of docs/FAULTS.md")
    config.stash[OUTCOMES] = {}


@pytest.fixture
def seen(request):
    """Notes what a run of the test has shown: seen(verdict, "5 s later"). Texts, and verdicts, of which the first line
    counts: the rest are examples. All of them together make one sentence."""
    notes = request.node.stash.setdefault(SEEN, [])

    def note(*parts):
        notes.extend(part if isinstance(part, str) else str(part).splitlines()[0] for part in parts)
        print(*parts, sep="; ")

    return note


@pytest.fixture
def chance(request):
    """Randomness with a printed seed; --seed or RIG_SEED in the environment repeats a run."""
    seed = request.config.getoption("--seed")
    if seed is None:
        seed = int(os.environ.get("RIG_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}: repeat with --seed {seed}")
    chance = random.Random(seed)
    chance.printed_seed = seed
    return chance


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    mark = item.get_closest_marker("fault")
    if mark is None or (report.when != "call" and not report.failed):
        return
    outcomes = item.config.stash[OUTCOMES]
    if item.nodeid in outcomes and not report.failed:
        return
    outcomes[item.nodeid] = {**mark.kwargs, "test": item.nodeid, "outcome": report.outcome,
                             "seen": "; ".join(item.stash.get(SEEN, []))}


def pytest_sessionfinish(session):
    outcomes = session.config.stash[OUTCOMES]
    if not outcomes or not RECORD.parent.is_dir():
        return
    known = json.loads(RECORD.read_text()) if RECORD.exists() else []
    merged = {entry["test"]: entry for entry in known} | outcomes
    RECORD.write_text(json.dumps(list(merged.values()), indent=1, ensure_ascii=False) + "\n")
