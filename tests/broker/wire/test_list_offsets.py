"""ListOffsets, v1 to v11: our codec against kio's, generated from Kafka's own schema, and against bad bytes."""

import pytest

from broker.wire import cold, list_offsets, tags
from broker.wire.errors import WireError
from broker.wire.list_offsets import FoundOffset, ListOffsetsRequest, ListOffsetsResponse, WantedOffset
from broker.wire.primitives import tags as tag_section

VERSIONS = range(1, 12)
FLEXIBLE = [version for version in VERSIONS if version >= list_offsets.FLEXIBLE]
TOPICS = ("flights", [(0, -1, 3), (2**31 - 1, 2**62, 0)]), ("weather-ü", [(7, -2, -1)])


def body_of(version, private=None):
    topics = [
        {
            "name": name,
            "partitions": [
                {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
                for index, timestamp, epoch in partitions
            ],
        }
        for name, partitions in TOPICS
    ]
    fields = {"replica_id": -2, "isolation_level": 1, "topics": topics, "timeout": 30_000}
    return cold.encode(list_offsets.API_KEY, version, "request", fields, private)


def decoded(version, body):
    return list_offsets.decode_request(version, memoryview(body), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_as_the_schema_says(version):
    epochs = version >= 4
    partitions = [
        WantedOffset(name, index, timestamp, epoch if epochs else -1)
        for name, wanted in TOPICS
        for index, timestamp, epoch in wanted
    ]
    assert decoded(version, body_of(version)) == ListOffsetsRequest(-2, int(version >= 2), partitions)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_written_as_the_schema_says(version):
    results = [
        FoundOffset("flights", 0, 0, 2**50, 2**40, 4),
        FoundOffset("flights", 5, 1),
        FoundOffset("weather-ü", 2**31 - 1, 3, -1, 8, 0),
    ]
    body = list_offsets.encode_response(version, ListOffsetsResponse(results), throttle_ms=5)
    answer = cold.decode(list_offsets.API_KEY, version, "response", body, 0, version).original
    rows = [
        (
            topic.name,
            partition.partition_index,
            int(partition.error_code),
            partition.offset,
            getattr(partition, "leader_epoch", None),
        )
        for topic in answer.topics
        for partition in topic.partitions
    ]
    epochs = [result.leader_epoch if version >= 4 else None for result in results]
    assert rows == [
        (result.topic, result.partition, result.error_code, result.offset, epoch)
        for result, epoch in zip(results, epochs, strict=True)
    ]
    assert [topic.name for topic in answer.topics] == ["flights", "weather-ü"]


@pytest.mark.parametrize("version", FLEXIBLE)
def test_ids_are_asked_for_and_answered_by_a_tag(version):
    assert decoded(version, body_of(version, {tags.IDS: tags.REQUEST})).by_id
    body = list_offsets.encode_response(version, ListOffsetsResponse([], by_id=True))
    assert tags.IDS in cold.decode(list_offsets.API_KEY, version, "response", body, 0, version).tags


@pytest.mark.parametrize("version", FLEXIBLE)
def test_unknown_tags_are_skipped(version):
    strange = tag_section({3: b"what is this", 40_000: b""})
    name = b"\x08flights"
    partition = bytes(4) + b"\xff" * 4 + b"\xff" * 8 + strange
    timeout = bytes(4) if version >= 10 else b""
    body = b"\xff\xff\xff\xff\0" + b"\2" + name + b"\2" + partition + strange + timeout + strange
    assert decoded(version, body).partitions == [WantedOffset("flights", 0, -1, -1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_is_cut_short_anywhere_is_refused(version):
    body = body_of(version)
    timeout_bytes = 4 if list_offsets.TIMEOUT <= version else 0
    for size in range(len(body) - (timeout_bytes if version < list_offsets.FLEXIBLE else 0)):
        with pytest.raises(WireError):
            decoded(version, body[:size])


@pytest.mark.parametrize("version, null", [(5, b"\xff\xff\xff\xff"), (7, b"\0"), (7, b"\x80\0")])
def test_null_stands_for_no_array_and_no_name(version, null):
    head = b"\xff\xff\xff\xff\0"
    one_item = b"\0\0\0\1" if version == 5 else b"\2"
    no_name = b"\xff\xff" if version == 5 else b"\0"
    name = b"\0\1t" if version == 5 else b"\2t"
    bodies = {"topics is null": null, "name is null": one_item + no_name, "partitions is null": one_item + name + null}
    for reason, body in bodies.items():
        with pytest.raises(WireError, match=reason):
            decoded(version, head + body + bytes(30))


def test_an_array_that_cannot_be_there_is_refused_before_it_takes_memory():
    with pytest.raises(WireError, match="says 2147483647 items"):
        decoded(5, b"\xff\xff\xff\xff\0" + b"\x7f\xff\xff\xff" + bytes(100))
