"""Back-pressure of ids: requests that find no ids now wait, and nothing of them is lost, doubled or reordered.

An id worker without run-ahead (`max_ahead_ms=0`) has 4,096 ids in each millisecond.
"""

import pytest

from broker.log.log_appender import TOGETHER_RECORDS_MAX
from broker.record.compression import Codec
from broker.services.topic_changes import plan_alteration
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from idgen.errors import SequenceExhausted
from idgen.layout import Layout
from idgen.sequence_start import sequence_start
from idgen.worker import IdWorker
from tests.broker.engine_client import (
    DELETE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
    values_of,
)
from tests.broker.watched_storage import WatchedStorage

IDS_IN_A_MS = 4_096


@pytest.fixture
def broker():
    broker = EngineBroker(WatchedStorage(), max_ahead_ms=0)
    broker.create("flights", partitions=3)
    broker.at(broker.now_ms + 1)
    return broker


def spend_ids(broker, remaining=0):
    """Give away the ids of this millisecond, so that only some are left."""
    broker.worker.next_ids(IDS_IN_A_MS - remaining, broker.now.wall_ms)


def producing(*values, **more):
    return PRODUCE, 9, produce_request("flights", *values, **more)


def producing_to(*partitions, records=1, acks=1):
    """Return a request for several partitions of flights."""
    parts = [("flights", partition, memoryview(batch_of(*[b"x"] * records))) for partition in partitions]
    return PRODUCE, 9, ProduceRequest(None, acks, 30_000, parts, False)


def ends(broker):
    return [broker.services.log_of("flights", partition).log_end_offset for partition in range(3)]


# --- one connection --------------------------------------------------------------------------------------------------


def test_a_held_request_waits_though_no_more_may_wait():
    """flakelog.max.delayed.operations answers early; a held request that is retried early would be retried for ever."""
    broker = EngineBroker(max_ahead_ms=0, max_delayed_operations=1)
    broker.create("flights")
    waiting, client = broker.connect(), broker.connect()
    waiting.send(FETCH, 12, fetch_request("flights", max_wait_ms=5_000))
    worker = OnceExhausted(broker.worker)
    broker.services.id_stamper.worker = lambda: worker
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    assert not client.replies() and client.closed is None
    broker.at(broker.now_ms + 1)
    ((_, results),) = client.replies()
    assert results[0].error_code == 0


class OnceExhausted:
    """An id worker without ids at one moment. A second request at that moment fails; the test would hang otherwise."""

    def __init__(self, worker):
        self.layout, self.max_ahead_ms = worker.layout, worker.max_ahead_ms
        self._worker = worker
        self._exhausted_ms = None

    def next_ids(self, n, now_ms, floor):
        assert now_ms != self._exhausted_ms, "asked again at the same moment"
        if self._exhausted_ms is None:
            self._exhausted_ms = now_ms
            raise SequenceExhausted(now_ms + 1, 0)
        return self._worker.next_ids(n, now_ms, floor)


def test_without_ids_a_produce_is_held_and_comes_back_with_nothing_lost_or_twice():
    """SequenceExhausted: past the run-ahead of 4,096 ids a millisecond, a timer puts back-pressure on the peer."""
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights")
    client, other = broker.connect(), broker.connect()
    broker.worker.next_ids(4_000, broker.now.wall_ms)
    values = [b"%d" % n for n in range(4)]
    sent = [client.frame(PRODUCE, 9, produce_request("flights", *[value] * 100)) for value in values]
    client.feed(b"".join(data for _, data in sent))
    assert not client.replies() and not client.conn.readable
    assert other.fetch("flights") == [], "others are served on"
    broker.at(broker.now_ms + 2)
    assert [(answered, results[0].error_code) for answered, results in client.replies()] == [
        (correlation_id, 0) for correlation_id, _ in sent
    ]
    assert client.fetch("flights") == [value for value in values for _ in range(100)]


def test_what_comes_after_a_held_request_waits_also_where_requests_repeat():
    """There would be ids for the second request."""
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"first")
    broker.worker.next_ids(4_000, broker.now.wall_ms)
    sent = [client.frame(PRODUCE, 9, produce_request("flights", *[b"v"] * records)) for records in (100, 50)]
    client.feed(b"".join(data for _, data in sent))
    assert not client.replies() and not client.conn.readable
    broker.at(broker.now_ms + 2)
    assert [(answered, results[0].base_offset) for answered, results in client.replies()] == [
        (sent[0][0], 1),
        (sent[1][0], 101),
    ]


def test_requests_of_every_kind_behind_a_held_one_wait_and_are_answered_in_order(broker):
    """The Fetch sees the records of the Produce before it."""
    client = broker.connect()
    spend_ids(broker)
    sent = client.send_together(
        producing(b"a"),
        (METADATA, 1, {"topics": []}),
        (FETCH, 12, fetch_request("flights")),
        producing(b"b", acks=0),
        producing(b"c"),
        (FETCH, 12, fetch_request("flights")),
    )
    assert client.answered() == []
    broker.at(broker.now_ms + 5)
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == [*sent[:3], *sent[4:]]
    assert (values_of(answers[2][1]), values_of(answers[4][1])) == ([b"a"], [b"a", b"b", b"c"])


def test_a_request_that_comes_while_an_earlier_one_is_held_waits_behind_it(broker):
    """The shell stops reading, but what it has read already must be kept."""
    client = broker.connect()
    spend_ids(broker)
    sent = client.send_together(producing(b"a"))
    assert not client.conn.wants_data
    sent += client.send_together((METADATA, 1, {"topics": []}), producing(b"b"))
    sent += client.send_together((FETCH, 12, fetch_request("flights")))
    assert client.answered() == []
    broker.at(broker.now_ms + 5)
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == sent and client.conn.wants_data
    assert values_of(answers[-1][1]) == [b"a", b"b"]


@pytest.mark.parametrize("cut", [1, 4, 6, 20, -1])
def test_a_request_behind_a_held_one_is_executed_before_one_that_has_only_begun(broker, cut):
    client = broker.connect()
    spend_ids(broker)
    frames = [client.frame(*request) for request in (producing(b"a"), (METADATA, 1, {"topics": []}), producing(b"b"))]
    sent, pieces = zip(*frames, strict=True)
    client.feed(pieces[0] + pieces[1] + pieces[2][:cut])
    broker.at(broker.now_ms + 5)
    assert client.answered() == [*sent[:2]]
    client.feed(pieces[2][cut:])
    assert client.answered() == [sent[2]]
    assert client.fetch("flights") == [b"a", b"b"]


@pytest.mark.parametrize("bad, reason", [(b"\x7f\xff\xff\xff", "a frame of"), (b"\0\0\0\x09\0\0\0\x09" + bytes(5), "")])
def test_held_requests_are_answered_before_the_connection_is_closed_for_bytes_behind_them(broker, bad, reason):
    client = broker.connect()
    spend_ids(broker)
    frames = [client.frame(*producing(b"%d" % n)) for n in range(2)]
    client.feed(b"".join(data for _, data in frames) + bad)
    broker.at(broker.now_ms + 5)
    assert client.answered() == [sent for sent, _ in frames]
    assert client.closed is not None and reason in client.closed
    assert broker.connect().fetch("flights") == [b"0", b"1"] and not broker.reported


def test_idempotent_batches_in_flight_keep_their_sequence(broker):
    """Ids are short in the middle of them: the first are written immediately, and none is out of order later."""
    client = broker.connect()
    spend_ids(broker, remaining=5)
    batches = [
        batch_of(*[b"%d" % n] * 2, producer_id=7, producer_epoch=0, base_sequence=2 * n) for n in range(5)
    ]
    sent = client.send_together(*[producing(batch=batch) for batch in batches])
    broker.at(broker.now_ms + 5)
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert [(result.error_code, result.base_offset) for _, (result,) in answers] == [(0, 2 * n) for n in range(5)]


def test_records_of_a_turn_that_want_more_ids_than_a_millisecond_has_come_in_several(broker):
    client = broker.connect()
    sent = client.send_together(*[producing(*[b"%d" % n] * 3_000) for n in range(4)])
    replies = []
    for _ in range(8):
        replies += client.replies()
        broker.at(broker.now_ms + 1)
    assert [correlation_id for correlation_id, _ in replies] == sent
    assert [result.base_offset for _, (result,) in replies] == [0, 3_000, 6_000, 9_000]


# --- several connections ---------------------------------------------------------------------------------------------


def test_requests_of_one_turn_that_want_more_ids_than_one_call_gives_are_appended_in_parts():
    """`IdWorker.max_batch` limits one call; with no run-ahead and spread starts it is less than a millisecond has."""
    broker = EngineBroker(max_ahead_ms=0)
    broker.worker = IdWorker(
        Layout(), 1, start_ms=broker.now.wall_ms, limit_ms=broker.now.wall_ms + 1_000_000, max_ahead_ms=0,
        sequence_start=sequence_start("spread", 256, 0),
    )  # fmt: skip
    broker.create("flights")
    clients = [broker.connect() for _ in range(8)]
    for client in clients:
        client.produce("flights", b"first")
        broker.at(broker.now_ms + 10)
    assert broker.worker.max_batch == 3841
    with broker.turn():
        for client in clients:
            client.send(PRODUCE, 9, produce_request("flights", *[b""] * 500))
    broker.at(broker.now_ms + 10)
    assert [results[0].error_code for client in clients for _, results in client.replies()] == [0] * 8
    assert broker.services.log_of("flights", 0).log_end_offset == 8 + 8 * 500


def test_several_connections_are_held_and_each_is_answered_in_its_order(broker):
    clients = [broker.connect() for _ in range(3)]
    spend_ids(broker)
    with broker.turn():
        sent = [
            client.send_together(*[producing(b"%d %d" % (number, n)) for n in range(4)], (METADATA, 1, {"topics": []}))
            for number, client in enumerate(clients)
        ]
    assert [client.answered() for client in clients] == [[], [], []]
    before = broker.storage.writes_of(broker, "flights")
    broker.at(broker.now_ms + 1)
    assert [client.answered() for client in clients] == sent
    assert broker.storage.writes_of(broker, "flights") == before + 1, "held requests share their write too"
    values = clients[0].fetch("flights")
    for number in range(3):
        of_client = [value for value in values if value.startswith(b"%d " % number)]
        assert of_client == [b"%d %d" % (number, n) for n in range(4)]
    assert len(values) == 12


def test_a_connection_that_closes_while_it_is_held_has_nothing_written_and_the_others_are_answered(broker):
    stays, leaves, later = (broker.connect() for _ in range(3))
    spend_ids(broker)
    with broker.turn():
        sent = stays.send_together(producing(b"a"), producing(b"b"))
        leaves.send_together(producing(b"lost"), producing_to(0, 1), (METADATA, 1, {"topics": []}))
        sent_later = later.send_together(producing_to(1, 2))
    broker.engine.closed(leaves.conn)
    broker.at(broker.now_ms + 5)
    assert (stays.answered(), later.answered(), leaves.answered()) == (sent, sent_later, [])
    assert ends(broker) == [2, 1, 1] and stays.fetch("flights") == [b"a", b"b"]
    assert len(broker.services.purgatory) == 0 and not broker.reported


def test_a_held_peer_that_goes_leaves_nothing_behind():
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights")
    client = broker.connect()
    broker.worker.next_ids(4_096, broker.now.wall_ms)
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.engine.closed(client.conn)
    broker.at(broker.now_ms + 10)
    assert broker.services.log_of("flights", 0).log_end_offset == 0 and not broker.reported
    assert len(broker.services.purgatory) == 0


def test_requests_for_which_there_were_ids_are_answered_immediately(broker):
    first, second = broker.connect(), broker.connect()
    spend_ids(broker, remaining=TOGETHER_RECORDS_MAX // 2)
    first.send(*producing(*[b"a"] * 2_000))
    assert len(first.answered()) == 1
    second.send(*producing(*[b"b"] * 2_000))
    assert second.answered() == []
    first.send(*producing(b"c"))
    assert len(first.answered()) == 1, "48 ids are left"
    broker.at(broker.now_ms + 5)
    assert len(second.answered()) == 1
    assert ends(broker)[0] == 4_001


def test_ids_that_are_short_for_long_hold_everybody_until_each_had_its_turn(broker):
    """Twelve batches of 3,000 records need at least nine milliseconds."""
    clients = [broker.connect() for _ in range(4)]
    with broker.turn():
        sent = [client.send_together(*[producing(*[b"x"] * 3_000) for _ in range(3)]) for client in clients]
    answered, began_ms = [[] for _ in clients], broker.now_ms
    while sum(map(len, answered)) < 12:
        for client, correlation_ids in zip(clients, answered, strict=True):
            correlation_ids += client.answered()
        broker.at(broker.now_ms + 1)
        assert broker.now_ms < began_ms + 30
    assert answered == sent and ends(broker)[0] == 36_000


# --- several partitions ----------------------------------------------------------------------------------------------


def test_a_request_of_two_partitions_is_held_whole():
    """A request that is tried again must not have left half of its records in the log."""
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights", 2)
    client = broker.connect()
    broker.worker.next_ids(4_000, broker.now.wall_ms)
    request = produce_request("flights", *[b"a"] * 60)
    request.partitions.append(produce_request("flights", *[b"b"] * 60, partition=1).partitions[0])
    client.send(PRODUCE, 9, request)
    assert not client.replies()
    assert [broker.services.log_of("flights", n).log_end_offset for n in (0, 1)] == [0, 0]
    broker.at(broker.now_ms + 2)
    ((_, results),) = client.replies()
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 0), (0, 0)]
    assert [broker.services.log_of("flights", n).log_end_offset for n in (0, 1)] == [60, 60]


@pytest.mark.parametrize("remaining", [0, 1, 2, 3, 4, 5])
def test_requests_of_several_partitions_and_of_one_are_all_answered_in_order_and_written_once(broker, remaining):
    """Whatever is left of the ids, no record is there twice."""
    first, second = broker.connect(), broker.connect()
    spend_ids(broker, remaining)
    with broker.turn():
        sent = [
            first.send_together(producing_to(0, 1), producing(b"y"), producing_to(1, 2)),
            second.send_together(producing(b"z", partition=2), producing_to(2, 0), (METADATA, 1, {"topics": []})),
        ]
    broker.at(broker.now_ms + 5)
    answers = [first.replies(), second.replies()]
    assert [[correlation_id for correlation_id, _ in replies] for replies in answers] == sent
    produced = [results for replies in answers for _, results in replies if isinstance(results, list)]
    results = [result for results in produced for result in results]
    # A request of which a part was written must be answered; the client sends the rest again.
    assert {result.error_code for result in results} <= {0, ErrorCode.REQUEST_TIMED_OUT}
    written = [(result.partition, result.base_offset) for result in results if result.error_code == 0]
    assert len(set(written)) == len(written) == sum(ends(broker))
    assert remaining or len(written) == 8


def test_a_partition_that_is_refused_in_a_held_request_is_answered_with_the_others(broker):
    client = broker.connect()
    spend_ids(broker)
    client.send(*producing_to(0, 7, 2))
    assert client.replies() == []
    broker.at(broker.now_ms + 5)
    ((_, results),) = client.replies()
    assert [result.error_code for result in results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


# --- what may change meanwhile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [[producing(b"a")], [producing_to(0, 1)]])
def test_a_topic_that_is_deleted_meanwhile_is_answered_as_such(broker, requests):
    client, admin = broker.connect(), broker.connect()
    spend_ids(broker)
    sent = client.send_together(*requests, (METADATA, 1, {"topics": []}))
    admin.ask(DELETE_TOPICS, 1, {"topic_names": ["flights"], "timeout": 1000})
    broker.at(broker.now_ms + 5)
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == sent
    assert {result.error_code for result in answers[0][1]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_topic_that_is_deleted_meanwhile_closes_who_wants_no_answer(broker):
    client = broker.connect()
    spend_ids(broker)
    first, _, _ = client.send_together(producing_to(1), producing(b"a", acks=0), producing(b"b"))
    broker.delete("flights")
    broker.create("flights", partitions=3)
    broker.services.log_of("flights", 0).offline = "on purpose"
    broker.at(broker.now_ms + 5)
    assert client.answered() == [first] and "acks=0" in client.closed


def test_a_setting_of_the_topic_that_changes_meanwhile_is_asked_again(broker):
    client = broker.connect()
    spend_ids(broker)
    client.send(*producing(bytes(100)))
    flights = broker.services.metadata.topic("flights")
    broker.services.file_executor.run_now(
        plan_alteration(broker.services, [(flights, {"max.message.bytes": "100"})]), broker.now
    )
    broker.at(broker.now_ms + 5)
    ((_, (result,)),) = client.replies()
    assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE and ends(broker)[0] == 0


@pytest.mark.parametrize("properties", [
    {"message_timestamp_type": "LogAppendTime"},
    {"compression_type": "zstd"},
    {"flakelog_id_header": "true"},
    {"message_timestamp_type": "LogAppendTime", "compression_type": "gzip", "flakelog_id_header": "true"},
])  # fmt: skip
@pytest.mark.parametrize("version", [5, 9])
def test_a_topic_that_changes_batches_gets_them_as_they_were_sent(properties, version):
    """A batch with the broker's time, or with zstd in Produce v5, would be refused."""
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights", **properties)
    client = broker.connect()
    broker.at(broker.now_ms + 1)
    spend_ids(broker)
    sent = batch_of(b"a" * 100, b"b" * 100, codec=Codec.LZ4)
    client.send(PRODUCE, version, produce_request("flights", batch=sent))
    assert not client.replies()
    broker.at(broker.now_ms + 5)
    ((_, (result,)),) = client.replies()
    assert (result.error_code, result.base_offset) == (0, 0)
    assert client.fetch("flights") == [b"a" * 100, b"b" * 100]


def test_a_duplicate_of_a_held_batch_is_answered_with_the_same_offset(broker):
    """The producer gave up on the first connection and sent the batch again on another (KIP-98)."""
    first, second = broker.connect(), broker.connect()
    spend_ids(broker)
    batch = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    for client in (first, second):
        client.send(*producing(batch=bytearray(batch)))
    broker.at(broker.now_ms + 5)
    offsets = [result.base_offset for client in (first, second) for _, (result,) in client.replies()]
    assert offsets == [0, 0] and ends(broker)[0] == 1


# --- other reasons ---------------------------------------------------------------------------------------------------


def test_the_acknowledged_high_water_mark_is_waited_for_too():
    """LeadExhausted: ids continue when the registry has raised the mark."""
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    broker.worker = type(broker.worker)(
        broker.worker.layout, 2, start_ms=broker.now.wall_ms - 10, limit_ms=broker.now.wall_ms
    )
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    assert not client.replies()
    broker.worker.raise_limit(broker.now.wall_ms + 1_000)
    broker.at(broker.now_ms + 100)
    ((_, results),) = client.replies()
    assert results[0].error_code == 0


def test_another_request_that_needs_an_id_is_held_too_and_those_behind_it_wait(broker):
    """InitProducerId writes a record of its own, so it waits as a whole (`Backpressure`)."""
    client = broker.connect()
    client.ask(FIND_COORDINATOR, 1, {"key": "x", "key_type": 1})
    spend_ids(broker)
    fields = {"transactional_id": "payments", "transaction_timeout": 60_000}
    frames = [client.frame(*request) for request in ((INIT_PRODUCER_ID, 1, fields), (METADATA, 1, {"topics": []}))]
    sent = [correlation_id for correlation_id, _ in frames]
    stream = b"".join(data for _, data in frames)
    client.feed(stream[:-3])
    assert client.answered() == []
    broker.at(broker.now_ms + 5)
    assert client.answered() == sent[:1]
    client.feed(stream[-3:])
    assert client.answered() == sent[1:]
