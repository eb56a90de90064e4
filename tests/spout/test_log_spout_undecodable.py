"""A message becomes a dead letter if the scheme fails on it in any way, and the topology continues."""

import pytest

from flakelog.testing import TopologyDriver
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.scheme import JsonScheme, StringScheme
from spout.topology import Topology
from tests.spout.worlds import Collect, SpoutWorld


class Made(StringScheme):
    """A scheme of one field that returns what `make` does of a message's text."""

    fields = ("word",)

    def __init__(self, make):
        self.make = make

    def tuples(self, record, partition):
        return self.make(record.value.decode())


def driver_of(scheme, *values, field=None, config=SpoutConfig()):
    """Return the driver and its world, after the messages `values` and a last one that can be decoded."""
    world = SpoutWorld()
    for value in values:
        world.log.append(value)
    topology = Topology("t")
    topology.spout("words", LogSpout("flights", scheme=scheme, config=config))
    bolt = topology.bolt("collect", Collect(), parallelism=2)
    bolt.fields("words", field) if field else bolt.shuffle("words")
    return TopologyDriver(topology, world).run().advance(1), world


def seen_of(driver):
    return [values for bolt in driver.tasks("collect") for values in bolt.seen]


def broken_midway(text):
    yield ("first",)
    if text == "bad":
        raise RuntimeError("midway")


def a_row(value):
    return lambda text: [value if text == "bad" else (text,)]


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda text: [({"good": "word"}[text],)], "KeyError: 'bad'"),
        (a_row(()), "ValueError: stream 'default' has the fields (word), got 0 values"),
        (a_row(("a", "b")), "ValueError: stream 'default' has the fields (word), got 2 values"),
        (a_row("w"), "the scheme made str, not a tuple of values"),
        (a_row(7), "the scheme made int, not a tuple of values"),
        (lambda text: None if text == "bad" else [(text,)], "the scheme returned NoneType, not an iterable of tuples"),
        (broken_midway, "RuntimeError: midway"),
        (lambda text: [(text,)] * (4 if text == "bad" else 1), "the scheme makes more than 3 tuples of it"),
        (lambda text: iter(lambda: (text,), None) if text == "bad" else [(text,)], "the scheme makes more than 3"),
    ],
)
def test_any_failure_of_a_scheme_makes_a_dead_letter_with_its_reason(make, reason):
    config = SpoutConfig(spout_max_tuples=3)
    driver, world = driver_of(Made(make), b"good", b"bad", b"good", config=config)
    (letter,) = world.dead.letters
    assert (letter.record.offset, letter.reason, letter.attempts) == (1, "undecodable", 1)
    assert letter.error.startswith(reason)
    assert len(seen_of(driver)) == 2, "nothing of the bad message is emitted, all of the others"
    assert driver.tasks("words")[0].status()[0].watermark == 3


def test_json_nested_too_deep_makes_a_dead_letter():
    deep = b"[" * 100_000 + b"]" * 100_000
    driver, world = driver_of(JsonScheme(), deep, b"1")
    (letter,) = world.dead.letters
    assert letter.error.startswith("the value is nested too deep")
    assert [values[-1] for values in seen_of(driver)] == [1]


@pytest.mark.parametrize("value", [b"[1, 2]", b'{"a": 1}'])
def test_a_value_that_cannot_be_grouped_by_makes_a_dead_letter(value):
    driver, world = driver_of(JsonScheme("key"), b'{"key": %s}' % value, b'{"key": "a"}', field="key")
    (letter,) = world.dead.letters
    assert letter.reason == "undecodable" and letter.error.startswith("TypeError: cannot group by")
    assert [values[-1] for values in seen_of(driver)] == ["a"]


def test_if_one_tuple_of_a_message_cannot_be_grouped_none_of_them_is_emitted():
    driver, world = driver_of(Made(lambda text: [("a",), ("b",), ([text],)]), b"bad", field="word")
    assert seen_of(driver) == [] and [letter.reason for letter in world.dead.letters] == ["undecodable"]


def test_an_error_that_cannot_be_shown_makes_a_dead_letter_too():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fail(text):
        raise Unspeakable

    _, world = driver_of(Made(fail), b"bad")
    text = "Unspeakable: its text cannot be made, because of a RuntimeError"
    assert [letter.error for letter in world.dead.letters] == [text]
