"""docs/FAULTS.md shows every fault that a test injects, and none that is gone."""

import sys

from rig.daemon import SOURCE
from rig.faults import SEEN
from rig.judge import Verdict

sys.path.insert(0, str(SOURCE / "tools"))
import faults  # noqa: E402

ENTRY = {"name": "a | b", "how": "h", "promise": "p", "outcome": "passed", "seen": "", "test": "fault/test_x.py::test_y[1]"}


def test_every_fault_is_on_the_page():
    lines = (SOURCE / "docs/FAULTS.md").read_text().splitlines()
    shown = {line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")} - {"fault"}
    declared = {faults.cell(name) for _, name in faults.declared()}
    assert shown == declared, "run the fault suite, then tools/faults.py build/faults.json >docs/FAULTS.md"


def test_no_fault_on_the_page_failed():
    rows = [line for line in (SOURCE / "docs/FAULTS.md").read_text().splitlines() if line.startswith("| ")]
    failed = [row for row in rows if row.split(" | ")[-1].startswith("**")]
    assert not failed, "the page records failures: mend them, run these tests again, then make the page anew"


def test_of_a_verdict_the_examples_are_left_out(seen, request):
    verdict = Verdict(committed=1, messages=3)
    verdict.note("duplicate", "t/0@1")
    seen(verdict, "4 new producers")
    notes = request.node.stash[SEEN]
    assert len(notes) == 2 and notes[0].endswith("0 altered") and notes[1] == "4 new producers"


def test_the_page(monkeypatch):
    monkeypatch.setattr(faults, "declared", lambda: {("fault/test_x.py::test_y", "a | b")})
    gone = {**ENTRY, "test": "fault/test_x.py::test_gone"}
    failed = {**ENTRY, "outcome": "failed", "seen": "3 missing"}
    page = faults.page([ENTRY, dict(ENTRY), gone, failed])
    assert page.removeprefix(faults.HEAD) == ("| a \\| b | h | p | as promised |\n"
                                              "| a \\| b | h | p | **failed** 3 missing |\n")
