"""The marks of dead letters, when several commands mark letters of one partition at the same time."""

import json
from types import SimpleNamespace

import pytest

from broker.client.errors import Unreachable
from flakelog.operations.dead_letters import letter_of
from flakelog.operations.handled_letters import HandledLetters
from tests.broker.engine_client import EngineBroker
from tests.flakelog.console.test_letters import TOPIC, give_up
from tests.flakelog.console.world import MemoryClient

MARKS = TOPIC + ".handled"


class EndingClient(MemoryClient):
    """A client that can be killed when it fetches next."""

    ends_at_fetch = False

    def fetch(self, *position, **limits):
        if self.ends_at_fetch:
            raise Unreachable("127.0.0.1:9092", "the command was killed")
        return super().fetch(*position, **limits)


@pytest.fixture
def world():
    broker = EngineBroker(log_message_timestamp_after_max_ms=1 << 50)
    broker.create("orders")
    broker.create(TOPIC)
    return SimpleNamespace(broker=broker, client=EndingClient(broker))


@pytest.fixture
def letters(world):
    give_up(world, *[b"x"] * 6)
    records, _ = world.client.fetch(TOPIC, 0, 0)
    return [letter_of(0, record) for record in records]


def marked(world, letters):
    """Return the offsets of the letters that a command finds marked now."""
    marks = HandledLetters(world.client, TOPIC)
    return [letter.offset for letter in letters if marks.has(letter)]


def last_record(world):
    """Return what compaction keeps of the marks of partition 0."""
    return json.loads(world.client.fetch(MARKS, 0, 0)[0][-1].value)


def test_two_commands_that_mark_at_once_keep_the_marks_of_both(world, letters):
    first, second = HandledLetters(world.client, TOPIC), HandledLetters(world.client, TOPIC)
    first.mark([letters[0]])
    second.mark([letters[2]])
    first.mark([letters[4]])
    assert marked(world, letters) == [0, 2, 4]
    assert last_record(world)["done"] == [[2, 3], [4, 5]], "also when compaction has removed the other records"
    assert second.has(letters[0]), "a command that has written knows the marks that others wrote before"


def test_a_command_alone_writes_each_mark_once(world, letters):
    marks = HandledLetters(world.client, TOPIC)
    marks.mark([letters[0]])
    marks.mark([letters[3]])
    assert [record.offset for record in world.client.fetch(MARKS, 0, 0)[0]] == [0, 1]


def test_marks_of_a_command_that_ended_before_it_looked_at_the_others_lose_none(world, letters):
    first, second = HandledLetters(world.client, TOPIC), HandledLetters(world.client, TOPIC)
    first.mark([letters[0]])
    world.client.ends_at_fetch = True
    with pytest.raises(Unreachable):
        second.mark([letters[2]])
    world.client.ends_at_fetch = False
    assert last_record(world)["offset"] == 0, "the last record lacks the marks of the first command"
    assert marked(world, letters) == [0, 2]
    HandledLetters(world.client, TOPIC).mark([letters[4]])
    assert last_record(world)["done"] == [[2, 3], [4, 5]]
