"""Exceptions whose text cannot be made, cannot be encoded or is huge: each is text, and fails its message only."""

import pytest

from flakelog.testing import TopologyDriver
from spout.api import Bolt
from spout.config import SpoutConfig
from spout.error_text import CHARACTERS_MAX, TRACEBACK_CHARACTERS_MAX, error_text, traceback_of
from spout.log_spout import LogSpout
from spout.scheme import RawScheme
from spout.topology import Topology

SURROGATE = "no such file: \udce9t\udce9"


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error, text",
    [
        (ValueError("no"), "ValueError: no"),
        (Mute(), "Mute: its text cannot be made, because of a RuntimeError"),
        (OSError(SURROGATE), r"OSError: no such file: \udce9t\udce9"),
    ],
)
def test_every_exception_has_a_text_in_utf8(error, text):
    assert error_text(error) == text
    assert traceback_of(error).encode()


def test_of_a_huge_text_the_beginning_and_the_end_are_kept():
    error = ValueError("a" + "x" * 10_000_000 + "z")
    text = error_text(error)
    assert len(text) < CHARACTERS_MAX + 100 and text.startswith("ValueError: ax") and text.endswith("xz")
    assert "(9,990,002 characters left out)" in text
    assert len(traceback_of(error)) < TRACEBACK_CHARACTERS_MAX + 100


@pytest.mark.parametrize("error", [Mute(), OSError(SURROGATE)])
def test_an_exception_with_such_a_text_fails_its_message_only(error):
    class Broken(Bolt):
        output_fields = ("value",)

        def execute(self, tup):
            if tup["value"] == b"bad":
                raise error
            self.emit((tup["value"],))

    topology = Topology("broken")
    config = SpoutConfig(spout_max_attempts=1)
    topology.spout("lines", LogSpout("lines", scheme=RawScheme(), config=config))
    topology.bolt("broken", Broken()).shuffle("lines")
    with TopologyDriver(topology) as test:
        for value in ("a", "bad", "c"):
            test.log("lines").append(value)
        test.run()
        assert test.emitted("broken") == [(b"a",), (b"c",)]
        (letter,) = test.dead_letters("lines")
        assert letter.record.value == b"bad" and letter.error.encode().startswith(type(error).__name__.encode())
