"""A process that takes long to start: Storm would end a silent one."""

from spout.multilang.starting import SECONDS, Starting
from spout.multilang.wire import PipeClosed
from tests.spout.multilang.storm_side import frames_of


def waits(times):
    """Return a `wait` that is interrupted by the end of the start after this number of calls."""
    answers = [False] * times + [True]

    def wait(seconds):
        assert seconds == SECONDS
        return answers.pop(0)

    return wait


def test_storm_hears_every_ten_seconds_of_a_process_that_starts():
    written = []
    Starting(written.append, "words[1]", waits(2)).end()
    assert [(each["command"], each["level"], each["msg"][:9]) for each in frames_of(b"".join(written))] == [
        ("log", 2, "words[1]:")
    ] * 2
    assert b"for 20 s" in written[1]


def test_one_that_starts_at_once_says_nothing():
    written = []
    Starting(written.append, "words[1]").end()
    assert written == []


def test_a_closed_pipe_ends_it():
    def closed(data):
        raise PipeClosed

    Starting(closed, "words[1]", waits(5)).end()
