"""Several Produce requests in one turn of the engine: they share the writes, not the faults."""

import pytest

from broker.log import log_reader
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FETCH, PRODUCE, EngineBroker, batch_of, fetch_request, produce_request, values_of
from tests.broker.handlers.produce_requests import (
    LONG_ID,
    connected,
    flattened,
    of_producer,
    offsets_of,
    produced_in_one_turn,
    producing,
    producing_to,
)
from tests.broker.watched_storage import WatchedStorage


@pytest.fixture
def broker():
    broker = EngineBroker(WatchedStorage())
    broker.create("flights")
    return broker


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
    client.send_together(*[producing(batch=of_producer(b"x", next_sequence)) for next_sequence in following])
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
    results = [client.replies()[0][1][0] for client in clients]
    log = broker.services.log_of("flights", 0)
    for number, result in enumerate(results, 1):
        ids = log_reader.ids_of(log, result.base_offset, result.base_offset + number)
        assert flattened(result.runs) == flattened(ids)


def test_requests_of_one_turn_are_appended_in_their_order(broker):
    clients = connected(broker, 4)
    results = produced_in_one_turn(broker, clients, [batch_of(b"%d" % n, b"+") for n in range(4)])
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 4), (0, 6), (0, 8), (0, 10)]
    assert clients[0].fetch("flights", 4) == [b"0", b"+", b"1", b"+", b"2", b"+", b"3", b"+"]
    ids = flattened(log_reader.ids_of(broker.services.log_of("flights", 0), 0, 12))
    assert len(ids) == 12 and ids == sorted(set(ids))
    again = broker.restarted(clean=False)
    assert flattened(log_reader.ids_of(again.services.log_of("flights", 0), 0, 12)) == ids


def test_one_that_is_refused_takes_nothing_from_the_others(broker):
    clients = connected(broker, 3)
    bad = bytearray(batch_of(b"bad"))
    bad[-1] ^= 1
    results = produced_in_one_turn(broker, clients, [batch_of(b"a"), bad, batch_of(b"b")])
    assert [result.error_code for result in results] == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    assert clients[0].fetch("flights", 3) == [b"a", b"b"]


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
    fetched = [value for offset in range(9, 18) for value in again.fetch("flights", offset)[:1]]
    assert fetched == values


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
    leaves, stays = broker.connect(), broker.connect()
    with broker.turn():
        leaves.send_together(producing(b"a"), producing(b"b"))
        stays.send(*producing(b"c"))
        broker.engine.closed(leaves.conn)
    assert offsets_of(stays) == [0] and leaves.answered() == []
    assert stays.fetch("flights") == [b"c"]


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
