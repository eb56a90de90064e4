"""Template for Produce frames that repeat a validated one. A frame that matches the template is read without the rules,
so only frames that the rules accept may match; all others go to the rules."""

import pytest

from broker.config import DYNAMIC
from broker.handlers.produce_alike import Alike
from broker.record.batch import HEADER_BYTES, read_header, seal
from broker.wire import produce
from broker.wire.frame import request_header
from tests.broker.engine_client import PRODUCE, WALL_MS, batch_of, produce_request

VERSION = 9
LATEST_MS = WALL_MS + 1_000
CORRELATION_ID = slice(4, 8)


def frame_of(batch, correlation_id=1, client_id="one"):
    header = request_header(PRODUCE, VERSION, correlation_id, client_id, True)
    return memoryview(bytearray(header + produce.encode_request(VERSION, produce_request("flights", batch=batch))))


def alike_to(batch):
    """Return a template made of a frame with this batch."""
    frame = frame_of(batch)
    start = bytes(frame).index(batch)
    return Alike(frame, start, start + len(batch), read_header(batch))


def read(alike, frame):
    """Match a frame; return (correlation id, batch, header), or None if the frame differs."""
    assert len(frame) == alike.size
    asked = alike.read((None, None, frame), LATEST_MS)
    return asked and asked[1:]


@pytest.mark.parametrize(
    "fields", [{}, {"timestamp_ms": LATEST_MS}, {"base_sequence": 7}, {"timestamp_ms": -1, "base_sequence": -5}]
)
def test_the_time_the_sequence_and_the_records_are_each_ones_own(fields):
    alike = alike_to(batch_of(b"one"))
    batch = batch_of(b"two", **fields)
    assert read(alike, frame_of(batch, correlation_id=-2)) == (-2, batch, read_header(batch))


def test_the_two_times_are_each_their_own():
    batch = bytearray(batch_of(b"one"))
    header = seal(memoryview(batch), read_header(batch)._replace(base_timestamp=WALL_MS - 7, max_timestamp=WALL_MS + 5))
    assert read(alike_to(batch_of(b"one")), frame_of(bytes(batch))) == (1, batch, header)


def test_a_producers_sequence_goes_on_and_is_none_below_0():
    producer = {"producer_id": 9, "producer_epoch": 1}
    alike = alike_to(batch_of(b"one", base_sequence=0, **producer))
    batch = batch_of(b"two", base_sequence=5, **producer)
    assert read(alike, frame_of(batch)) == (1, batch, read_header(batch))
    assert read(alike, frame_of(batch_of(b"two", base_sequence=-1, **producer))) is None


def test_a_time_past_what_the_topic_takes_is_for_the_rules():
    alike = alike_to(batch_of(b"one"))
    assert read(alike, frame_of(batch_of(b"two", timestamp_ms=LATEST_MS + 1))) is None


def test_a_bit_that_is_flipped_anywhere_but_in_the_correlation_id_makes_it_another():
    batch = batch_of(b"one")
    alike, frame = alike_to(batch), frame_of(batch)
    for position in set(range(len(frame))) - set(range(*CORRELATION_ID.indices(len(frame)))):
        for bit in range(8):
            other = memoryview(bytearray(frame))
            other[position] ^= 1 << bit
            assert read(alike, other) is None, f"bit {bit} of byte {position}"


@pytest.mark.parametrize(
    "change",
    [
        {"base_offset": 1},
        {"leader_epoch": 0},
        {"magic": 1},
        {"attributes": 1},
        {"attributes": 0x20},
        {"last_offset_delta": 1},
        {"producer_id": 3},
        {"producer_epoch": 3},
        {"record_count": 2},
    ],
)
def test_a_header_that_differs_otherwise_is_another_though_its_crc_holds(change):
    batch = batch_of(b"one")
    alike = alike_to(batch)
    other = bytearray(batch)
    seal(memoryview(other), read_header(batch)._replace(**change))
    assert read(alike, frame_of(bytes(other))) is None


def test_a_request_of_another_client_or_of_the_same_length_to_another_topic_is_another():
    batch = batch_of(b"one")
    alike = alike_to(batch)
    assert read(alike, frame_of(batch, client_id="two")) is None
    elsewhere = memoryview(bytearray(bytes(frame_of(batch)).replace(b"flights", b"flightz")))
    assert read(alike, elsewhere) is None


def test_the_batch_is_the_frames_own_memory():
    """The log writes the batch's offset into that memory."""
    batch = batch_of(b"one")
    frame = frame_of(batch)
    _, found, _ = read(alike_to(batch), frame)
    assert found.obj is frame.obj and not found.readonly and len(found) > HEADER_BYTES


def test_of_the_brokers_settings_the_rules_ask_for_none_that_is_altered_while_it_runs():
    """Otherwise batches that passed earlier would have to be validated again. A topic's settings are checked anew."""
    assert "flakelog.max.batch.records" not in DYNAMIC and "message.max.bytes" in DYNAMIC
