"""Messages on pages and in live tails, from a broker in memory: the newest ones, many partitions, damaged batches."""

from html import escape

import pytest

from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from flakelog.console.message_pages import Raw
from flakelog.console.messages import PARTITIONS_MAX, parse_positions, query_of
from flakelog.console.pages import NotThere
from flakelog.console.visit import BadField
from tests.broker.engine_client import WALL_MS
from tests.broker.transactional import TransactionalProducer
from tests.flakelog.console.world import World, fields_of, html_of, now


@pytest.fixture
def world():
    made = World(page_bytes=100_000)
    made.broker.create("orders", 2)
    return made


def produce(world, *values, topic="orders", partition=0, headers=(), codec=Codec.NONE):
    records = [BatchRecord(n, 0, None, value, headers) for n, value in enumerate(values)]
    batch = encode_batch(records, base_timestamp_ms=WALL_MS, codec=codec)
    return world.client.produce(topic, partition, batch).base_offset


def page(world, topic="orders", **fields):
    return now(world.messages.messages_page(fields_of(fields), topic))


def offsets(world, **fields):
    return [row.offset for row in page(world, **fields).model.rows]


def damage(world, offset, at=-1, partition=0):
    """Change a byte of the batch that begins at an offset; `at` counts from the batch's beginning or its end."""
    content = world.broker.storage.files[f"orders-{partition}/{0:020}.log"]
    data = bytes(content.data)
    position = 0
    while int.from_bytes(data[position : position + 8], "big") != offset:
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    content.data[position + at % size] ^= 0xFF


# --- the newest messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value_bytes", [1, 5_000, 30_000, 90_000, 200_000])
def test_the_newest_messages_are_shown_however_large_they_are(world, value_bytes):
    """100 messages of 5 kB do not fit a page; it used to show the first ones that do."""
    for _ in range(100):
        produce(world, b"x" * value_bytes)
    for fields in ({}, {"partition": 0}):
        shown_offsets = offsets(world, **fields)
        assert shown_offsets == list(range(99, 99 - len(shown_offsets), -1)) and shown_offsets
    assert page(world, partition=0).model.following is None


def test_of_many_partitions_those_with_the_newest_messages_are_shown(world):
    world.broker.create("wide", PARTITIONS_MAX + 5)
    for number in range(PARTITIONS_MAX + 5):
        produce(world, b"x", topic="wide", partition=number)
    view = page(world, "wide")
    assert [row.partition for row in view.model.rows] == list(range(PARTITIONS_MAX + 4, 4, -1))
    assert "5 more partitions have messages" in html_of(view)
    assert len(view.stream) < 4_000, "a request line has its limit"


def test_headers_count_as_bytes_of_a_page(world):
    for _ in range(10):
        produce(world, b"", headers=(("trace", b"x" * 40_000),), codec=Codec.ZSTD)
    assert offsets(world, start="oldest", partition=0) == [0, 1]


# --- what cannot be read ---------------------------------------------------------------------------------------------


def test_a_damaged_batch_is_named_and_the_others_are_shown(world):
    for value in (b"a", b"b", b"c"):
        produce(world, value)
    damage(world, 1)
    view = page(world, start="oldest", partition=0)
    assert [(row.offset, bool(row.wrong)) for row in view.model.rows] == [(0, False), (1, True), (2, False)]
    assert "This batch is not shown: orders-0 at offset 1: CRC of the batch" in html_of(view)
    assert sorted(offsets(world)) == [0, 1, 2]


def test_where_no_batch_begins_the_messages_before_are_shown(world):
    for value in (b"a", b"b", b"c"):
        produce(world, value)
    damage(world, 1, at=8)
    view = page(world, start="oldest", partition=0)
    assert [(row.offset, bool(row.wrong)) for row in view.model.rows] == [(0, False), (1, True)]


def test_an_offline_partition_hides_no_other_partition(world):
    produce(world, b"a")
    produce(world, b"b", partition=1)
    world.broker.services.logs.get("orders", 0).take_offline("a sync failed")
    rows = page(world).model.rows
    assert [(row.partition, "KAFKA_STORAGE_ERROR" in row.wrong) for row in rows] == [(1, False), (0, True)]


def test_a_batch_that_is_too_large_leads_to_its_messages(world):
    produce(world, b"a" * 200_000, b"b", codec=Codec.ZSTD)
    assert 'message?partition=0&offset=0"' in html_of(page(world))
    assert now(world.messages.message_page(fields_of({"partition": 0, "offset": 1}), "orders")).model["row"].offset == 1


def test_an_offset_without_a_message_leads_to_the_next_messages(world):
    """It is the marker of a transaction here, and may be compacted away elsewhere."""
    payments = TransactionalProducer(world.broker)
    payments.init()
    payments.write("orders", b"a")
    assert payments.end(commit=True) == 0
    produce(world, b"b")
    with pytest.raises(NotThere, match="orders-0 has no message at offset 1") as missing:
        now(world.messages.message_page(fields_of({"partition": 0, "offset": 1}), "orders"))
    assert missing.value.more[0] == "/console/topics/orders/messages?partition=0&start=offset&value=1"
    assert offsets(world, partition=0, start="offset", value=1) == [2]


@pytest.mark.parametrize("value", ["9" * 19, "9" * 5_000, "1969-01-01", "0001-01-01T00:00+23:59"])
def test_a_time_that_no_log_has_is_refused(world, value):
    with pytest.raises(BadField, match="is before 1970|is after the year 9999"):
        query_of("orders", "", "time", value)


@pytest.mark.parametrize(
    "fields, wrong",
    [
        ({"partition": "1", "start": "time", "value": "<b>soon"}, "&lt;b&gt;soon"),
        ({"partition": "1", "start": "offset", "value": "-1"}, "is no offset"),
        ({"partition": "x", "start": "id", "value": "1"}, "is no partition"),
        ({"start": "<b>"}, "messages begin at"),
    ],
)
def test_a_refused_place_is_shown_in_its_form_with_the_reason(world, fields, wrong):
    view = world.messages.messages_page(fields_of(fields), "orders")
    html = html_of(view)
    assert view.status == 400 and wrong in html and "<b>" not in html and not view.stream
    assert f'value="{escape(fields.get("value", ""))}"' in html and 'id="tail"' not in html
    assert ('<option value="1" selected>' in html) == (fields.get("partition") == "1")


def test_a_message_can_be_downloaded(world):
    produce(world, b"\xff")
    fields = fields_of({"partition": 0, "offset": 0})
    assert now(world.messages.raw(fields, "orders")) == Raw("orders-0-0.value", b"\xff")


# --- the live tail ---------------------------------------------------------------------------------------------------


def tail_of(world, stream):
    """Return the tail that a page's stream begins."""
    assert stream.startswith("tail&")
    return world.messages.tail(fields_of(dict(pair.split("=") for pair in stream.split("&")[1:])), "")


def read(tail):
    """Return the values of the new messages, and how many were left out."""
    deferred = tail.read()
    if deferred is None:
        return [], 0
    new = now(deferred)
    return [row.value.summary for row in new.rows], new.left_out


def test_a_tail_continues_where_the_page_ends(world):
    produce(world, b"old")
    tail = tail_of(world, page(world).stream)
    assert read(tail) == ([], 0)
    produce(world, b"a", b"b")
    produce(world, b"c", partition=1)
    assert read(tail) == (["c", "b", "a"], 0)
    assert read(tail) == ([], 0)


def test_a_tail_of_one_partition_shows_no_other(world):
    produce(world, b"old", partition=1)
    tail = tail_of(world, page(world, partition=1).stream)
    produce(world, b"a")
    produce(world, b"b", partition=1)
    assert read(tail) == (["b"], 0)


def test_a_tail_leaves_the_oldest_out_and_says_how_many(world):
    tail = tail_of(world, page(world).stream)
    for number in range(300):
        produce(world, b"%d" % number)
    rows, left_out = read(tail)
    assert (rows[0], rows[-1], left_out) == ("299", "200", 200)


def test_a_tail_follows_partitions_that_are_added(world):
    tail = tail_of(world, page(world).stream)
    assert read(tail) == ([], 0)
    from flakelog.operations.topics import add_partitions

    add_partitions(world.client, "orders", 3)
    produce(world, b"a", partition=2)
    assert read(tail) == (["a"], 0)


def test_a_tail_ends_with_its_topic_and_reads_one_made_again_from_its_start(world):
    produce(world, b"old", b"old")
    stream = page(world).stream
    tail = tail_of(world, stream)
    world.client.delete_topic("orders")
    with pytest.raises(NotThere, match="there is no topic 'orders'"):
        tail.read()
    world.client.create_topic("orders", 2)
    produce(world, b"new")
    assert read(tail_of(world, stream)) == (["new"], 0)


def test_a_tail_says_once_that_a_partition_is_offline(world):
    tail = tail_of(world, page(world).stream)
    produce(world, b"a")
    produce(world, b"b", partition=1)
    world.broker.services.logs.get("orders", 0).take_offline("a sync failed")
    assert read(tail)[0] == ["b", "null"]
    assert read(tail) == ([], 0)


@pytest.mark.parametrize("text", ["x", "1", "-1", "1-x", "1-" + "9" * 30])
def test_another_text_is_no_position(text):
    with pytest.raises(BadField, match="give PARTITION-OFFSET"):
        parse_positions(text)
