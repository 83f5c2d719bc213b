"""`./dev demo`, for a few seconds: what it shows is true, and it leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rig.daemon import SOURCE
from rig.process import PATIENCE, wait_until


@pytest.fixture
def demo(tmp_path):
    """demo(…) → its process and the file it prints to. Its servers' folder is in tmp_path/tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    for one in (tmp_path.parents[1], tmp_path.parents[0], tmp_path, folder):
        one.chmod(0o755)  # PostgreSQL's user passes through
    children = []

    def demo(*args):
        out = tmp_path / "out"
        with open(out, "w") as file:
            children.append(subprocess.Popen([sys.executable, SOURCE / "tests/demo.py", "--seconds", "2", *args], stdout=file,
                                             stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                             env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(SOURCE / "tests")}))
        return children[-1], out

    yield demo
    for child in children:
        child.kill()
        child.wait()


def left_behind(folder):
    """Files, and processes that know the folder: the servers of the demo have it on their command line or log into it."""
    found = [str(path) for path in folder.iterdir()]
    for home in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(folder) in os.readlink(fd) for fd in (home / "fd").iterdir()):
                found.append((home / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def summary(out):
    return re.search(r"^written: (\d+) .* delivered: (\d+)   order kept: (\w+)$", out.read_text(), re.M)


def test_it_runs_to_its_end(demo, tmp_path):
    child, out = demo()
    assert child.wait(PATIENCE) == 0, out.read_text()
    written, delivered, order = summary(out).groups()
    assert int(written) == int(delivered) > 0 and order == "yes"
    assert len(re.findall(r"^orders  partition \d+  key=order-\d", out.read_text(), re.M)) == int(delivered)
    assert left_behind(tmp_path / "tmp") == []


def test_it_stays_until_ctrl_c(demo, tmp_path):
    child, out = demo("--keep")
    wait_until(lambda: "until Ctrl-C" in out.read_text() or child.poll() is not None, lambda: out.read_text())
    assert left_behind(tmp_path / "tmp")
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to all that are not in a session of their own
    assert child.wait(PATIENCE) == 0, out.read_text()
    assert left_behind(tmp_path / "tmp") == []
