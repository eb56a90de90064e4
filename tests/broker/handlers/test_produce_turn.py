"""Produce requests that repeat earlier ones, and several of them in one turn: they share the writes, not the faults.

A request for one partition has a template, so that only its records are decoded anew. A client id of more than
KEY_BYTES_MAX bytes keeps its requests from having one.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log import log_reader
from broker.wire.errors import ErrorCode
from broker.wire.produce import PartitionRecords, ProduceRequest
from broker.wire.templates import KEY_BYTES_MAX
from tests.broker.engine_client import (
    CREATE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
    values_of,
)
from tests.broker.watched_storage import WatchedStorage, active

VERSIONS = range(5, 13)  # the versions that name topics by name and answer with the log start offset
LONG_ID = "x" * (KEY_BYTES_MAX + 1)


@pytest.fixture
def broker():
    broker = EngineBroker(WatchedStorage())
    broker.create("flights")
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_that_of_a_request_without_a_template(broker, version):
    short, long = broker.connect(), broker.connect(LONG_ID)
    short.produce("flights", b"first", version=version)
    by_template = short.produce("flights", b"one", b"two", version=version)
    decoded = long.produce("flights", b"one", b"two", version=version)
    assert by_template._replace(base_offset=3) == decoded
    assert long.fetch("flights") == [b"first", b"one", b"two", b"one", b"two"]


@pytest.mark.parametrize("version", VERSIONS)
def test_so_is_that_of_one_as_long_as_those_before_it(broker, version):
    short, long = broker.connect(), broker.connect(LONG_ID)
    for value in (b"one", b"two", b"six"):
        short.produce("flights", value, version=version)
    by_template = short.produce("flights", b"ten", version=version)
    decoded = long.produce("flights", b"ten", version=version)
    assert by_template._replace(base_offset=4) == decoded
    assert long.fetch("flights") == [b"one", b"two", b"six", b"ten", b"ten"]


def test_what_was_let_pass_before_is_refused_once_a_setting_says_so(broker):
    client = broker.connect()
    for _ in range(4):
        client.produce("flights", b"one")
    broker.services.alter_broker("", {"message.max.bytes": "50"})
    assert client.produce("flights", b"one").error_code == ErrorCode.MESSAGE_TOO_LARGE
    broker.services.alter_broker("", {})
    assert client.produce("flights", b"one").base_offset == 4


def test_a_producers_batches_of_one_size_are_each_known_again(broker):
    """A duplicate gets the first one's answer, and a gap is refused (KIP-98)."""
    client = broker.connect()

    def produce(sequence):
        return client.ask(PRODUCE, 9, produce_request("flights", batch=of_producer(b"x", sequence)))[0]

    assert [produce(sequence).base_offset for sequence in (0, 1, 2, 3, 4, 3, 5)] == [0, 1, 2, 3, 4, 3, 5]
    assert produce(7).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(6).base_offset == 6


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("size", [1, 20, 100, 16_000, 500_000])
def test_records_may_have_any_size(broker, version, size):
    client = broker.connect()
    client.produce("flights", b"first", version=version)
    client.produce("flights", bytes(size), version=version)
    assert [len(value) for value in client.fetch("flights", max_bytes=10**7)] == [5, size]


@pytest.mark.parametrize("around", [128, 16_384])
def test_sizes_that_go_to_and_fro_where_their_length_takes_a_byte_more_are_all_read(broker, around):
    client = broker.connect()
    client.produce("flights", b"first")
    overhead = len(batch_of(b""))
    sizes = [around - overhead + more for n in range(30) for more in (-n, n)]
    for offset, size in enumerate(sizes, 1):
        assert client.produce("flights", bytes(size)).base_offset == offset
    assert [len(value) for value in client.fetch("flights")] == [5, *sizes]


def test_a_length_that_is_spelled_with_a_byte_too_many_is_read_all_the_same(broker):
    client = broker.connect()
    client.produce("flights", b"first")
    _, frame = client.frame(PRODUCE, 9, produce_request("flights", b"second"))
    at = len(frame) - len(batch_of(b"second")) - 4  # three empty tag sections follow the records
    spelled = frame[4:at] + bytes([frame[at] | 0x80, 0]) + frame[at + 1 :]
    client.feed(len(spelled).to_bytes(4, "big") + spelled)
    ((_, (result,)),) = client.replies()
    assert (result.error_code, result.base_offset) == (0, 1)
    assert client.fetch("flights") == [b"first", b"second"]


@pytest.mark.parametrize("version", [8, 9])
def test_a_length_that_says_more_than_there_is_closes_the_connection_here_too(broker, version):
    client = broker.connect()
    client.produce("flights", b"first", version=version)
    _, frame = client.frame(PRODUCE, version, produce_request("flights", b"second"))
    size = len(batch_of(b"second"))
    at = len(frame) - size - (4 if version >= 9 else 1)  # the last byte of the length
    client.feed(frame[:at] + bytes([frame[at] + 9]) + frame[at + 1 :])
    assert "records say" in client.closed
    assert broker.connect().fetch("flights") == [b"first"]


def test_a_topic_named_by_its_id_too(broker):
    client = broker.connect()
    topic = broker.services.metadata.topic("flights").id
    for value in (b"one", b"two", b"three"):
        assert client.produce(topic, value, version=13).error_code == 0
    assert client.fetch("flights") == [b"one", b"two", b"three"]


def test_another_partition_client_or_version_in_between_is_not_mistaken_for_it(broker):
    broker.create("trains", partitions=2)
    client = broker.connect()
    for version in (9, 10):
        client.produce("flights", b"f", version=version)
        client.produce("flights", b"f", version=version)
        client.produce("trains", b"0", version=version)
        client.produce("trains", b"1", partition=1, version=version)
        client.produce("trains", b"1", partition=1, version=version)
    assert client.fetch("flights") == [b"f"] * 4
    assert client.fetch("trains") == [b"0"] * 2
    assert client.fetch("trains", partition=1) == [b"1"] * 4


def test_who_asks_for_ids_gets_them_after_requests_that_did_not(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    assert client.produce("flights", b"three", wants_ids=True).runs
    assert not client.produce("flights", b"four").runs


def test_a_request_without_acks_has_no_answer_after_ones_with(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    client.send(PRODUCE, 9, produce_request("flights", b"three", acks=0))
    assert client.replies() == []
    assert client.fetch("flights") == [b"one", b"two", b"three"]


def test_a_topic_deleted_and_made_again_is_another_log(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    broker.delete("flights")
    assert client.produce("flights", b"three").error_code == 3
    broker.create("flights")
    assert client.produce("flights", b"four").base_offset == 0
    assert client.fetch("flights") == [b"four"]


def test_a_corrupt_batch_is_refused_and_the_next_one_is_not(broker):
    client = broker.connect()
    for offset in range(6):
        bad = bytearray(batch_of(b"bad"))
        bad[-1] ^= 1
        assert client.produce("flights", b"one").base_offset == offset
        result = client.ask(PRODUCE, 9, produce_request("flights", batch=bad))[0]
        assert result.error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_batch_of_a_transaction_that_the_request_does_not_name_is_refused_each_time(broker, before):
    client = broker.connect()
    for _ in range(before):
        client.produce("flights", b"one")
    batch = batch_of(b"two", transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(4):
        result = client.ask(PRODUCE, 9, produce_request("flights", batch=batch))[0]
        assert result.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert client.fetch("flights") == [b"one"] * before


def test_a_disk_that_becomes_full_is_answered_as_such(broker):
    """The batch is left as it was sent, so a later one is appended in its place."""
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    broker.storage.free_bytes = 0
    assert client.produce("flights", b"three").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.storage.free_bytes = None
    assert client.produce("flights", b"four").base_offset == 2


def test_an_answer_waits_its_turn_behind_a_request_that_waits(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    waiting = client.send(FETCH, 12, fetch_request("flights", 2, max_wait_ms=500))
    produced = client.send(PRODUCE, 9, produce_request("flights", b"three"))
    assert [correlation_id for correlation_id, _ in client.replies()] == [waiting, produced]


@pytest.mark.parametrize("version", [9, 5])
def test_every_cut_of_a_repeated_frame_is_refused_like_the_first_one(broker, version):
    """A template must not read past a frame or accept half of one."""
    client = broker.connect()
    client.produce("flights", b"one", version=version)
    _, whole = client.frame(PRODUCE, version, produce_request("flights", b"two"))
    for end in range(len(whole) - 1, 8, -1):
        each = broker.connect()
        each.produce("flights", b"x", version=version)
        before = broker.services.logs.get("flights", 0).log_end_offset
        cut = whole[4:end]
        each.feed(len(cut).to_bytes(4, "big") + cut)
        assert broker.services.logs.get("flights", 0).log_end_offset == before


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_that_there_are_not_are_refused_each_time(broker, acks):
    client = broker.connect()
    for _ in range(3):
        assert client.produce("flights", b"one", acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.fetch("flights") == []


# --- several requests in one turn ------------------------------------------------------------------------------------


def producing(*values, **more):
    return PRODUCE, 9, produce_request("flights", *values, **more)


def producing_to(*partitions, value=b"x", acks=1):
    """Return a request for several (topic, partition)."""
    parts = [PartitionRecords(topic, number, memoryview(batch_of(value))) for topic, number in partitions]
    return PRODUCE, 9, ProduceRequest(None, acks, 30_000, parts, False)


def offsets_of(client):
    return [result.base_offset for _, results in client.replies() for result in results]


def test_what_one_connection_pipelines_is_one_write(broker):
    client = broker.connect()
    before = broker.storage.writes_of(broker, "flights")
    client.send_together(*[producing(b"%d" % n) for n in range(20)])
    assert offsets_of(client) == list(range(20))
    assert broker.storage.writes_of(broker, "flights") == before + 1
    assert client.fetch("flights") == [b"%d" % n for n in range(20)]


def test_the_idempotent_batches_a_producer_has_in_flight_are_one_write(broker):
    """Stock producers have five in flight (max.in.flight.requests.per.connection)."""
    client = broker.connect()
    before = broker.storage.writes_of(broker, "flights")
    batches = [of_producer(b"%d" % sequence, sequence) for sequence in range(5)]
    client.send_together(*[producing(batch=batch) for batch in batches])
    assert offsets_of(client) == list(range(5))
    assert broker.storage.writes_of(broker, "flights") == before + 1


@pytest.mark.parametrize("sequence", [2**31 - 3, 2**31 - 2, 2**31 - 1])
def test_sequences_go_on_from_0_after_the_largest_also_within_a_write(broker, sequence):
    """A sequence is an int32 that wraps to 0 (Kafka's DefaultRecordBatch.incrementSequence)."""
    client = broker.connect()
    client.ask(*producing(batch=of_producer(b"first", sequence)))
    before = broker.storage.writes_of(broker, "flights")
    following = [(sequence + 1 + n) % 2**31 for n in range(4)]
    client.send_together(*[producing(batch=of_producer(b"x", each)) for each in following])
    assert offsets_of(client) == [1, 2, 3, 4]
    assert broker.storage.writes_of(broker, "flights") == before + 1


def test_requests_for_several_partitions_share_one_write_a_log(broker):
    broker.create("trains", partitions=2)
    logs = [("flights", 0), ("trains", 0), ("trains", 1)]
    clients = [broker.connect() for _ in range(4)]
    before = [broker.storage.writes_of(broker, *log) for log in logs]
    with broker.turn():
        for number, client in enumerate(clients):
            client.send(*producing_to(*logs, value=b"%d" % number))
    assert [offsets_of(client) for client in clients] == [[number] * 3 for number in range(4)]
    assert [broker.storage.writes_of(broker, *log) for log in logs] == [count + 1 for count in before]


def test_requests_of_every_kind_share_one_write(broker):
    """Such as repeat an earlier one, do not, want ids or no answer, name the topic otherwise, or several partitions."""
    broker.create("trains")
    topic = broker.services.metadata.topic("flights").id
    clients = [broker.connect(), broker.connect(LONG_ID), *(broker.connect() for _ in range(4))]
    clients[0].produce("flights", b"first")
    before = broker.storage.writes_of(broker, "flights")
    kinds = [
        producing(b"a"),
        producing(b"b"),
        producing(b"c", wants_ids=True),
        producing(b"d", acks=0),
        (PRODUCE, 13, produce_request(topic, b"e")),
        producing_to(("flights", 0), ("trains", 0)),
    ]
    with broker.turn():
        for client, kind in zip(clients, kinds, strict=True):
            client.send(*kind)
    assert [offsets_of(client) for client in clients] == [[1], [2], [3], [], [5], [6, 0]]
    assert broker.storage.writes_of(broker, "flights") == before + 1


def test_each_gets_the_ids_of_its_own_records_in_a_write_of_many(broker):
    clients = [broker.connect() for _ in range(3)]
    with broker.turn():
        for number, client in enumerate(clients, 1):
            client.send(*producing(*[b"x"] * number, wants_ids=True))
    found = [client.replies()[0][1][0] for client in clients]
    log = broker.services.log_of("flights", 0)
    for number, result in enumerate(found, 1):
        ids = log_reader.ids_of(log, result.base_offset, result.base_offset + number)
        assert flattened(result.runs) == flattened(ids)


def connected(broker, number, topic="flights"):
    """Return clients that have produced a record each."""
    clients = [broker.connect() for _ in range(number)]
    for client in clients:
        client.produce(topic, b"first")
    return clients


def produced_in_one_turn(broker, clients, batches, topic="flights"):
    """Send one batch from each client in one turn; return the results, by client."""
    with broker.turn():
        for client, batch in zip(clients, batches, strict=True):
            client.send(PRODUCE, 9, produce_request(topic, batch=batch))
    return [client.replies()[0][1][0] for client in clients]


def test_requests_of_one_turn_are_appended_in_their_order(broker):
    clients = connected(broker, 4)
    results = produced_in_one_turn(broker, clients, [batch_of(b"%d" % n, b"+") for n in range(4)])
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 4), (0, 6), (0, 8), (0, 10)]
    assert clients[0].fetch("flights", 4) == [b"0", b"+", b"1", b"+", b"2", b"+", b"3", b"+"]
    ids = flattened(log_reader.ids_of(broker.services.log_of("flights", 0), 0, 12))
    assert len(ids) == 12 and ids == sorted(set(ids))
    again = broker.restarted(clean=False)
    assert flattened(log_reader.ids_of(again.services.log_of("flights", 0), 0, 12)) == ids


def flattened(runs):
    return [first + n for first, length in runs for n in range(length)]


def test_one_that_is_refused_takes_nothing_from_the_others(broker):
    clients = connected(broker, 3)
    bad = bytearray(batch_of(b"bad"))
    bad[-1] ^= 1
    results = produced_in_one_turn(broker, clients, [batch_of(b"a"), bad, batch_of(b"b")])
    assert [result.error_code for result in results] == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    assert clients[0].fetch("flights", 3) == [b"a", b"b"]


def of_producer(value, sequence, producer_id=7):
    return batch_of(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def test_a_producers_batch_that_comes_by_two_connections_is_written_once(broker):
    """The producer gave up on a connection and sends again on another, while the first's bytes still come (KIP-98)."""
    clients = connected(broker, 3)
    results = produced_in_one_turn(broker, clients, [of_producer(b"a", 0), batch_of(b"other"), of_producer(b"a", 0)])
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 3), (0, 4), (0, 3)]
    assert clients[0].fetch("flights", 3) == [b"a", b"other"]


def test_producers_that_go_on_and_one_that_leaves_a_gap(broker):
    clients = connected(broker, 3)
    begun = [of_producer(b"a", 0, producer_id=n) for n in range(3)]
    assert [result.error_code for result in produced_in_one_turn(broker, clients, begun)] == [0, 0, 0]
    on = [of_producer(b"b", 1, 0), of_producer(b"c", 5, 1), of_producer(b"d", 1, 2)]
    results = produced_in_one_turn(broker, clients, on)
    assert [result.error_code for result in results] == [0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]
    assert clients[0].fetch("flights", 6) == [b"b", b"d"]


def test_what_one_connection_sends_in_one_turn_is_answered_in_order(broker):
    first, second = connected(broker, 2)
    with broker.turn():
        frames = [first.frame(PRODUCE, 9, produce_request("flights", b"%d" % n)) for n in range(5)]
        first.feed(b"".join(data for _, data in frames[:3]))
        second.send(PRODUCE, 9, produce_request("flights", b"other"))
        first.feed(b"".join(data for _, data in frames[3:]))
    answers = first.replies()
    assert [answered for answered, _ in answers] == [sent for sent, _ in frames]
    assert len(second.replies()) == 1
    offsets = [result.base_offset for _, (result,) in answers]
    assert offsets == sorted(offsets)
    values = second.fetch("flights", 2)
    assert [values[offset - 2] for offset in offsets] == [b"0", b"1", b"2", b"3", b"4"] and b"other" in values


def test_a_fetch_sees_what_was_produced_before_it_in_the_turn(broker):
    producer, consumer = connected(broker, 2)
    with broker.turn():
        producer.send(PRODUCE, 9, produce_request("flights", b"new"))
        consumer.send(FETCH, 12, fetch_request("flights", 2))
    assert values_of(consumer.replies()[0][1]) == [b"new"]


def test_a_segment_that_is_full_in_the_middle_of_a_turn_is_followed_by_the_next():
    broker = EngineBroker()
    broker.create("flights", segment_bytes=1024)
    clients = connected(broker, 9)
    values = [b"%d" % n + bytes(200) for n in range(9)]
    results = produced_in_one_turn(broker, clients, [batch_of(value) for value in values])
    assert [result.base_offset for result in results] == list(range(9, 18))
    log = broker.services.log_of("flights", 0)
    assert len(log.segments.all) > 3 and all(segment.size <= 1024 for segment in log.segments.all)
    again = broker.restarted(clean=False).connect()
    found = [value for offset in range(9, 18) for value in again.fetch("flights", offset)[:1]]
    assert found == values


def test_a_disk_that_becomes_full_in_a_turn_refuses_all_of_it_and_loses_nothing(broker):
    clients = connected(broker, 3)
    broker.storage.free_bytes = 100
    results = produced_in_one_turn(broker, clients, [batch_of(b"%d" % n) for n in range(3)])
    assert [result.error_code for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    broker.storage.free_bytes = None
    assert clients[0].produce("flights", b"after").base_offset == 3
    again = broker.restarted(clean=False).connect()
    assert again.fetch("flights") == [b"first", b"first", b"first", b"after"]


def test_a_batch_that_the_log_has_is_answered_as_the_first_time_beside_new_ones(broker):
    """The producer did not get the answers of its last turn, and sends on (KIP-98)."""
    client = broker.connect()
    client.send_together(*[producing(batch=of_producer(b"%d" % n, n)) for n in range(3)])
    assert offsets_of(client) == [0, 1, 2]
    client.send_together(*[producing(batch=of_producer(b"%d" % n, n)) for n in (1, 2, 3, 4)])
    assert offsets_of(client) == [1, 2, 3, 4]
    assert client.fetch("flights") == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_request_without_acks_that_fails_closes_its_connection_after_the_answers_before_it(broker, others):
    """What follows on the connection is not executed, because the client learns of the failure by its end."""
    client, others = broker.connect(), [broker.connect() for _ in range(others)]
    bad = bytearray(batch_of(b"bad"))
    bad[-1] ^= 1
    with broker.turn():
        first, *_ = client.send_together(
            producing(b"a"), producing(b"b", acks=0), producing(batch=bad, acks=0), producing(b"c")
        )
        sent = [other.send_together(*[producing(b"other")] * 4) for other in others]
    assert client.answered() == [first] and "acks=0" in client.closed
    assert [other.answered() for other in others] == sent
    values = broker.connect().fetch("flights")
    assert [value for value in values if value != b"other"] == [b"a", b"b"]


def test_nothing_is_executed_for_a_connection_that_closes_before_its_turn(broker):
    gone, stays = broker.connect(), broker.connect()
    with broker.turn():
        gone.send_together(producing(b"a"), producing(b"b"))
        stays.send(*producing(b"c"))
        broker.engine.closed(gone.conn)
    assert offsets_of(stays) == [0] and gone.answered() == []
    assert stays.fetch("flights") == [b"c"]


# --- a fault of our own ----------------------------------------------------------------------------------------------

FAULT = "a fault of the broker's own; see the log"


def test_a_fault_in_a_write_closes_those_it_was_for_and_no_others(broker):
    broker.create("trains")
    one, two, other = broker.connect(), broker.connect(), broker.connect()
    broker.storage.faults[active(broker, "flights")] = MemoryError("on purpose")
    with broker.turn():
        for client in (one, two):
            client.send(*producing(b"lost"))
        other.send(PRODUCE, 9, produce_request("trains", b"kept"))
    assert (one.closed, two.closed, other.closed) == (FAULT, FAULT, None)
    assert offsets_of(other) == [0]
    (told,) = broker.reported
    assert "MemoryError: on purpose" in told and one.conn.peer in told and two.conn.peer in told
    broker.storage.faults.clear()
    assert broker.connect().produce("flights", b"after").base_offset == 0
    assert broker.restarted(clean=False).connect().fetch("flights") == [b"after"]


def test_what_a_connection_pipelined_behind_a_fault_is_not_answered(broker):
    """Its client would take that answer for the one of the request before, which is never answered."""
    broker.create("trains")
    client = broker.connect()
    broker.storage.faults[active(broker, "flights")] = MemoryError("on purpose")
    trains = PRODUCE, 9, produce_request("trains", b"x")
    sent = client.send_together(trains, producing(b"lost"), trains, trains)
    assert client.answered() == sent[:1] and client.closed == FAULT


@pytest.mark.parametrize("request_", [producing_to(("new", 1)), producing_to(("flights", 0), ("new", 1))])
def test_a_fault_before_the_write_closes_its_connection_and_nothing_of_the_request_is_written(request_):
    """The log of a new topic is made when its first request comes."""
    broker = EngineBroker(WatchedStorage(), max_new_logs_at_once=1)
    broker.create("flights")
    unlucky, lucky = broker.connect(), broker.connect()
    topic = {"name": "new", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
    lucky.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
    assert broker.services.logs.to_make == 1
    broker.storage.faults[f"new-1/{0:020d}.log"] = MemoryError("on purpose")
    with broker.turn():
        unlucky.send_together(producing(b"before"), request_, producing(b"after"))
        lucky.send_together(*[producing(b"%d" % n) for n in range(3)])
    assert unlucky.answered() == [1] and unlucky.closed == FAULT
    assert len(lucky.answered()) == 3 and lucky.closed is None
    assert sorted(lucky.fetch("flights")) == [b"0", b"1", b"2", b"before"]
    assert len(broker.reported) == 1 and unlucky.conn.peer in broker.reported[0]


# --- partitions ------------------------------------------------------------------------------------------------------


def test_a_turn_on_many_partitions_goes_to_each():
    broker = EngineBroker()
    broker.create("flights", partitions=3)
    clients = [broker.connect() for _ in range(6)]
    for round_ in range(2):
        with broker.turn():
            for number, client in enumerate(clients):
                client.send(PRODUCE, 9, produce_request("flights", b"%d" % number, partition=number % 3))
        offsets = [client.replies()[0][1][0].base_offset for client in clients]
        assert offsets == [2 * round_] * 3 + [2 * round_ + 1] * 3
    assert clients[0].fetch("flights", partition=1) == [b"1", b"4"] * 2


# --- with durable acks -----------------------------------------------------------------------------------------------


@pytest.fixture
def durable():
    broker = EngineBroker()
    broker.create("flights", flakelog_durable_acks="true")
    return broker


def test_those_of_a_turn_are_answered_by_one_sync(durable):
    clients = connected(durable, 3)
    held = durable.hold_syncs()
    with durable.turn():
        sent = [client.send(PRODUCE, 9, produce_request("flights", b"x")) for client in clients]
    assert [type(sync).__name__ for sync in held] == ["SyncJournal"]
    assert [client.replies() for client in clients] == [[], [], []]
    clients[1].send(PRODUCE, 9, produce_request("flights", b"next"))
    durable.release()
    answered = [[(id, result[0].base_offset) for id, result in client.replies()] for client in clients]
    assert answered == [[(sent[0], 3)], [(sent[1], 4), (sent[1] + 1, 6)], [(sent[2], 5)]]


def test_a_connection_that_goes_does_not_take_the_others_answers_with_it(durable):
    gone, stays = connected(durable, 2)
    durable.hold_syncs()
    with durable.turn():
        for client in (gone, stays):
            client.send(PRODUCE, 9, produce_request("flights", b"x"))
    durable.engine.closed(gone.conn)
    durable.release()
    assert stays.replies()[0][1][0].base_offset == 3
    assert stays.fetch("flights") == [b"first", b"first", b"x", b"x"]


def test_a_disk_that_is_too_slow_is_a_timeout_for_each_and_a_failed_one_an_error(durable):
    clients = connected(durable, 2)
    held = durable.hold_syncs()
    with durable.turn():
        for client in clients:
            client.send(PRODUCE, 9, produce_request("flights", b"x"))
    durable.at(durable.now_ms + 30_001)
    late = [client.replies()[0][1][0] for client in clients]
    assert [result.error_code for result in late] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert "the disk takes longer" in late[0].message and late[0].base_offset == -1
    with durable.turn():
        for client in clients:
            client.send(PRODUCE, 9, produce_request("flights", b"y"))
    durable.storage.failing_syncs.add(held[0].file.path)
    durable.release()
    assert [client.replies()[0][1][0].error_code for client in clients] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_answers_of_a_turn_leave_in_order_whichever_of_them_wait_for_the_disk(durable):
    durable.create("fast")
    client = durable.connect()
    durable.hold_syncs()
    fast = PRODUCE, 9, produce_request("fast", b"b")
    sent = client.send_together(producing(b"a"), fast, producing(b"c"), (METADATA, 1, {"topics": []}), fast)
    assert client.answered() == []
    durable.release()
    assert client.answered() == sent


@pytest.mark.parametrize("timeouts", [(1_000, 2_000, 1_000), (2_000, 1_000, 2_000)])
def test_answers_of_a_turn_leave_in_order_though_they_wait_differently_long(durable, timeouts):
    client = durable.connect()
    held = durable.hold_syncs()
    requests = [produce_request("flights", b"x")._replace(timeout_ms=timeout) for timeout in timeouts]
    sent = client.send_together(*[(PRODUCE, 9, request) for request in requests])
    assert len(held) == 1
    durable.at(durable.now_ms + 1_000)
    durable.release()
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == sent
    late = [ErrorCode.REQUEST_TIMED_OUT if timeout == 1_000 else 0 for timeout in timeouts]
    assert [result.error_code for _, (result,) in answers] == late


def test_answers_of_a_turn_leave_in_order_though_they_wait_for_different_syncs(durable):
    """A topic with flush.messages=1 is synced by itself, without the journal."""
    durable.create("trains", flush_messages=1)
    client = durable.connect()
    held = durable.hold_syncs()
    trains = PRODUCE, 9, produce_request("trains", b"b")
    sent = client.send_together(producing(b"a"), trains, producing(b"c"), trains)
    assert sorted(type(sync).__name__ for sync in held) == ["SyncJournal", "SyncLog"]
    for sync in sorted(held, key=lambda sync: type(sync).__name__, reverse=True):
        held.remove(sync)
        durable.run(sync)
        durable.pump()
    durable.release()
    assert client.answered() == sent


def test_a_refusal_waits_for_the_answers_before_it(durable):
    client = durable.connect()
    durable.hold_syncs()
    sent = client.send_together(producing(b"a"), producing(b"b", partition=7), producing(b"c"))
    assert client.answered() == []
    durable.release()
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert [result.error_code for _, (result,) in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


# --- whatever the turn -----------------------------------------------------------------------------------------------

KINDS = st.one_of(
    st.builds(lambda sequence, epoch: ("producer", sequence, epoch), st.integers(0, 4), st.integers(0, 1)),
    st.sampled_from(["plain", "plain", "two records", "corrupt", "nowhere", "two partitions", "fetch", "metadata"]),
    st.sampled_from(["silent", "silent and corrupt", "two and one corrupt", "old"]),
)


def request_of(kind):
    """Return one request (API key, version, fields)."""
    corrupt = bytearray(batch_of(b"corrupt"))
    corrupt[-1] ^= 1
    if isinstance(kind, tuple):
        _, sequence, epoch = kind
        batch = batch_of(b"%d" % sequence, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        return PRODUCE, 9, produce_request("flights", batch=batch)
    if kind == "two and one corrupt":
        key, version, request = producing_to(("flights", 0), ("flights", 1))
        request.partitions[0] = request.partitions[0]._replace(records=memoryview(corrupt))
        return key, version, request
    return {
        "plain": lambda: producing(b"plain"),
        "two records": lambda: producing(b"one", b"two"),
        "corrupt": lambda: producing(batch=corrupt),
        "nowhere": lambda: producing(b"nowhere", partition=9),
        "two partitions": lambda: producing_to(("flights", 1), ("flights", 0)),
        "fetch": lambda: (FETCH, 12, fetch_request("flights")),
        "metadata": lambda: (METADATA, 1, {"topics": [{"name": "flights"}]}),
        "silent": lambda: producing(b"silent", acks=0),
        "silent and corrupt": lambda: producing(batch=corrupt, acks=0),
        "old": lambda: (PRODUCE, 3, produce_request("flights", b"old")),
    }[kind]()


def in_one_turn(broker, clients, plan):
    with broker.turn():
        for client, kinds in zip(clients, plan, strict=True):
            client.send_together(*map(request_of, kinds))


def one_by_one(broker, clients, plan):
    """Send the requests in the order of a turn: in each round the Produce of every connection, then other requests."""
    for number in range(max(map(len, plan))):
        left = [(client, kinds[number]) for client, kinds in zip(clients, plan, strict=True) if number < len(kinds)]
        requests = [(client, request_of(kind)) for client, kind in left]
        for client, request in sorted(requests, key=lambda each: each[1][0] != PRODUCE):
            if client.closed is None:
                client.send(*request)


def outcome(send, plan):
    """Return what became of a plan: each client's answers, why it was closed, and the records of each partition."""
    broker = EngineBroker()
    broker.create("flights", partitions=2)
    clients = [broker.connect() for _ in plan]
    send(broker, clients, plan)
    logs = [broker.services.log_of("flights", number) for number in range(2)]
    ids = [flattened(log_reader.ids_of(log, 0, log.log_end_offset)) for log in logs]
    assert all(each == sorted(each) for each in ids)
    assert len({*ids[0], *ids[1]}) == sum(log.log_end_offset for log in logs), "an id for each record"
    answers = [[(sent, comparable(answer)) for sent, answer in client.replies()] for client in clients]
    reader = broker.connect()
    records = [reader.fetch("flights", partition=number) for number in range(2)]
    return answers, [client.closed for client in clients], records


def comparable(answer):
    return values_of(answer) if hasattr(answer, "session_id") else answer


@given(st.lists(st.lists(KINDS, max_size=6), min_size=1, max_size=4))
def test_a_turn_leads_to_what_its_requests_lead_to_one_by_one(plan):
    """Answers, closed connections and records are the same, whatever the requests are."""
    assert outcome(in_one_turn, plan) == outcome(one_by_one, plan)
