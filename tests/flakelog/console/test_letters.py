"""Dead letters: the newest that were not sent again, however many were, and sending some of them."""

import pytest

from broker.record.records import BatchRecord, encode_batch
from flakelog.operations.errors import NotPossible
from flakelog.operations.handled_letters import HandledLetters
from flakelog.operations.letters import Unmarked
from tests.broker.engine_client import WALL_MS
from tests.flakelog.console.world import World, fields_of, html_of, now

TOPIC = "orders.dead-letters"


@pytest.fixture
def world():
    made = World(page_records=10, page_bytes=100_000, log_message_timestamp_after_max_ms=1 << 50)
    made.broker.create("orders")
    made.broker.create(TOPIC)
    return made


def give_up(world, *values, **facts):
    """Write dead letters with these values."""
    facts = {"reason": "attempts", "topic": "orders", "partition": 0, "offset": 7, "timestamp-ms": WALL_MS} | facts
    headers = tuple((f"flakelog-dead-{name}", str(fact).encode()) for name, fact in facts.items())
    for value in values:
        batch = encode_batch([BatchRecord(0, 0, b"key", value, headers)], base_timestamp_ms=WALL_MS)
        world.client.produce(TOPIC, 0, batch)


def page(world):
    return now(world.work.letters_page(fields_of({}), TOPIC))


def shown(world):
    return sorted(row.offset for row in page(world).model.rows)


def send(world, *positions):
    fields = fields_of({"letters": TOPIC, "place": list(positions), "confirmed": "yes"})
    return now(world.actions.act(fields, "send-again", "me"))


def handle(world, *offsets):
    """Mark letters as sent again."""
    from flakelog.operations.dead_letters import letter_of

    records, _ = world.client.fetch(TOPIC, 0, 0, 1 << 20, 0)
    chosen = [letter_of(0, record) for record in records if record.offset in offsets]
    HandledLetters(world.client, TOPIC).mark(chosen)


def test_the_newest_letters_are_shown(world):
    give_up(world, *[b"x"] * 25)
    assert shown(world) == list(range(15, 25)) and page(world).model.older == 15


def test_large_letters_do_not_hide_newer_ones(world):
    give_up(world, *[b"x" * 40_000] * 8)
    offsets = shown(world)
    assert offsets and offsets == list(range(8 - len(offsets), 8)) and page(world).model.older == 8 - len(offsets)


def test_letters_that_were_sent_again_do_not_hide_older_ones(world):
    """The page used to be empty if the newest hundred letters were sent again."""
    give_up(world, *[b"x"] * 60)
    handle(world, *range(30, 60))
    assert shown(world) == list(range(20, 30))


def test_without_letters_the_page_says_so(world):
    assert "It has no dead letters that were not sent again." in html_of(page(world))


def test_a_letter_is_sent_once(world):
    give_up(world, b"a", b"b")
    assert "1 message of" in send(world, "0:1").model.sentence
    with pytest.raises(NotPossible, match="was sent again already"):
        send(world, "0:1")
    records, _ = world.client.fetch("orders", 0, 0, 1 << 20, 0)
    assert [record.value for record in records] == [b"b"] and shown(world) == [0]


def test_letters_that_were_sent_and_could_not_be_marked_are_named(world):
    """Without their names a visitor would send them again, and double the messages."""
    world = World(max_partitions=2, log_message_timestamp_after_max_ms=1 << 50)
    world.broker.create("orders")
    world.broker.create(TOPIC)
    give_up(world, b"a")
    with pytest.raises(Unmarked, match="0:0 were sent, so do not send them again"):
        send(world, "0:0")
    assert [record.value for record in world.client.fetch("orders", 0, 0, 1 << 20, 0)[0]] == [b"a"]
    assert f"console: sent 0:0 of {TOPIC} to orders-0 from 0 on" in world.broker.reported


@pytest.mark.parametrize(
    "facts", [{"partition": 1 << 40}, {"partition": -1}, {"timestamp-ms": 1 << 80}, {"topic": "__consumer_offsets"}]
)
def test_a_letter_whose_headers_name_no_place_cannot_be_sent(world, facts):
    give_up(world, b"a", **facts)
    (row,) = page(world).model.rows
    assert row.unsendable and "It cannot be sent again" in html_of(page(world))
    with pytest.raises(NotPossible, match="0:0 cannot be sent again"):
        send(world, "0:0")


# --- topics that hold no letters -------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch):
    """Count the messages and the entries of ids that pages decode."""
    from broker.client import records
    from flakelog.console import messages

    counts = {"messages": 0, "entries": 0}
    read_records, read_entries = messages.read_records, records.read_entries

    def count_messages(*arguments, **named):
        read = read_records(*arguments, **named)
        counts["messages"] += len(read.records)
        return read

    def count_entries(*arguments):
        for entry in read_entries(*arguments):
            counts["entries"] += 1
            yield entry

    monkeypatch.setattr(messages, "read_records", count_messages)
    monkeypatch.setattr(records, "read_entries", count_entries)
    return counts


def test_a_topic_without_letters_is_answered_after_its_first_fetch(world, decoded):
    """Its page used to search 50 windows, and to decode whole fetches beyond each of them."""
    for _ in range(200):
        world.client.produce(TOPIC, 0, encode_batch([BatchRecord(0, 0, None, b"x")], base_timestamp_ms=WALL_MS))
    view = page(world)
    assert decoded["messages"] == 10, "as many as a page shows"
    assert view.model.rows == [] and view.model.older == 190
    assert "The newest messages of this topic are no dead letters." in html_of(view)


def test_a_message_costs_no_more_ids_however_many_are_fetched_with_it(world, decoded):
    """Each batch used to parse the ids of the whole fetch: half a million for 1,000 batches."""
    for _ in range(200):
        world.client.produce("orders", 0, encode_batch([BatchRecord(0, 0, None, b"x")], base_timestamp_ms=WALL_MS))
    view = now(world.messages.messages_page(fields_of({"start": "oldest", "partition": 0}), "orders"))
    assert [row.id is not None for row in view.model.rows] == [True] * 10
    assert decoded["entries"] <= 2 * 10 + 1
