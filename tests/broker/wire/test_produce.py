"""Produce, v3 to v13: our codec against kio's, which is generated from Kafka's own schema, and against bad bytes."""

import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire import cold, produce, tags
from broker.wire.current_leader import CurrentLeader, NodeEndpoint
from broker.wire.errors import WireError
from broker.wire.primitives import tags as tag_section
from broker.wire.produce import PartitionResult, ProduceRequest, RecordError

VERSIONS = range(3, 14)
FLEXIBLE = [version for version in VERSIONS if version >= produce.FLEXIBLE]
IDS = (UUID(int=7), UUID(int=2**127))


def topics(version):
    return IDS if version >= produce.TOPIC_IDS else ("flights", "weather-ü")


def request_of(version, wants_ids=False):
    a, b = topics(version)
    partitions = [
        (a, 0, memoryview(b"batch one")),
        (a, 3, None),
        (b, 2**31 - 1, memoryview(b"")),
    ]
    return ProduceRequest("txn", -1, 30_000, partitions, wants_ids)


def results_of(version):
    a, b = topics(version)
    errors = (RecordError(2, "no good"), RecordError(5, None))
    return [
        PartitionResult(a, 0, 0, 2**40, -1, 12),
        PartitionResult(a, 3, 87, -1, -1, -1, "some were refused", errors),
        PartitionResult(b, 1, 3),
    ]


def seen(version, results):
    """Return the results with only the fields that a version has."""
    lacks = {"log_start_offset": -1} if version < 5 else {}
    lacks |= {"message": None, "record_errors": ()} if version < 8 else {}
    return [result._replace(**lacks) for result in results]


def schema(version, kind, body):
    message = cold.decode(0, version, kind, body, 0, newest=version)
    return message.original, message.tags


# --- the schema as the oracle ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_reads_our_request(version):
    read, _ = schema(version, "request", produce.encode_request(version, request_of(version)))
    assert (read.transactional_id, read.acks, cold.milliseconds(read.timeout)) == ("txn", -1, 30_000)
    name = "topic_id" if version >= produce.TOPIC_IDS else "name"
    partitions = [(getattr(t, name), p.index, p.records) for t in read.topic_data for p in t.partition_data]
    a, b = topics(version)
    assert partitions == [(a, 0, b"batch one"), (a, 3, None), (b, 2**31 - 1, b"")]


@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_the_schemas_request(version):
    a, b = topics(version)
    name = "topic_id" if version >= produce.TOPIC_IDS else "name"
    data = [
        {name: a, "partition_data": [{"index": 0, "records": b"batch one"}, {"index": 3, "records": None}]},
        {name: b, "partition_data": [{"index": 2**31 - 1, "records": b""}]},
    ]
    fields = {"transactional_id": "txn", "acks": -1, "timeout": 30_000, "topic_data": data}
    body = cold.encode(0, version, "request", fields)
    assert produce.decode_request(version, memoryview(body), 0) == request_of(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_reads_our_answer(version):
    read, unknown = schema(version, "response", produce.encode_response(version, results_of(version), throttle_ms=9))
    assert cold.milliseconds(read.throttle_time) == 9 and not unknown
    name = "topic_id" if version >= produce.TOPIC_IDS else "name"
    rebuilt = [
        PartitionResult(
            getattr(topic, name), p.index, int(p.error_code), p.base_offset, -1, getattr(p, "log_start_offset", -1),
            getattr(p, "error_message", None),
            tuple(RecordError(e.batch_index, e.batch_index_error_message) for e in getattr(p, "record_errors", ())),
        )
        for topic in read.responses for p in topic.partition_responses
    ]  # fmt: skip
    assert rebuilt == seen(version, results_of(version))


@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_our_own_answer(version):
    body = produce.encode_response(version, results_of(version))
    assert produce.decode_response(version, memoryview(body), 0) == seen(version, results_of(version))


# --- new leaders (KIP-951) ---------------------------------------------------------------------------------------

NODES = (NodeEndpoint(4, "host-4", 9092, "rack-1"), NodeEndpoint(2, "höst", 2**31 - 1))
LEADERS = CurrentLeader(4, 17, NODES[0]), CurrentLeader(2, 3, NODES[1]), CurrentLeader(-1, 5)


def moved_results(version):
    """Return results of two partitions with one leader, one with another, one without, and two that did not move."""
    a, b = topics(version)
    moved = [
        PartitionResult(topic, partition, 6, leader=leader)
        for topic, partition, leader in ((a, 7, LEADERS[0]), (a, 8, LEADERS[1]), (b, 7, LEADERS[0]), (b, 8, LEADERS[2]))
    ]
    return [*moved, PartitionResult(b, 9, 0, 2**40, -1, 12), PartitionResult(b, 10, 6)]


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 10])
def test_an_answer_names_the_new_leaders_as_the_schemas_writer_does(version):
    results = moved_results(version)
    name = "topic_id" if version >= produce.TOPIC_IDS else "name"
    partitions = {topic: [] for topic in topics(version)}
    for result in results:
        fields = {"index": result.partition, "error_code": result.error_code, "base_offset": result.base_offset}
        fields |= {"log_start_offset": result.log_start_offset, "log_append_time": -1}
        if result.leader is not None:
            fields["current_leader"] = {"leader_id": result.leader[0], "leader_epoch": result.leader[1]}
        partitions[result.topic].append(fields)
    answer = {
        "responses": [{name: topic, "partition_responses": items} for topic, items in partitions.items()],
        "node_endpoints": [node._asdict() for node in NODES],
    }
    body = produce.encode_response(version, results)
    assert body == cold.encode(0, version, "response", answer)
    assert produce.decode_response(version, memoryview(body), 0) == results


@pytest.mark.parametrize("version", [version for version in VERSIONS if version < 10])
def test_an_older_answer_names_no_leader(version):
    unnamed = [result._replace(leader=None) for result in moved_results(version)]
    body = produce.encode_response(version, moved_results(version))
    assert body == produce.encode_response(version, unnamed)
    assert produce.decode_response(version, memoryview(body), 0) == seen(version, unnamed)


def test_a_leader_and_ids_are_tags_of_one_partition():
    """The schema's tag comes first (KIP-482)."""
    both = PartitionResult("flights", 0, 6, runs=((2**62, 7),), leader=LEADERS[0])
    body = produce.encode_response(12, [both])
    read, _ = schema(12, "response", body)
    assert read.responses[0].partition_responses[0].current_leader.leader_id == 4
    assert produce.decode_response(12, memoryview(body), 0) == [both]


def test_a_leader_without_an_address_is_read():
    moved = PartitionResult("flights", 0, 6, leader=CurrentLeader(4, 17))
    assert produce.decode_response(12, memoryview(produce.encode_response(12, [moved])), 0) == [moved]


@pytest.mark.parametrize("version", [10, 13])
def test_an_answer_with_leaders_cut_at_any_byte_is_a_wire_error(version):
    body = produce.encode_response(version, moved_results(version))
    for size in range(len(body)):
        with pytest.raises(WireError):
            produce.decode_response(version, memoryview(body[:size]), 0)


def test_addresses_that_claim_a_billion_nodes_take_no_memory():
    body = produce.encode_response(12, [PartitionResult("flights", 0, 6)])[:-1]
    body += tag_section({0: b"\x81\x94\xeb\xdc\x03" + bytes(100)})
    with pytest.raises(WireError, match="1000000000 items"):
        produce.decode_response(12, memoryview(body), 0)


# --- ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FLEXIBLE)
def test_ids_are_asked_for_and_answered_by_private_tags(version):
    body = produce.encode_request(version, request_of(version, wants_ids=True))
    assert produce.decode_request(version, memoryview(body), 0).wants_ids
    assert schema(version, "request", body)[1] == {tags.IDS: tags.REQUEST}
    results = results_of(version)
    results[0] = results[0]._replace(runs=((2**62, 4096), (2**62 + 2**22, 1)))
    answer = produce.encode_response(version, results)
    assert produce.decode_response(version, memoryview(answer), 0)[0].runs == results[0].runs
    assert schema(version, "response", answer)[0].responses[0].partition_responses[0].base_offset == 2**40


@pytest.mark.parametrize("version", VERSIONS)
def test_who_does_not_ask_does_not_ask(version):
    body = produce.encode_request(version, request_of(version))
    assert not produce.decode_request(version, memoryview(body), 0).wants_ids


@pytest.mark.parametrize("version", FLEXIBLE)
def test_tags_from_the_future_are_passed_over_wherever_they_stand(version):
    """Such tags may be in partitions, in topics and at the top level beside ours (KIP-482)."""
    request = request_of(version)._replace(partitions=request_of(version).partitions[:1])
    plain = produce.encode_request(version, request)
    future = tag_section({0: b"", 9999: b"from the future"})
    assert plain.endswith(b"\0\0\0")
    body = plain[:-3] + future + future + tag_section({3: b"x", tags.IDS: tags.REQUEST, 70_000: b"y"})
    assert produce.decode_request(version, memoryview(body), 0) == request._replace(wants_ids=True)


def test_records_are_a_writable_view_into_the_request():
    """The broker writes the base offset into the request's bytes, so that the hot path makes no copy."""
    body = bytearray(produce.encode_request(9, request_of(9)))
    records = produce.decode_request(9, memoryview(body), 0).partitions[0][2]
    records[0] = ord("B")
    assert b"Batch one" in body


# --- bad bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_at_any_byte_is_a_wire_error(version):
    body = produce.encode_request(version, request_of(version, wants_ids=version >= produce.FLEXIBLE))
    for size in range(len(body)):
        with pytest.raises(WireError):
            produce.decode_request(version, memoryview(body[:size]), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_cut_at_any_byte_is_a_wire_error(version):
    results = results_of(version)
    results[0] = results[0]._replace(runs=((5, 6),))
    body = produce.encode_response(version, results)
    for size in range(len(body)):
        with pytest.raises(WireError):
            produce.decode_response(version, memoryview(body[:size]), 0)


@given(st.sampled_from(VERSIONS), st.data())
def test_bytes_changed_at_random_are_read_or_a_wire_error(version, data):
    """No other error is raised (rule 3 of CONTRIBUTING.md)."""
    encode, decode = data.draw(
        st.sampled_from(
            [
                (lambda: produce.encode_request(version, request_of(version)), produce.decode_request),
                (lambda: produce.encode_response(version, results_of(version)), produce.decode_response),
            ]
        )
    )
    body = bytearray(encode())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
    try:
        decode(version, memoryview(body), 0)
    except WireError as error:
        assert str(error)


@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_garbage_is_read_or_a_wire_error(version, garbage):
    for decode in (produce.decode_request, produce.decode_response):
        try:
            decode(version, memoryview(garbage), 0)
        except WireError as error:
            assert str(error)


@pytest.mark.parametrize("version, count", [(3, b"\x3b\x9a\xca\x00"), (9, b"\x81\x94\xeb\xdc\x03")])
def test_an_array_that_claims_a_billion_items_takes_no_memory(version, count):
    """The claim is checked against the remaining bytes before memory is allocated (rule 4 of CONTRIBUTING.md)."""
    head = produce.encode_request(version, ProduceRequest(None, 1, 1000, [], False))
    head = head[: 8 if version == 3 else 7]
    tracemalloc.start()
    with pytest.raises(WireError, match="1000000000 items"):
        produce.decode_request(version, memoryview(head + count + bytes(1000)), 0)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
