"""Templates of ListOffsets: a frame that has one is read as the full decoder reads it, and has the same answer."""

from functools import partial

import pytest

from broker.wire import cold, list_offsets, tags
from broker.wire.frame import request_header
from broker.wire.list_offsets import FoundOffset, ListOffsetsResponse
from broker.wire.list_offsets_template import ListOffsetsTemplates
from broker.wire.templates import KEY_BYTES_MAX, TemplateStore
from tests.broker.wire.template_checks import decoded_by, opened, taught

VERSIONS = range(1, 12)
LATEST, EARLIEST = -1, -2


def frame_of(version, *timestamps, correlation_id=9, client_id="rdkafka", topic="flights", private=None, **fields):
    """Return a frame without its length that asks of a partition for each timestamp."""
    asked_timestamps = enumerate(timestamps or (LATEST,))
    partitions = [{"partition_index": index, "timestamp": timestamp} for index, timestamp in asked_timestamps]
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": partitions}]} | fields
    header = request_header(list_offsets.API_KEY, version, correlation_id, client_id, version >= list_offsets.FLEXIBLE)
    return memoryview(bytearray(header + cold.encode(list_offsets.API_KEY, version, "request", fields, private)))


decoded = partial(decoded_by, list_offsets)


def learned(*frames):
    """Return templates of frames that were decoded in full."""
    return taught(ListOffsetsTemplates(TemplateStore(100)), list_offsets, frames)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "ü" * 100])
@pytest.mark.parametrize("timestamps", [(LATEST,), (EARLIEST,), (LATEST, EARLIEST, -3)])
def test_a_request_that_repeats_another_is_read_as_by_the_full_decoder(version, client_id, timestamps):
    templates = learned(frame_of(version, *timestamps, client_id=client_id))
    frame = frame_of(version, *timestamps, correlation_id=2**31 - 1, client_id=client_id)
    assert opened(templates, frame) == decoded(frame) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_differs_in_anything_else_has_another_template(version):
    frames = [
        frame_of(version),
        frame_of(version, EARLIEST),
        frame_of(version, LATEST, LATEST),
        frame_of(version, replica_id=-2),
        frame_of(version, topic="trains"),
        frame_of(version, client_id="rdkafke"),
    ]
    for number, frame in enumerate(frames):
        assert opened(learned(*frames[:number]), frame) is None
        assert opened(learned(*frames), frame) == decoded(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_for_a_time_has_none(version):
    """A time is seldom asked for again, so these requests would only drop the templates of others."""
    for timestamps in ((0,), (LATEST, 1_700_000_000_000)):
        frame = frame_of(version, *timestamps)
        assert opened(learned(frame), frame) is None


def test_a_request_by_ids_has_none():
    frame = frame_of(7, private={tags.IDS: tags.REQUEST})
    assert decoded(frame)[3].by_id and opened(learned(frame), frame) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_longer_than_a_key_may_be_has_none(version):
    other_bytes = len(frame_of(version, client_id=""))
    longest, longer = (frame_of(version, client_id="c" * (KEY_BYTES_MAX + more - other_bytes)) for more in (0, 1))
    assert opened(learned(longest), longest) == decoded(longest) is not None
    assert opened(learned(longer), longer) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_that_differs_in_a_bit_or_is_cut_is_read_as_by_the_full_decoder_or_has_none(version):
    whole = frame_of(version)
    templates = learned(whole)
    for position in range(len(whole)):
        assert opened(templates, whole[:position]) is None
        for bit in range(8):
            frame = memoryview(bytearray(whole))
            frame[position] ^= 1 << bit
            assert opened(templates, frame) in (None, decoded(frame))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("numbers", [(0, -1, 2**40, 3), (0, 1_700_000_000_000, 0, 0), (6, -1, -1, -1)])
def test_the_answer_for_one_partition_is_the_one_that_is_encoded_in_full(version, numbers):
    template, *_ = learned(frame_of(version)).open(frame_of(version))
    response = ListOffsetsResponse([FoundOffset("flights", 0, *numbers)])
    reply = template.encode(5, response)
    if version < list_offsets.LEADER_EPOCHS:
        assert reply is None
        return
    tag = b"\0" if version >= list_offsets.FLEXIBLE else b""
    data = (5).to_bytes(4, "big") + tag + list_offsets.encode_response(version, response)
    assert reply == ([len(data).to_bytes(4, "big") + data], 4 + len(data))


def test_the_answer_for_several_partitions_is_left_to_the_full_encoder():
    frame = frame_of(7, LATEST, LATEST)
    template, *_ = learned(frame).open(frame)
    assert template.encode(5, ListOffsetsResponse([FoundOffset("flights", index) for index in range(2)])) is None
