"""Messages that the command line and the console send: their partitions, places and headers."""

from zlib import crc32

import pytest

from broker.record.compression import Codec
from flakelog.produce import Sent, parse_header, partition_of, send
from tests.broker.engine_client import WALL_MS
from tests.flakelog.console.world import World


def test_a_key_always_goes_to_the_same_partition_and_none_goes_by_turn():
    assert partition_of(b"customer-7", 5, 0) == partition_of(b"customer-7", 5, 3) == crc32(b"customer-7") % 5
    assert [partition_of(key, 3, turn) for key in (None, b"") for turn in range(4)] == [0, 1, 2, 0, 0, 1, 2, 0]
    assert {partition_of(None, 2) for _ in range(200)} == {0, 1}


def test_messages_are_sent_as_one_batch_and_their_places_come_back():
    world = World()
    world.broker.create("orders", 2)
    pairs = [(b"a", b"1"), (None, b"2"), (b"c", None)]
    sent = send(world.client, "orders", 1, pairs, WALL_MS, (("source", b"web"),), Codec.ZSTD)
    assert [message[:2] for message in sent] == [(1, 0), (1, 1), (1, 2)]
    records, _ = world.client.fetch("orders", 1, 0, max_wait_ms=0)
    assert [(record.key, record.value) for record in records] == pairs
    assert all(record.headers == (("source", b"web"),) for record in records)
    assert sent == [Sent(1, record.offset, record.id) for record in records]


@pytest.mark.parametrize(
    "text, header", [("a=b=c", ("a", b"b=c")), ("a=", ("a", b"")), ("a", ("a", None)), ("ä=\udcff", ("ä", b"\xff"))]
)
def test_a_header_is_a_name_and_perhaps_a_value(text, header):
    assert parse_header(text) == header


@pytest.mark.parametrize("text, wrong", [("=b", "is no header"), ("\udcff=b", "is no UTF-8")])
def test_a_header_needs_a_name_that_can_be_sent(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse_header(text)
