"""Fetch through the wire (https://kafka.apache.org/protocol#The_Messages_Fetch)."""

import gc
from uuid import UUID
from weakref import ref

import pytest

from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchPartition, FetchRequest
from tests.broker.engine_client import DELETE_RECORDS, FETCH, EngineBroker, batch_of, fetch_request, values_of


@pytest.fixture
def client():
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"a")
    return client


@pytest.mark.parametrize("offset", [-1, -(2**63), 2, 2**63 - 1])
def test_an_offset_that_is_not_there_is_out_of_range(client, offset):
    (partition,) = client.ask(FETCH, 12, fetch_request("flights", offset)).partitions
    assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("max_bytes", [0, -1, 1])
def test_a_first_batch_larger_than_the_limit_comes_whole(client, max_bytes):
    """A consumer with a small limit makes progress (KIP-74)."""
    assert client.fetch("flights", max_bytes=max_bytes) == [b"a"]


# --- errors, in the oldest version that can return them and in the newest ---------------------------------------------


def fetched(client, version, offset=0, topic="flights", partition=0, replica_id=-1, **more):
    """Fetch from one partition and return its part of the answer."""
    if version >= 13:
        topic_metadata = client.broker.services.metadata.topic(topic)
        topic = topic_metadata.id if topic_metadata else UUID(int=99)
    request = fetch_request(topic, offset, partition)
    (wanted,) = request.partitions
    request = request._replace(partitions=[wanted._replace(**more)], replica_id=replica_id)
    (answered,) = client.ask(FETCH, version, request).partitions
    return answered


@pytest.mark.parametrize("version", [4, 18])
def test_what_is_told_beside_an_error_is_nothing(client, version):
    answered = fetched(client, version, offset=9)
    assert answered.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answered.high_watermark, answered.last_stable_offset, len(answered.records)) == (-1, -1, 0)


@pytest.mark.parametrize("version", [4, 12])
def test_a_topic_or_partition_that_is_not_there_is_unknown(client, version):
    assert fetched(client, version, topic="trains").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched(client, version, partition=1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [13, 18])
def test_a_topic_id_that_is_not_there_is_unknown(client, version):
    """The error is UNKNOWN_TOPIC_ID (KIP-516)."""
    assert fetched(client, version, topic="trains").error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [9, 18])
def test_a_client_that_names_another_leader_epoch_is_told(client, version):
    """The client's metadata is older or newer than the leader's (KIP-320)."""
    client.broker.services.log_of("flights", 0).start_leader_epoch(3)
    errors = [fetched(client, version, current_leader_epoch=epoch).error_code for epoch in (2, 3, 4)]
    assert errors == [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]


@pytest.mark.parametrize("version", [9, 18])
@pytest.mark.parametrize("epoch", [-1, -2, -(2**31)])
def test_a_leader_epoch_below_0_is_none(client, version, epoch):
    """Kafka's FetchRequest ignores all negative epochs, its ListOffsets only -1."""
    assert fetched(client, version, current_leader_epoch=epoch).error_code == ErrorCode.NONE
    assert fetched(client, version, last_fetched_epoch=epoch).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version, code", [(4, 6), (5, 6), (6, 56), (18, 56)])
def test_a_partition_that_is_offline_is_a_storage_error_where_the_client_knows_it(client, version, code):
    """An older client takes a storage error for permanent, and NOT_LEADER_OR_FOLLOWER for temporary (KAFKA-4586)."""
    client.broker.services.log_of("flights", 0).offline = "its disk is gone"
    assert fetched(client, version).error_code == code


@pytest.mark.parametrize("version, code", [(4, 76), (9, 76), (10, 0), (18, 0)])
def test_a_topic_kept_as_zstd_is_not_sent_to_who_cannot_read_it(client, version, code):
    """The error is UNSUPPORTED_COMPRESSION_TYPE (KIP-110)."""
    client.broker.create("packed", compression_type="zstd")
    assert fetched(client, version, topic="packed").error_code == code


@pytest.mark.parametrize("version", [4, 18])
def test_nobody_follows_where_there_are_no_replicas(client, version):
    """Kafka gives the same errors to a node that holds no replica of the partition."""
    assert fetched(client, version, replica_id=2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 9:
        answered = fetched(client, version, replica_id=2, current_leader_epoch=0)
        assert answered.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", [12, 18])
def test_a_reader_whose_last_records_were_cut_away_is_told_where_their_epoch_ended(client, version):
    """Epoch 2 ends at offset 2 in this log: the reader's later records of that epoch were cut away (KIP-595)."""
    log = client.broker.services.log_of("flights", 0)
    log.start_leader_epoch(2)
    client.produce("flights", b"b")
    log.start_leader_epoch(4)
    client.produce("flights", b"c")
    answers = {
        (epoch, offset): fetched(client, version, offset, last_fetched_epoch=epoch)
        for epoch, offset in [(2, 2), (2, 3), (3, 2), (4, 3), (5, 3), (0, 0)]
    }
    assert {key: (answer.error_code, answer.diverging) for key, answer in answers.items()} == {
        (2, 2): (0, None),
        (2, 3): (0, (2, 2)),
        (3, 2): (0, (2, 2)),
        (4, 3): (0, None),
        (5, 3): (ErrorCode.OFFSET_OUT_OF_RANGE, None),
        (0, 0): (0, None),
    }
    assert len(answers[2, 3].records) == 0 and len(answers[2, 2].records) > 0


# --- limits ----------------------------------------------------------------------------------------------------------


def request_of(*wanted, **more):
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | more
    return FetchRequest(partitions=[FetchPartition("flights", *partition_args) for partition_args in wanted], **fields)


VALUE = b"x" * 100
BATCH = len(batch_of(VALUE))
ALL = 1 << 20


@pytest.fixture
def many():
    """Return a client of a broker with three partitions of three batches each."""
    broker = EngineBroker(fetch_max_bytes=1_024)
    broker.create("flights", 3)
    client = broker.connect()
    for index in range(3):
        for _ in range(3):
            assert client.produce("flights", VALUE, partition=index).error_code == 0
    return client


def sizes(client, request):
    return [len(partition.records) for partition in client.ask(FETCH, 12, request).partitions]


def test_each_partition_has_a_limit_of_its_own(many):
    wanted = (0, 0, BATCH + 9), (1, 0, 2 * BATCH), (2, 0, BATCH - 1)
    assert sizes(many, request_of(*wanted)) == [BATCH + 9, 2 * BATCH, 0]


def test_all_partitions_together_have_the_requests_limit(many):
    wanted = [(index, 0, ALL) for index in range(3)]
    assert sizes(many, request_of(*wanted, max_bytes=4 * BATCH)) == [3 * BATCH, BATCH, 0]


def test_and_the_brokers(many):
    """The broker's limit is fetch.max.bytes."""
    assert sizes(many, request_of(*((index, 0, ALL) for index in range(3)))) == [3 * BATCH, 3 * BATCH, 0]


def test_only_the_first_batch_of_an_answer_may_be_larger_than_the_limits(many):
    """The first batch is sent whole (KIP-74)."""
    assert sizes(many, request_of((0, 3, 1), (1, 0, 1), (2, 0, 1), max_bytes=1)) == [0, BATCH, 0]


def test_who_wants_more_than_may_be_sent_gets_what_may_be_sent(many):
    """Waiting would not help, because the answer cannot become larger."""
    request = request_of((0, 0, ALL), max_bytes=2 * BATCH, min_bytes=1 << 20, max_wait_ms=1_000)
    assert sizes(many, request) == [2 * BATCH]


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_bytes_of_all_partitions_count_towards_what_is_waited_for(many):
    reader = many.broker.connect()
    reader.send(FETCH, 12, request_of((0, 3, ALL), (1, 3, ALL), min_bytes=3 * BATCH, max_wait_ms=1_000))
    for index in (0, 1, 2):
        many.produce("flights", VALUE, partition=index)
        assert reader.replies() == [], "and others' do not"
    many.produce("flights", VALUE, partition=0)
    ((_, answer),) = reader.replies()
    assert [len(partition.records) for partition in answer.partitions] == [2 * BATCH, BATCH]


def test_what_a_partition_may_not_send_is_not_waited_for(many):
    reader = many.broker.connect()
    reader.send(FETCH, 12, request_of((0, 3, BATCH), (1, 3, ALL), min_bytes=2 * BATCH, max_wait_ms=1_000))
    many.produce("flights", VALUE, partition=0)
    many.produce("flights", VALUE, partition=0)
    assert reader.replies() == []
    many.produce("flights", VALUE, partition=1)
    assert len(reader.replies()) == 1


def test_who_is_behind_in_an_older_segment_does_not_wait():
    """An older segment gets no more records (Kafka's DelayedFetch, case F)."""
    broker = EngineBroker()
    broker.create("flights", segment_bytes=1_024)
    client, waiting = broker.connect(), broker.connect()
    request = request_of((0, 0, ALL), min_bytes=1 << 19, max_wait_ms=1_000)
    waiting.send(FETCH, 12, request)
    while len(broker.services.log_of("flights", 0).segments.all) < 2:
        assert waiting.replies() == []
        client.produce("flights", VALUE)
    assert len(waiting.replies()) == 1, "a new segment was begun behind it"
    assert len(values_of(client.ask(FETCH, 12, request))) > 1


def test_an_append_to_one_of_many_partitions_has_only_that_one_looked_at():
    broker = EngineBroker()
    broker.create("flights", 100)
    reader, writer = broker.connect(), broker.connect()
    for index in range(100):
        if index != 77:
            writer.produce("flights", b"a", partition=index)
    wanted = ((index, 0, ALL) for index in range(100))
    reader.send(FETCH, 12, request_of(*wanted, min_bytes=1 << 19, max_wait_ms=1_000))
    broker.storage.bytes_read.clear()
    writer.produce("flights", b"a", partition=77)
    read = dict(broker.storage.bytes_read)
    assert {path.partition("/")[0] for path in read} == {"flights-77"}
    for _ in range(2):
        writer.produce("flights", b"a", partition=77)
    assert broker.storage.bytes_read == read, "it is read once, and then its end says how much there is"


def test_a_fetch_whose_records_are_deleted_while_it_waits_for_more_is_answered_immediately(client):
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=60_000, min_bytes=100_000))
    assert client.replies() == []
    topics = [{"name": "flights", "partitions": [{"partition_index": 0, "offset": 1}]}]
    client.broker.connect().ask(DELETE_RECORDS, 2, {"topics": topics, "timeout": 1_000})
    ((_, answer),) = client.replies()
    assert answer.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_of_records_that_have_become_too_old_is_answered_immediately():
    """The broker checks retention.ms 30 s after its start."""
    broker = EngineBroker()
    broker.create("flights", retention_ms=10_000)
    client = broker.connect()
    client.produce("flights", b"a")
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=600_000, min_bytes=100_000))
    broker.at(broker.now_ms + 40_000)
    assert broker.services.log_of("flights", 0).log_start_offset == 1
    ((_, answer),) = client.replies()
    assert answer.partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# --- records that are not in memory ----------------------------------------------------------------------------------


@pytest.fixture
def old():
    """Return a broker with two partitions of three segments each, all on the disk and none in memory."""
    broker = EngineBroker()
    broker.create("flights", 2)
    client = broker.connect()
    for value in (b"a", b"b", b"c"):
        for partition in range(2):
            client.produce("flights", value, partition=partition)
            broker.services.log_of("flights", partition).roll()
    broker = broker.restarted()
    broker.storage.not_in_memory.update(broker.storage.files)
    return broker


def kinds(syncs):
    return [type(sync).__name__ for sync in syncs]


def test_what_is_not_in_memory_is_looked_up_by_a_thread_and_nobody_else_waits(old):
    held = old.hold_syncs()
    reader, writer = old.connect(), old.connect()
    sent = reader.send(FETCH, 12, fetch_request("flights", 1))
    assert reader.replies() == [] and kinds(held) == ["VerifyJob"]
    assert writer.produce("flights", b"d").base_offset == 3
    assert writer.fetch("flights", 3) == [b"d"], "what was just written is in memory"
    old.release()
    ((answered, answer),) = reader.replies()
    assert answered == sent and values_of(answer) == [b"b"]


@pytest.mark.parametrize("wants_ids", [False, True])
def test_memory_that_is_too_short_to_keep_it_does_not_keep_the_answer(old, wants_ids):
    held = old.hold_syncs()
    reader = old.connect()
    reader.send(FETCH, 12, fetch_request("flights", wants_ids=wants_ids))
    old.run(held.pop())
    old.storage.not_in_memory.update(old.storage.files)
    old.pump()
    ((_, answer),) = reader.replies()
    assert values_of(answer) == [b"a"] and bool(answer.partitions[0].ids) == wants_ids


def test_all_partitions_of_a_fetch_are_looked_up_together(old):
    held = old.hold_syncs()
    reader = old.connect()
    request = fetch_request("flights", max_wait_ms=10)
    request.partitions.append(fetch_request("flights", partition=1).partitions[0])
    reader.send(FETCH, 12, request)
    assert kinds(held) == ["VerifyJob"] * 2
    old.run(held.pop())
    old.at(old.now_ms + 1_000)
    assert reader.replies() == [], "an answer without records would say that there are none"
    old.release()
    ((_, answer),) = reader.replies()
    assert all(partition.records for partition in answer.partitions)


def test_a_topic_that_is_deleted_while_it_is_looked_up_is_answered(old):
    old.hold_syncs()
    reader = old.connect()
    reader.send(FETCH, 12, fetch_request("flights"))
    old.delete("flights")
    old.release()
    ((_, answer),) = reader.replies()
    assert answer.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_reader_that_leaves_while_its_records_are_looked_up_is_forgotten(old):
    old.hold_syncs()
    reader = old.connect()
    reader.send(FETCH, 12, fetch_request("flights"))
    old.engine.closed(reader.conn)
    old.release()
    assert len(old.services.purgatory) == 0


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_fetch_that_waited_leaves_nothing_to_the_garbage_collector(is_answered):
    """It would keep the files of segments open, and their space on the disk after retention."""
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    client.send(FETCH, 12, fetch_request("flights", 0, max_wait_ms=1_000))
    (waiting,) = [slot.delayed for slot in client.conn.slots]
    freed = ref(waiting)
    gc.disable()
    try:
        del waiting
        if is_answered:
            broker.connect().produce("flights", b"a")
        else:
            broker.engine.closed(client.conn)
        assert freed() is None
    finally:
        gc.enable()
