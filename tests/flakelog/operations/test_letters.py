"""Dead letters by their names: what is no name, and what is not there."""

import pytest

from broker.record.records import BatchRecord, encode_batch
from flakelog.operations import letters
from flakelog.operations.errors import NotPossible
from flakelog.operations.handled_letters import HandledLetters
from tests.flakelog.console.world import World

TOPIC = "orders.dead-letters"


@pytest.fixture
def client():
    world = World()
    world.broker.create(TOPIC)
    facts = {"reason": "attempts", "topic": "orders", "partition": 0, "offset": 7}
    headers = tuple((f"flakelog-dead-{name}", str(fact).encode()) for name, fact in facts.items())
    world.client.produce(TOPIC, 0, encode_batch([BatchRecord(0, 0, b"k", b"v", headers)], base_timestamp_ms=1_000))
    return world.client


@pytest.mark.parametrize("name", ["", "1", "1:", ":1", "a:1", "-1:2", "1:2:3", "²:1", "١:1", f"0:{'1' * 40}"])
def test_a_letter_is_named_by_two_numbers(name):
    """The digits of other scripts are no numbers: "²" is a digit for Python, and int() refuses it."""
    assert letters.place_of(name) is None and letters.place_of("12:345") == (12, 345)


@pytest.mark.parametrize("name", ["0:1", "0:2", "9:0", "no name"])
def test_a_letter_that_is_not_there_is_none(client, name):
    marks = HandledLetters(client, TOPIC)
    assert letters.letter_at(client, TOPIC, marks, "0:0").source_offset == 7
    assert letters.letter_at(client, TOPIC, marks, name) is None


def test_letters_to_drop_must_be_there(client):
    assert letters.bounds_to_drop(client, TOPIC, None) == letters.bounds_to_drop(client, TOPIC, ["0:0"]) == {0: (0, 1)}
    with pytest.raises(NotPossible, match="partition 0 has letters 0 to 0, not 1"):
        letters.bounds_to_drop(client, TOPIC, ["0:1"])
    with pytest.raises(NotPossible, match="'²:1' is no letter; give a letter PARTITION:OFFSET"):
        letters.bounds_to_drop(client, TOPIC, ["²:1"])
