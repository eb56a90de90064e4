"""Fetch, v4 to v18: our codec against kio's, which is generated from Kafka's own schema, and against bad bytes."""

import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.storage.memory_storage import MemoryStorage
from broker.wire import cold, fetch, tags
from broker.wire.current_leader import CurrentLeader, NodeEndpoint
from broker.wire.errors import WireError
from broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, IdRegion
from broker.wire.frame import FileRegion, read_request_header, request_header, size_of
from broker.wire.id_entries import pack_entry, seed_of
from broker.wire.primitives import tags as tag_section
from tests.golden.inter_broker_frames import HERE, read

VERSIONS = range(4, 19)
FLEXIBLE = [version for version in VERSIONS if version >= fetch.FLEXIBLE]
IDS = (UUID(int=7), UUID(int=2**127))
RECORDS = b"two batches as they lie in the log" * 9
ENTRIES = pack_entry(seed_of(100), 0, 2, 2**62) + pack_entry(seed_of(100), 2, 1, 2**62 + 5)


def topics(version):
    return IDS if version >= fetch.TOPIC_IDS else ("flights", "weather-ü")


def request_of(version, wants_ids=False):
    a, b = topics(version)
    partitions = [
        FetchPartition(a, 0, 2**40, 1 << 20, 3, 2, 17),
        FetchPartition(a, 1, 0, 100),
        FetchPartition(b, 2**31 - 1, 5, 0),
    ]
    request = FetchRequest(
        500, 1, 50 << 20, partitions, fetch.READ_COMMITTED, 77, 4, ((b, 3), (a, 9)), "rack-1", wants_ids=wants_ids
    )
    return cut_down(version, request)


def cut_down(version, request):
    """Return the request with only the fields that an older version has."""
    partitions = [
        p._replace(
            current_leader_epoch=p.current_leader_epoch if version >= 9 else -1,
            last_fetched_epoch=p.last_fetched_epoch if version >= 12 else -1,
            log_start_offset=p.log_start_offset if version >= 5 else -1,
        )
        for p in request.partitions
    ]
    request = request._replace(partitions=partitions)
    if version < 11:
        request = request._replace(rack="")
    if version < 7:
        request = request._replace(session_id=0, session_epoch=-1, forgotten=())
    return request


def answer_of(version, with_ids=False):
    a, b = topics(version)
    ids = IdRegion(100, ENTRIES) if with_ids else None
    start = 12 if version >= 5 else -1
    partitions = [
        FetchedPartition(a, 0, 0, 2**40, 2**40 - 1, start, ((7, 100), (8, 105)), RECORDS, ids),
        FetchedPartition(a, 1, 1, -1, -1, -1, None, b""),
        FetchedPartition(b, 2, 0, 9, 9, 0 if version >= 5 else -1, (), b""),
    ]
    return FetchResponse(partitions, 71 if version >= 7 else 0, 77 if version >= 7 else 0, 9)


def bytes_of(parts):
    return b"".join(p.file.read(p.position, p.length) if isinstance(p, FileRegion) else bytes(p) for p in parts)


def schema(version, kind, body):
    message = cold.decode(1, version, kind, body, 0, newest=version)
    return message.original, message.tags


# --- the schema as the oracle ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_reads_our_request(version):
    request = request_of(version)
    read, _ = schema(version, "request", fetch.encode_request(version, request))
    name = ("topic_id",) if version >= fetch.TOPIC_IDS else ("topic", "name")
    partitions = [
        FetchPartition(
            topic_of(topic, name), p.partition, p.fetch_offset, p.partition_max_bytes,
            getattr(p, "current_leader_epoch", -1), getattr(p, "last_fetched_epoch", -1),
            getattr(p, "log_start_offset", -1),
        )
        for topic in read.topics for p in topic.partitions
    ]  # fmt: skip
    forgotten = getattr(read, "forgotten_topics_data", ())
    rebuilt = FetchRequest(
        cold.milliseconds(read.max_wait), read.min_bytes, read.max_bytes, partitions, read.isolation_level,
        getattr(read, "session_id", 0), getattr(read, "session_epoch", -1),
        tuple((topic_of(topic, name), p) for topic in forgotten for p in topic.partitions),
        getattr(read, "rack_id", ""),
    )  # fmt: skip
    assert rebuilt == request


def topic_of(topic, names):
    return next(getattr(topic, name) for name in names if hasattr(topic, name))


@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_the_schemas_request(version):
    a, b = topics(version)
    name = "topic_id" if version >= fetch.TOPIC_IDS else "topic"
    request = request_of(version)

    def partition(p):
        fields = {"partition": p.partition, "fetch_offset": p.fetch_offset, "partition_max_bytes": p.max_bytes}
        more = ("current_leader_epoch", "last_fetched_epoch", "log_start_offset")
        return fields | {field: getattr(p, field) for field in more}

    fields = {
        "replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 50 << 20, "isolation_level": 1,
        "session_id": 77, "session_epoch": 4, "rack_id": "rack-1",
        "topics": [
            {name: topic, "partitions": [partition(p) for p in request.partitions if p.topic == topic]}
            for topic in (a, b)
        ],
        "forgotten_topics_data": [{name: b, "partitions": [3]}, {name: a, "partitions": [9]}],
    }  # fmt: skip
    body = cold.encode(1, version, "request", fields)
    assert fetch.decode_request(version, memoryview(body), 0) == request


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("version", FLEXIBLE)
def test_the_schema_reads_our_diverging_epoch(version, with_ids):
    """The epoch is a tag of the schema and comes before our tag (KIP-595)."""
    response = answer_of(version, with_ids)
    response.partitions[0].diverging = (3, 2**40)
    body = bytes_of(fetch.encode_response(version, response))
    read, _ = schema(version, "response", body)
    diverging = [p.diverging_epoch for topic in read.responses for p in topic.partitions]
    assert [(end.epoch, end.end_offset) for end in diverging] == [(3, 2**40), (-1, -1), (-1, -1)]
    assert fetch.decode_response(version, memoryview(body), 0).partitions[0].diverging == (3, 2**40)


@pytest.mark.parametrize("version", [15, 18])
def test_the_schema_reads_a_followers_id(version):
    """The id and the broker epoch are in a tag since v15 (KIP-903)."""
    request = request_of(version, wants_ids=True)._replace(replica_id=3, replica_epoch=2**40)
    body = fetch.encode_request(version, request)
    read, unknown = schema(version, "request", body)
    assert (read.replica_state.replica_id, read.replica_state.replica_epoch) == (3, 2**40) and tags.IDS in unknown
    assert fetch.decode_request(version, memoryview(body), 0) == request


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_reads_our_answer(version, with_ids):
    """Private tags, too, are only tags: a reader that skips unknown tags reads the rest."""
    response = answer_of(version, with_ids and version >= fetch.FLEXIBLE)
    read, _ = schema(version, "response", bytes_of(fetch.encode_response(version, response)))
    name = ("topic_id",) if version >= fetch.TOPIC_IDS else ("topic", "name")
    rebuilt = [
        FetchedPartition(
            topic_of(topic, name), p.partition_index, int(p.error_code), p.high_watermark, p.last_stable_offset,
            getattr(p, "log_start_offset", -1),
            p.aborted_transactions and tuple((t.producer_id, t.first_offset) for t in p.aborted_transactions),
            p.records or b"",
        )
        for topic in read.responses for p in topic.partitions
    ]  # fmt: skip
    assert rebuilt == answer_of(version).partitions
    assert cold.milliseconds(read.throttle_time) == 9
    assert (int(getattr(read, "error_code", 0)), getattr(read, "session_id", 0)) == (
        response.error_code,
        response.session_id,
    )


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_our_own_answer(version, with_ids):
    response = answer_of(version, with_ids and version >= fetch.FLEXIBLE)
    body = bytes_of(fetch.encode_response(version, response))
    assert fetch.decode_response(version, memoryview(body), 0) == response


@pytest.mark.parametrize("entries", [1, 5, 6, 1_000])
def test_few_and_many_ids_of_a_follower_are_read_and_cut_at_any_byte_a_wire_error(entries):
    """Up to 127 bytes of ids are read at once, and more like any other tag."""
    ids = IdRegion(100, b"i" * 20 * entries)
    answered = FetchedPartition(UUID(int=5), 3, 0, 7, 7, 0, None, RECORDS, ids)
    body = bytes_of(fetch.encode_response(17, FetchResponse([answered])))
    assert fetch.decode_response(17, memoryview(body), 0).partitions == [answered]
    for end in range(min(len(body), 300)):
        with pytest.raises(WireError):
            fetch.decode_response(17, memoryview(body)[:end], 0)


def test_partitions_of_two_topics_in_turn_are_grouped_by_topic():
    answered = [FetchedPartition(topic, number) for number in range(2) for topic in ("flights", "trains")]
    body = bytes_of(fetch.encode_response(12, FetchResponse(answered)))
    read = fetch.decode_response(12, memoryview(body), 0).partitions
    assert [(partition.topic, partition.partition) for partition in read] == [
        ("flights", 0), ("flights", 1), ("trains", 0), ("trains", 1)
    ]  # fmt: skip


# --- regions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FLEXIBLE)
def test_records_and_ids_leave_as_regions_between_the_bytes(version):
    """The answer equals the one with the bytes in place, and no bytes of a file are copied."""
    storage = MemoryStorage()
    log, ids = storage.open("log", create=True), storage.open("ids", create=True)
    log.append(b"before" + RECORDS + b"after")
    ids.append(bytes(20) + ENTRIES)
    response = answer_of(version, with_ids=True)
    plain = bytes_of(fetch.encode_response(version, response))
    response.partitions[0].records = FileRegion(log, 6, len(RECORDS))
    response.partitions[0].ids = IdRegion(100, FileRegion(ids, 20, len(ENTRIES)))
    parts = fetch.encode_response(version, response)
    assert [part for part in parts if isinstance(part, FileRegion)] == [
        response.partitions[0].records,
        response.partitions[0].ids.entries,
    ]
    assert bytes_of(parts) == plain and size_of(parts) == len(plain)


def test_an_empty_region_is_no_part_of_its_own():
    file = MemoryStorage().open("log", create=True)
    response = FetchResponse([FetchedPartition("flights", 0, records=FileRegion(file, 0, 0))])
    assert len(fetch.encode_response(12, response)) == 1


# --- tags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FLEXIBLE)
def test_ids_are_asked_for_by_a_private_tag(version):
    body = fetch.encode_request(version, request_of(version, wants_ids=True))
    assert fetch.decode_request(version, memoryview(body), 0).wants_ids
    assert schema(version, "request", body)[1] == {tags.IDS: tags.REQUEST}
    plain = fetch.encode_request(version, request_of(version))
    assert not fetch.decode_request(version, memoryview(plain), 0).wants_ids


@pytest.mark.parametrize("version", [v for v in FLEXIBLE if v >= 15])
def test_a_followers_id_is_read_from_its_tag(version):
    """The replica state is in tag 1 since v15 (KIP-903)."""
    state = {"replica_id": 5, "replica_epoch": 2}
    fields = {"max_wait": 0, "min_bytes": 0, "topics": [], "forgotten_topics_data": [], "replica_state": state}
    body = cold.encode(1, version, "request", fields)
    request = fetch.decode_request(version, memoryview(body), 0)
    assert (request.replica_id, request.replica_epoch) == (5, 2)


@pytest.mark.parametrize("version", FLEXIBLE)
def test_tags_from_the_future_are_passed_over(version):
    """The tags are those of KIP-482."""
    request = request_of(version)
    request = request._replace(partitions=request.partitions[:1], forgotten=(), rack="")
    plain = fetch.encode_request(version, request)
    assert plain.endswith(b"\0\0" + b"\x01" + b"\x01" + b"\0"), "partition, topic; forgotten; rack; top level"
    future = tag_section({4: b"", 9999: b"from the future"})
    body = plain[:-5] + future + future + b"\x01\x01" + tag_section({0: b"\x02c", tags.IDS: tags.REQUEST, 70_000: b"y"})
    assert fetch.decode_request(version, memoryview(body), 0) == request._replace(wants_ids=True)


# --- new leaders (KIP-951) ---------------------------------------------------------------------------------------

NODES = (NodeEndpoint(4, "host-4", 9092, "rack-1"), NodeEndpoint(2, "höst", 2**31 - 1))
LEADERS = CurrentLeader(4, 17, NODES[0]), CurrentLeader(2, 3, NODES[1]), CurrentLeader(-1, 5)


def moved_answer(version):
    """Return two partitions with one leader, one with another, one without, and two that did not move."""
    a, b = topics(version)
    moved = [
        FetchedPartition(topic, partition, code, leader=leader)
        for topic, partition, code, leader in (
            (a, 7, 6, LEADERS[0]), (a, 8, 74, LEADERS[1]), (b, 7, 6, LEADERS[0]), (b, 8, 6, LEADERS[2])
        )
    ]  # fmt: skip
    return FetchResponse([*moved, FetchedPartition(b, 9, 0, 9, 9, 0, (), RECORDS), FetchedPartition(b, 10, 6)], 0, 77)


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 16])
def test_an_answer_names_the_new_leaders_as_the_schemas_writer_does(version):
    response = moved_answer(version)
    partitions = {topic: [] for topic in topics(version)}
    for item in response.partitions:
        fields = {"partition_index": item.partition, "error_code": item.error_code, "records": item.records}
        fields |= {name: getattr(item, name) for name in ("high_watermark", "last_stable_offset", "log_start_offset")}
        fields["aborted_transactions"] = item.aborted
        if item.leader is not None:
            fields["current_leader"] = {"leader_id": item.leader[0], "leader_epoch": item.leader[1]}
        partitions[item.topic].append(fields)
    answer = {
        "session_id": 77,
        "responses": [{"topic_id": topic, "partitions": items} for topic, items in partitions.items()],
        "node_endpoints": [node._asdict() for node in NODES],
    }
    body = bytes_of(fetch.encode_response(version, response))
    assert body == cold.encode(1, version, "response", answer)
    assert fetch.decode_response(version, memoryview(body), 0) == response


@pytest.mark.parametrize("version", [version for version in VERSIONS if version < 16])
def test_an_older_answer_names_no_leader(version):
    unnamed = moved_answer(version)
    for item in unnamed.partitions:
        item.leader = None
    assert bytes_of(fetch.encode_response(version, moved_answer(version))) == bytes_of(
        fetch.encode_response(version, unnamed)
    )


def test_a_diverging_epoch_a_leader_and_ids_are_tags_of_one_partition():
    response = answer_of(17, with_ids=True)
    response.partitions[0].diverging = (3, 2**40)
    response.partitions[0].leader = LEADERS[0]
    body = bytes_of(fetch.encode_response(17, response))
    partition = schema(17, "response", body)[0].responses[0].partitions[0]
    assert (partition.diverging_epoch.epoch, partition.current_leader.leader_epoch) == (3, 17)
    assert fetch.decode_response(17, memoryview(body), 0) == response


@pytest.mark.parametrize("version", [16, 18])
def test_an_answer_with_leaders_cut_at_any_byte_is_a_wire_error(version):
    body = bytes_of(fetch.encode_response(version, moved_answer(version)))
    for size in range(len(body)):
        with pytest.raises(WireError):
            fetch.decode_response(version, memoryview(body[:size]), 0)


# --- Kafka's own followers and leaders ---------------------------------------------------------------------------

FOLLOWERS = read(HERE / "Fetch-v17.txt")


def is_grouped(partitions):
    """Return True if all partitions of a topic are neighbours, as our encoder writes them."""
    topics = [partition.topic for partition in partitions]
    return all(topics.count(topic) == len(topics) - topics[::-1].index(topic) - topics.index(topic) for topic in topics)


@pytest.mark.parametrize("sample", FOLLOWERS)
def test_a_followers_request_is_read_and_written_byte_for_byte(sample):
    header = read_request_header(sample.request)
    written = request_header(1, 17, header.correlation_id, sample.client_id, flexible=True)
    request = fetch.decode_request(17, memoryview(sample.request), len(written))
    values = sample.request_values
    named = [
        (p["Partition"], p["CurrentLeaderEpoch"], p["FetchOffset"], p["LastFetchedEpoch"])
        for topic in values["Topics"] for p in topic["Partitions"]
    ]  # fmt: skip
    assert named == [
        (p.partition, p.current_leader_epoch, p.fetch_offset, p.last_fetched_epoch) for p in request.partitions
    ]
    assert values["ReplicaState"] == {"ReplicaId": request.replica_id, "ReplicaEpoch": request.replica_epoch}
    assert sample.client_id == f"broker-{request.replica_id}-fetcher-0"
    again = written + fetch.encode_request(17, request)
    if is_grouped(request.partitions):
        assert again == sample.request
    else:  # Kafka names a topic again for each partition that has another topic before it
        regrouped = fetch.decode_request(17, memoryview(again), len(written))
        assert sorted(regrouped.partitions) == sorted(request.partitions)


@pytest.mark.parametrize("sample", FOLLOWERS)
def test_the_answer_to_a_follower_is_read_and_written_byte_for_byte(sample):
    response = fetch.decode_response(17, memoryview(sample.response), 5)
    values = sample.response_values
    named = [
        (p["PartitionIndex"], p["ErrorCode"], p["HighWatermark"], p["LastStableOffset"], p["LogStartOffset"])
        for topic in values["Responses"] for p in topic["Partitions"]
    ]  # fmt: skip
    partitions = response.partitions
    assert named == [
        (p.partition, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset) for p in partitions
    ]
    if is_grouped(partitions):
        assert sample.response[:5] + bytes_of(fetch.encode_response(17, response)) == sample.response


def test_kafkas_fetches_name_each_topic_once_but_for_one():
    """The two tests above compare the bytes of all others."""
    bodies = [(sample, read_request_header(sample.request).body + 1) for sample in FOLLOWERS]
    requests = [fetch.decode_request(17, memoryview(sample.request), body) for sample, body in bodies]
    answers = [fetch.decode_response(17, memoryview(sample.response), 5) for sample in FOLLOWERS]
    for messages in (requests, answers):
        assert [is_grouped(message.partitions) for message in messages] == [False, True, True, True, True]


# --- bad bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_at_any_byte_is_a_wire_error(version):
    body = fetch.encode_request(version, request_of(version, wants_ids=version >= fetch.FLEXIBLE))
    for size in range(len(body)):
        with pytest.raises(WireError):
            fetch.decode_request(version, memoryview(body[:size]), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_cut_at_any_byte_is_a_wire_error(version):
    body = bytes_of(fetch.encode_response(version, answer_of(version, with_ids=version >= fetch.FLEXIBLE)))
    for size in range(len(body)):
        with pytest.raises(WireError):
            fetch.decode_response(version, memoryview(body[:size]), 0)


@given(st.sampled_from(VERSIONS), st.booleans(), st.data())
def test_bytes_changed_at_random_are_read_or_a_wire_error(version, is_request, data):
    """No other error is raised (rule 3 of CONTRIBUTING.md)."""
    if is_request:
        body, decode = bytearray(fetch.encode_request(version, request_of(version))), fetch.decode_request
    else:
        body = bytearray(bytes_of(fetch.encode_response(version, answer_of(version, version >= fetch.FLEXIBLE))))
        decode = fetch.decode_response
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
    try:
        decode(version, memoryview(body), 0)
    except WireError as error:
        assert str(error)


@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_garbage_is_read_or_a_wire_error(version, garbage):
    for decode in (fetch.decode_request, fetch.decode_response):
        try:
            decode(version, memoryview(garbage), 0)
        except WireError as error:
            assert str(error)


@pytest.mark.parametrize("version, count", [(4, b"\x3b\x9a\xca\x00"), (12, b"\x81\x94\xeb\xdc\x03")])
@pytest.mark.parametrize("array", ["topics", "partitions", "forgotten"])
def test_an_array_that_claims_a_billion_items_takes_no_memory(version, count, array):
    """The claim is checked against the remaining bytes before memory is allocated (rule 4 of CONTRIBUTING.md)."""
    version = 7 if version == 4 and array == "forgotten" else version
    no_items, one_item = (b"\x01", b"\x02") if version >= 12 else (b"\0\0\0\0", b"\0\0\0\1")
    head = fetch.encode_request(version, FetchRequest(0, 0, 0, []))[: 17 if version == 4 else 25]
    name = b"\x02a" if version >= 12 else b"\0\1a"
    body = head + {"topics": b"", "partitions": one_item + name, "forgotten": no_items + one_item + name}[array] + count
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="1000000000 items"):
            fetch.decode_request(version, memoryview(body + bytes(1000)), 0)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [4, 12])
def test_an_answer_whose_aborted_transactions_claim_a_billion_takes_no_memory(version):
    response = FetchResponse([FetchedPartition("a", 0, aborted=())])
    body = bytes_of(fetch.encode_response(version, response))
    count = b"\x81\x94\xeb\xdc\x03" if version == 12 else b"\x3b\x9a\xca\x00"
    none = b"\x01\xff\xff\xff\xff\x01" if version == 12 else bytes(8)
    at = body.index(none, len(body) - len(none) - (3 if version == 12 else 0))
    width = 1 if version == 12 else 4
    with pytest.raises(WireError):
        fetch.decode_response(version, memoryview(body[:at] + count + body[at + width :]), 0)
