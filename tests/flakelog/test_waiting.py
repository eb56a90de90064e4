"""What a command or a server says while it waits."""

import time

from twisted.internet.task import Clock

from flakelog.commands import waiting
from flakelog.commands.progress import progress
from flakelog.commands.waiting import Patience
from flakelog.server.worker_numbers import repeat_while_waiting
from tests.patience import until


def test_a_start_that_waits_says_so_again_and_again():
    clock, notified_at_s = Clock(), []
    end = repeat_while_waiting(clock, lambda: notified_at_s.append(clock.seconds()))
    clock.pump([0.5] * 20)
    assert notified_at_s == [1.0, 5.0, 9.0]
    assert end("result") == "result"
    clock.pump([0.5] * 20)
    assert len(notified_at_s) == 3 and not clock.getDelayedCalls()


def test_a_start_that_is_quick_says_nothing():
    clock, notified_at_s = Clock(), []
    end = repeat_while_waiting(clock, lambda: notified_at_s.append(clock.seconds()))
    clock.advance(0.5)
    end(None)
    clock.advance(10)
    assert notified_at_s == []


def test_long_work_is_told_on_stderr_that_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(waiting, "SAY_SECONDS", 0.0)
    with progress("to orders", total=10_000, in_bytes=True) as step:
        step(2_500)
        assert until(lambda: "to orders: 2,500 of 10,000 bytes, 0 s now\n" in capsys.readouterr().err)


def test_a_long_wait_is_named_on_stderr_and_a_short_one_is_not(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.001)
    patience = Patience()
    patience.begin(lambda: "never shown")
    patience.end()
    patience.begin(lambda: "the server")
    patience._since = patience._reported_at = time.monotonic() - 5
    assert until(lambda: capsys.readouterr().err).startswith("waiting for the server, 5 s now\n")
    patience.close()
