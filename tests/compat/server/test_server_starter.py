"""A forked server of the tests is as one that begins as a start of Python: the same signals, descriptors and ends."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.compat.server_process import DidNotStart, ServerProcess, ServerProgram
from tests.patience import until

KINDS = ServerProcess, ServerProgram


@pytest.fixture
def both(tmp_path):
    with ServerProcess(tmp_path / "fork") as fork, ServerProgram(tmp_path / "program") as program:
        yield fork, program


def test_both_have_the_same_signals_descriptors_and_directory(both):
    fork, program = both
    until(lambda: traits(fork) == traits(program), "the end of what both do after their start")


def traits(server):
    process = Path(f"/proc/{server.pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    signals = [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")]
    return signals, set(map(kind, (process / "fd").iterdir())) - {None}, os.readlink(process / "cwd")


def kind(descriptor):
    """Return what a descriptor is, without numbers and the server's directory; None if it is closed by now."""
    with suppress(FileNotFoundError):
        return re.sub(r"\d+|/.*/(fork|program)/", "", os.readlink(descriptor))


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGUSR1, -signal.SIGUSR1)])
def test_both_end_alike(both, number, code):
    assert [server.stop(number) for server in both] == [code, code]


def test_both_leave_no_process_behind(both):
    for server in both:
        server.kill()
        assert not Path(f"/proc/{server.pid}").exists()


def test_both_refuse_alike(tmp_path):
    refusals = []
    for server in KINDS:
        with pytest.raises(DidNotStart) as refused:
            server(tmp_path / "data", {"node.id": "five"}).start()
        refusals.append((refused.value.exit_code, refused.value.stderr))
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == 2 and "node.id" in refusals[0][1]


def test_a_fork_has_the_environment_of_its_test(tmp_path, monkeypatch):
    monkeypatch.setenv("FLAKELOG_NODE_ID", "five")
    with pytest.raises(DidNotStart, match="node.id"):
        ServerProcess(tmp_path / "data").start()
