"""flakelog.server.lifecycle: the order of a stop, its grace, and releases that fail."""

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from flakelog.server.lifecycle import Lifecycle, Stage, StoppedWhileStarting


def lifecycle(clock, grace_ms=0):
    lines = []
    return Lifecycle(clock, lines.append, grace_ms), lines


def outcome_of(deferred):
    outcomes = []
    deferred.addBoth(outcomes.append)
    return outcomes


def test_a_stop_releases_by_stage_and_each_thing_once():
    process, _ = lifecycle(Clock())
    released = []
    for stage in (Stage.DIRECTORY, Stage.LOGS, Stage.BROKER, Stage.ID_PORTS):
        process.take(stage, lambda stage=stage: released.append(stage))
    process.stop()
    process.stop()
    assert released == [Stage.ID_PORTS, Stage.BROKER, Stage.LOGS, Stage.DIRECTORY]


def test_a_release_waits_for_the_one_before():
    process, _ = lifecycle(Clock())
    threads_end, released = Deferred(), []
    process.take(Stage.LOGS, lambda: released.append("logs"))
    process.take(Stage.BROKER, lambda: threads_end)
    stopped = outcome_of(process.stop())
    assert released == stopped == []
    threads_end.callback(None)
    assert released == ["logs"] and stopped == [None]


def test_a_release_that_fails_leaves_out_no_other_and_is_raised():
    process, _ = lifecycle(Clock())
    released = []
    process.take(Stage.LOGS, lambda: 1 / 0)
    process.take(Stage.DIRECTORY, lambda: released.append("directory"))
    [failure] = outcome_of(process.stop())
    assert failure.check(ZeroDivisionError) and released == ["directory"]


def test_what_is_taken_after_the_stop_is_released_at_once():
    """A thread may open a session while the process is told to stop."""
    process, _ = lifecycle(Clock())
    process.stop()
    released = []
    with pytest.raises(StoppedWhileStarting):
        process.take(Stage.REGISTRY, lambda: released.append("registry"))
    assert released == ["registry"]


@pytest.mark.parametrize("asked_again", [False, True])
def test_a_server_that_serves_has_a_grace_which_a_second_request_ends(asked_again):
    clock = Clock()
    process, lines = lifecycle(clock, grace_ms=3_000)
    process.begin_serving()
    process.end_grace()
    assert process.serving and lines == []
    stopped = outcome_of(process.stop())
    assert process.stopped and not process.serving and stopped == [] and "serving 3000 ms on" in lines[0]
    if asked_again:
        process.end_grace()
        assert lines[1:-1] == ["told to stop again: the grace ends now"]
    else:
        clock.advance(3)
    assert stopped == [None] and lines[-1] == "stopped"


def test_a_log_tells_a_stop_from_a_kill():
    process, lines = lifecycle(Clock())
    process.begin_serving()
    logs_close = Deferred()
    process.take(Stage.LOGS, lambda: logs_close)
    process.stop()
    assert lines == ["told to stop"]
    logs_close.callback(None)
    assert lines == ["told to stop", "stopped"]


def test_a_start_that_fails_reports_no_stop():
    process, lines = lifecycle(Clock())
    process.stop()
    assert lines == []


def test_a_start_that_fails_has_no_grace():
    process, _ = lifecycle(Clock(), grace_ms=3_000)
    assert outcome_of(process.stop()) == [None]
