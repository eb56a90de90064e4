"""A process that takes long to start: Storm would end a silent one."""

import pytest

from spout.multilang.handshake import handshake_of
from spout.multilang.starting import Starting
from spout.multilang.wire import PipeClosed
from tests.spout.multilang.storm_side import frames_of, handshake
from tests.spout.multilang.test_spout_task import Numbers, topology_of

DEFAULT = {"topology.subprocess.timeout.secs": None, "supervisor.worker.timeout.secs": 30}


def task(conf=DEFAULT):
    return handshake_of(handshake(topology_of(Numbers()).plan(), "numbers", conf=conf))


def waits(times, wanted=10):
    """Return a `wait` that is interrupted by the end of the start after this number of calls."""
    answers = [False] * times + [True]

    def wait(seconds):
        assert seconds == wanted
        return answers.pop(0)

    return wait


def test_storm_hears_every_ten_seconds_of_a_process_that_starts():
    written = []
    Starting(written.append, task(), waits(2)).end()
    answers = frames_of(b"".join(written))
    lines = [(answer["command"], answer["level"], answer["msg"][:11]) for answer in answers]
    assert lines == [("log", 2, "numbers[0]:")] * 2
    assert b"for 20 s" in written[1]


def test_one_that_starts_at_once_says_nothing():
    written = []
    Starting(written.append, task()).end()
    assert written == []


def test_a_closed_pipe_ends_it():
    def closed(data):
        raise PipeClosed

    Starting(closed, task(), waits(5)).end()


@pytest.mark.parametrize("conf, wanted", [({"topology.subprocess.timeout.secs": 120}, 40), ({}, 10)])
def test_the_time_between_lines_is_a_third_of_what_storm_waits(conf, wanted):
    Starting(lambda data: None, task({**DEFAULT, **conf}), waits(1, wanted)).end()
