"""A daemon that ends as nobody asked it to fails its test, whatever its log says."""

import signal

import pytest
from rig import daemon


@pytest.fixture
def play(tmp_path, monkeypatch):
    """play(script) → a started "outboxd" that does this."""
    def play(script, **settings):
        program = tmp_path / "outboxd"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(daemon, "binary", lambda build: program)
        return daemon.Daemon(tmp_path / "log", settings)

    return play


@pytest.mark.parametrize("script", ["kill -SEGV $$", "kill -KILL $$", "exit 0", "exit 78"])
def test_an_end_by_itself(play, script):
    one = play(script)
    one.wait()
    assert "ended with" in one.faults()[0]


@pytest.mark.parametrize("script", ["trap 'exit 1' TERM", "trap 'kill -ABRT $$' TERM", "true"])  # the last: killed by SIGTERM
def test_a_stop_that_is_none(play, script):
    one = play(f"{script}; echo '{{\"message\": \"ready\"}}'; while :; do sleep 0.02; done")
    one.wait_log("ready")
    assert one.stop() != 0
    assert "ended with" in one.faults()[0]


def test_ends_that_were_asked_for(play):
    one = play("trap 'exit 0' TERM; echo '{\"message\": \"ready\"}'; while :; do sleep 0.02; done")
    assert one.faults() == []
    one.wait_log("ready")
    assert one.stop() == 0 and one.faults() == []
    one = play("sleep 100")
    one.kill()
    assert one.faults() == []
    one = play("kill -KILL $$", OUTBOXD_SEAM="marked:1:kill")
    assert one.wait() == -signal.SIGKILL and one.faults() == []
