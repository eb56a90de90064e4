"""Reads of many partitions are executed in slices, and share one budget of partitions a turn; nothing else changes."""

import gc
from time import thread_time_ns

import pytest

from broker.channel import partition_budget
from broker.channel.partition_budget import PARTITIONS_AT_ONCE, PARTITIONS_PER_TURN
from broker.fault_injection.faulty_engine import FaultyEngine
from broker.handlers import fetch, list_offsets
from broker.services import fetch_reading
from broker.wire.errors import ErrorCode
from broker.wire.fetch import INITIAL_EPOCH, FetchPartition, FetchRequest
from tests.broker.engine_client import (
    API_VERSIONS,
    DELETE_TOPICS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    EngineBroker,
    produce_request,
)

MANY = 1_200
VERSIONS = API_VERSIONS, 0, {}


@pytest.fixture(scope="module")
def full():
    """A broker with a topic of MANY empty partitions, made once because that takes long; tests change other topics."""
    broker = EngineBroker(max_new_logs_at_once=100_000)
    broker.create("flights", MANY)
    return broker


@pytest.fixture
def broker(full):
    full.engine.services.partition_budget.end_turn()
    return full


@pytest.fixture
def own():
    """A broker of the test's own, with a smaller topic."""
    broker = EngineBroker(max_new_logs_at_once=100_000)
    broker.create("flights", PARTITIONS_AT_ONCE + 100)
    return broker


@pytest.fixture
def reads(monkeypatch):
    """The partitions that were read so far: one number for each call of the code that reads some."""
    numbers = []

    def counted(read, at):
        def count(*arguments):
            numbers.append(len(arguments[at]))
            return read(*arguments)

        return count

    monkeypatch.setattr(fetch, "collect", counted(fetch_reading.collect, 2))
    monkeypatch.setattr(list_offsets, "_find_offsets", counted(list_offsets._find_offsets, 1))
    return numbers


def fetching(number=MANY, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, first=0, **more):
    parts = [FetchPartition("flights", first + n, 0, 1 << 20) for n in range(number)]
    return FETCH, 12, FetchRequest(max_wait_ms, min_bytes, max_bytes, parts, **more)


def listing(number=MANY):
    parts = [{"partition_index": n, "timestamp": -1, "current_leader_epoch": -1} for n in range(number)]
    topics = [{"name": "flights", "partitions": parts}]
    return LIST_OFFSETS, 6, {"replica_id": -1, "isolation_level": 0, "topics": topics}


def one_turn(broker):
    """Execute one turn, and deliver its answers."""
    broker.execute()
    deliver(broker)


def deliver(broker):
    for conn, parts in broker.engine.take_replies():
        broker.clients[conn].take(parts)


def most_of_a_turn(broker, reads):
    """Execute turns until no work is left. Return the most partitions that one turn has read."""
    most = sum(reads)
    while broker.engine.has_work:
        before = sum(reads)
        one_turn(broker)
        most = max(most, sum(reads) - before)
    return most


# --- one request -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_of", [fetching, listing])
def test_another_connection_is_answered_before_a_large_read_is(broker, request_of):
    client, other = broker.connect(), broker.connect()
    with broker.turn():
        client.send(*request_of())
        other.send(*VERSIONS)
        one_turn(broker)
        assert other.answered() and not client.received
    ((_, answer),) = client.replies()
    if hasattr(answer, "topics"):
        indexes = [partition.partition_index for partition in answer.topics[0].partitions]
    else:
        indexes = [partition.partition for partition in answer.partitions]
    assert indexes == [*range(MANY)]


@pytest.mark.parametrize("request_of", [fetching, listing])
def test_a_slice_reads_as_many_partitions_as_one_of_a_produce(broker, reads, request_of):
    broker.connect().ask(*request_of())
    assert reads == [PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE, MANY - 2 * PARTITIONS_AT_ONCE]


@pytest.mark.parametrize("request_of", [fetching, listing])
def test_a_read_of_few_partitions_is_executed_at_once(broker, reads, request_of):
    client = broker.connect()
    with broker.turn():
        client.send(*request_of(20))
        broker.execute()
        assert reads == [20]


def test_later_requests_of_the_connection_are_answered_after_it(broker):
    client = broker.connect()
    correlation_ids = client.send_together(fetching(), VERSIONS, listing(), fetching(1), VERSIONS)
    assert client.answered() == correlation_ids


def test_a_connection_closed_between_two_slices_drops_its_request(broker, reads):
    client = broker.connect()
    with broker.turn():
        client.send(*fetching())
        while not reads:
            broker.execute()
        broker.engine.closed(client.conn)
        assert not broker.engine.has_work
    assert reads == [PARTITIONS_AT_ONCE]


# --- the request as a whole ------------------------------------------------------------------------------------------


def test_one_limit_of_bytes_counts_over_all_slices(own):
    client = own.connect()
    last = PARTITIONS_AT_ONCE + 50
    for partition in (0, last):
        client.produce("flights", b"x" * 3_000, partition=partition)
    for max_bytes, expected in ((4_000, [0]), (7_000, [0, last])):
        answer = client.ask(*fetching(last + 1, max_bytes=max_bytes))
        assert [partition.partition for partition in answer.partitions if partition.size] == expected


def test_a_session_of_many_partitions_begins_once_and_goes_on(own):
    client = own.connect()
    number = PARTITIONS_AT_ONCE + 100
    answer = client.ask(*fetching(number, session_epoch=INITIAL_EPOCH))
    assert len(answer.partitions) == number
    assert (len(own.services.fetch_sessions), own.services.fetch_sessions.partitions) == (1, number)
    client.produce("flights", b"x", partition=number - 1)
    next_one = FetchRequest(0, 1, 1 << 20, [], session_id=answer.session_id, session_epoch=1)
    assert [partition.partition for partition in client.ask(FETCH, 12, next_one).partitions] == [number - 1]


def test_a_request_whose_session_goes_on_meanwhile_is_refused(own):
    client, other = own.connect(), own.connect()
    answer = client.ask(*fetching(PARTITIONS_AT_ONCE + 100, session_epoch=INITIAL_EPOCH))
    first, second = (
        FetchRequest(0, 1, 1 << 20, [], session_id=answer.session_id, session_epoch=epoch) for epoch in (1, 2)
    )
    with own.turn():
        client.send(FETCH, 12, first)
        one_turn(own)
        other.send(FETCH, 12, second)
    ((_, refused),), ((_, answered),) = client.replies(), other.replies()
    assert refused.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert answered.error_code == ErrorCode.NONE


def test_a_partition_deleted_between_two_slices_is_answered_as_it_was_read(own, reads):
    client, other = own.connect(), own.connect()
    client.produce("flights", b"x")
    with own.turn():
        client.send(*fetching(PARTITIONS_AT_ONCE + 100))
        while not reads:
            one_turn(own)
        other.send(DELETE_TOPICS, 1, {"topic_names": ["flights"], "timeout": 1_000})
    ((_, answer),) = client.replies()
    errors = [partition.error_code for partition in answer.partitions]
    assert errors[:PARTITIONS_AT_ONCE] == [0] * PARTITIONS_AT_ONCE and answer.partitions[0].size > 0
    assert set(errors[PARTITIONS_AT_ONCE:]) <= {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


# --- requests that wait ----------------------------------------------------------------------------------------------


def test_records_that_come_between_two_slices_are_not_waited_for(own, reads):
    client, other = own.connect(), own.connect()
    with own.turn():
        client.send(*fetching(PARTITIONS_AT_ONCE + 100, max_wait_ms=1_000))
        while not reads:
            one_turn(own)
        other.send(PRODUCE, 9, produce_request("flights", b"x"))
    ((_, answer),) = client.replies()
    assert answer.partitions[0].size > 0


def test_a_request_that_waits_is_answered_once_records_come(own, reads):
    client, other = own.connect(), own.connect()
    client.send(*fetching(PARTITIONS_AT_ONCE + 100, max_wait_ms=1_000))
    assert not client.received and len(own.services.purgatory) == 1
    reads.clear()
    other.produce("flights", b"x", partition=PARTITIONS_AT_ONCE + 50)
    ((_, answer),) = client.replies()
    assert answer.partitions[PARTITIONS_AT_ONCE + 50].size > 0
    assert max(reads) == PARTITIONS_AT_ONCE and not len(own.services.purgatory)


def test_a_request_that_waits_for_more_bytes_waits_on_after_its_slices(own):
    client, other = own.connect(), own.connect()
    client.send(*fetching(PARTITIONS_AT_ONCE + 100, max_wait_ms=1_000, min_bytes=5_000))
    for partition in range(3):
        assert not client.received
        other.produce("flights", b"x" * 2_000, partition=partition)
    ((_, answer),) = client.replies()
    assert sum(partition.size for partition in answer.partitions) > 5_000


def test_a_request_that_waits_is_answered_at_its_deadline(own):
    client = own.connect()
    correlation_id = client.send(*fetching(PARTITIONS_AT_ONCE + 100, max_wait_ms=500))
    own.at(own.now_ms + 499)
    assert not client.received
    own.at(own.now_ms + 2)
    assert client.answered() == [correlation_id]


def test_a_waiting_fetch_counts_with_its_partitions(own):
    """The limit is flakelog.max.delayed.operations."""
    own.connect().send(*fetching(20, max_wait_ms=100))
    assert (len(own.services.purgatory), own.services.purgatory.size) == (1, 20)
    own.at(own.now_ms + 200)
    assert (len(own.services.purgatory), own.services.purgatory.size) == (0, 0)


def test_past_the_limit_of_waiting_requests_a_large_fetch_is_answered_with_what_there_is():
    broker = EngineBroker(max_new_logs_at_once=100_000, max_delayed_operations=30)
    broker.create("flights", 30)
    first, second = broker.connect(), broker.connect()
    first.send(*fetching(30, max_wait_ms=100))
    correlation_id = second.send(*fetching(30, max_wait_ms=100))
    assert not first.received and second.answered() == [correlation_id]


def test_a_failure_that_a_test_wants_applies_to_an_answer_in_slices(own):
    broker = EngineBroker(max_new_logs_at_once=100_000, engine=FaultyEngine)
    broker.create("flights", PARTITIONS_AT_ONCE + 1)
    client = broker.connect()
    broker.engine.delay(FETCH, 300, times=1)
    correlation_id = client.send(*fetching(PARTITIONS_AT_ONCE + 1, max_wait_ms=100))
    broker.at(broker.now_ms + 250)
    assert not client.received
    broker.at(broker.now_ms + 400)
    assert client.answered() == [correlation_id]


# --- all requests together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_of", [fetching, listing])
@pytest.mark.parametrize("number", [1, 100, PARTITIONS_AT_ONCE, MANY])
def test_new_reads_of_many_connections_share_one_budget_a_turn(broker, reads, request_of, number):
    clients = [broker.connect() for _ in range(40)]
    with broker.turn():
        for client in clients:
            client.send(*request_of(number))
        one_turn(broker)
        assert most_of_a_turn(broker, reads) <= PARTITIONS_PER_TURN
    assert [len(client.answered()) for client in clients] == [1] * len(clients)
    assert sum(reads) == len(clients) * number


@pytest.mark.parametrize("number", [100, PARTITIONS_AT_ONCE, MANY])
def test_waiting_fetches_whose_deadlines_meet_share_it(broker, reads, number):
    clients = [broker.connect() for _ in range(60)]
    for client in clients:
        client.send(*fetching(number, max_wait_ms=100))
    reads.clear()
    broker.now_ms += 200
    with broker.turn():
        broker.engine.tick(broker.now)
        one_turn(broker)
        assert most_of_a_turn(broker, reads) <= PARTITIONS_PER_TURN
    assert sum(reads) == len(clients) * number
    assert [len(client.answered()) for client in clients] == [1] * len(clients)


@pytest.mark.parametrize("number", [100, PARTITIONS_AT_ONCE])
def test_waiting_fetches_that_one_append_answers_share_it(own, reads, number):
    clients = [own.connect() for _ in range(60)]
    for client in clients:
        client.send(*fetching(number, max_wait_ms=1_000))
    reads.clear()
    writer = own.connect()
    with own.turn():
        writer.send(PRODUCE, 9, produce_request("flights", b"x"))
        one_turn(own)
        assert most_of_a_turn(own, reads) <= PARTITIONS_PER_TURN
    assert [len(client.answered()) for client in clients] == [1] * len(clients)


def test_a_small_fetch_does_not_wait_behind_large_ones(broker):
    large, small = [broker.connect() for _ in range(40)], broker.connect()
    with broker.turn():
        for client in large:
            client.send(*fetching(PARTITIONS_AT_ONCE))
        small.send(*fetching(1))
        one_turn(broker)
        assert small.answered()
        assert sum(bool(client.received) for client in large) < len(large)


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(("connections", "max_wait_ms"), [(20, 0), (100, 0), (60, 100)])
@pytest.mark.parametrize("request_of", [fetching, listing])
def test_no_turn_takes_longer_than_the_bound_with_the_largest_reads_of_many_connections(
    request_of, connections, max_wait_ms
):
    assert any(longest_turn_ms(request_of, connections, max_wait_ms) <= 100 for _ in range(3))


class Collector:
    """Counts the CPU time of Python's garbage collector within the block."""

    def __init__(self):
        self.ms = 0.0

    def _count(self, phase, _):
        self.ms += thread_time_ns() / 1e6 * (1 if phase == "stop" else -1)

    def __enter__(self):
        gc.callbacks.append(self._count)
        return self

    def __exit__(self, *_):
        gc.callbacks.remove(self._count)


def longest_turn_ms(request_of, connections, max_wait_ms):
    """Return the CPU time of the longest turn or tick, with connections that read 10,000 partitions each.

    The garbage collector is not in it. It walks what waits, some 0.2 us for each object, in whichever turn it runs.
    """
    broker = EngineBroker(max_new_logs_at_once=100_000)
    broker.create("flights", 10_000)
    clients = [broker.connect() for _ in range(connections)]
    waits = {"max_wait_ms": max_wait_ms} if request_of is fetching else {}
    taken = []

    def timed(call, *arguments):
        began_ms, collector.ms = thread_time_ns() / 1e6, 0.0
        call(*arguments)
        taken.append(thread_time_ns() / 1e6 - began_ms - collector.ms)

    def turns():
        timed(broker.engine.execute, broker.now)
        deliver(broker)
        while broker.engine.has_work:
            timed(broker.engine.execute, broker.now)
            deliver(broker)

    gc.collect()
    gc.freeze()
    try:
        with Collector() as collector, broker.turn():
            for client in clients:
                client.send(*request_of(10_000, **waits))
            turns()
            broker.now_ms += 200
            timed(broker.engine.tick, broker.now)
            turns()
    finally:
        gc.unfreeze()
    assert [len(client.answered()) for client in clients] == [1] * len(clients)
    return max(taken)


def test_the_part_of_slices_is_within_the_budget():
    budget = partition_budget.PartitionBudget()
    at_once = budget.left
    budget.begin_slices()
    assert at_once + budget.left == PARTITIONS_PER_TURN
