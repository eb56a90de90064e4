"""Produce through the wire, and every error code that it answers, at the lowest and the highest version served
(https://kafka.apache.org/protocol#The_Messages_Produce)."""

import json
from dataclasses import replace
from uuid import UUID

import pytest

from broker.record.batch import HEADER_BYTES, read_header, seal
from broker.record.compression import Codec
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from tests.broker.engine_client import (
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    WALL_MS,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
)

LOWEST, HIGHEST = 3, 13
HOUR_MS = 3_600_000

at_both_ends = pytest.mark.parametrize("version", [LOWEST, HIGHEST])


@pytest.fixture
def broker():
    return EngineBroker()


class Producer:
    """A client at one version; it names topics as that version does."""

    def __init__(self, broker, version, client_id="test"):
        self.broker = broker
        self.version = version
        self.client = broker.connect(client_id)

    def send(self, topic, batch, partition=0, acks=1):
        """Send one batch and return its result."""
        topic_metadata = self.broker.services.metadata.topic(topic)
        name = topic_metadata.id if topic_metadata is not None and self.version >= HIGHEST else topic
        request = produce_request(name, partition=partition, batch=batch, acks=acks)
        return self.client.ask(PRODUCE, self.version, request)[0]

    def refused(self, code, topic, batch, **more):
        """Send a batch that must be refused with `code` and without an offset; return the result."""
        result = self.send(topic, batch, **more)
        assert result.error_code == code, ErrorCode(result.error_code).name
        assert (result.base_offset, result.log_append_time_ms) == (-1, -1)
        assert bool(result.message) == (self.version >= 8), "from v8 on it says why"
        return result


def end_of(broker, topic, partition=0):
    return broker.services.log_of(topic, partition).log_end_offset


def stored(client, topic):
    """Return the records as a consumer receives them, and the header of the first batch."""
    (partition,) = client.ask(FETCH, 12, fetch_request(topic)).partitions
    return decode_records(partition.records), read_header(partition.records)


# --- error codes -------------------------------------------------------------------------------------------------


@at_both_ends
@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_other_than_0_1_and_all_are_refused(broker, version, acks):
    broker.create("flights")
    Producer(broker, version).refused(ErrorCode.INVALID_REQUIRED_ACKS, "flights", batch_of(b"a"), acks=acks)


@at_both_ends
def test_a_topic_that_is_not_there(broker, version):
    topic, code = "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version >= HIGHEST:
        topic, code = UUID(int=77), ErrorCode.UNKNOWN_TOPIC_ID
    Producer(broker, version).refused(code, topic, batch_of(b"a"))


@at_both_ends
@pytest.mark.parametrize("partition", [2, -1])
def test_a_partition_that_is_not_there(broker, version, partition):
    broker.create("flights", 2)
    Producer(broker, version).refused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "flights", batch_of(b"a"), partition=partition
    )


@at_both_ends
def test_a_partition_that_another_node_leads(broker, version):
    broker.create("flights")
    document = json.loads(broker.storage.open("metadata.json").read(0, 1 << 20))
    document["topics"]["flights"]["partitions"] = [[2, 0, [2]]]
    del document["crc32c"]  # as the version before it
    broker.storage.replace("metadata.json", json.dumps(document | {"version": 1}).encode())
    again = broker.restarted()
    Producer(again, version).refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "flights", batch_of(b"a"))


@at_both_ends
@pytest.mark.parametrize("damage, code", [("flipped", ErrorCode.CORRUPT_MESSAGE), ("cut", ErrorCode.INVALID_RECORD)])
def test_damage_on_the_way(broker, version, damage, code):
    """A cut batch is INVALID_RECORD, as in Kafka, which finds no batch in it."""
    broker.create("flights")
    batch = batch_of(b"value")
    if damage == "flipped":
        batch[-1] ^= 1
    else:
        del batch[-1]
    Producer(broker, version).refused(code, "flights", batch)
    assert end_of(broker, "flights") == 0


@at_both_ends
@pytest.mark.parametrize("batch", [b"", batch_of(b"a") * 2, batch_of(b"a", control=True)])
def test_what_is_not_one_batch_of_messages(broker, version, batch):
    broker.create("flights")
    Producer(broker, version).refused(ErrorCode.INVALID_RECORD, "flights", batch)
    assert end_of(broker, "flights") == 0


@at_both_ends
def test_a_batch_that_is_too_large(broker, version):
    broker.create("flights", max_message_bytes=100)
    Producer(broker, version).refused(ErrorCode.MESSAGE_TOO_LARGE, "flights", batch_of(b"x" * 100))


@pytest.mark.parametrize("version, code", [(3, 76), (6, 76), (7, 0), (13, 0)])
def test_zstd_is_for_versions_that_have_it(broker, version, code):
    """Produce has zstd since v7 (KIP-110)."""
    broker.create("flights")
    result = Producer(broker, version).send("flights", batch_of(b"a" * 50, codec=Codec.ZSTD))
    assert result.error_code == code


@at_both_ends
def test_a_codec_that_does_not_exist(broker, version):
    broker.create("flights")
    batch = batch_of(b"a")
    seal(batch, read_header(batch)._replace(attributes=5))
    Producer(broker, version).refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "flights", batch)


@at_both_ends
def test_a_time_too_far_ahead(broker, version):
    """message.timestamp.after.max.ms is an hour (KIP-937)."""
    broker.create("flights")
    late = WALL_MS + broker.now_ms + HOUR_MS
    producer = Producer(broker, version)
    assert producer.send("flights", batch_of(b"a", timestamp_ms=late)).error_code == 0
    result = producer.refused(ErrorCode.INVALID_TIMESTAMP, "flights", batch_of(b"a", b"b", timestamp_ms=late + 1))
    assert [index for index, _ in result.record_errors] == ([0, 1] if version >= 8 else [])
    assert end_of(broker, "flights") == 1


@at_both_ends
def test_a_message_without_a_key_for_a_compacted_topic(broker, version):
    broker.create("flights", cleanup_policy="compact")
    records = [BatchRecord(0, 0, b"k", b"a"), BatchRecord(1, 0, None, b"b"), BatchRecord(2, 0, b"k", b"c")]
    batch = encode_batch(records, base_timestamp_ms=WALL_MS)
    result = Producer(broker, version).refused(ErrorCode.INVALID_RECORD, "flights", batch)
    reason = "Compacted topic cannot accept message without key in topic partition flights-0"
    assert list(result.record_errors) == ([(1, reason)] if version >= 8 else [])
    assert end_of(broker, "flights") == 0


@at_both_ends
def test_an_internal_topic_is_not_for_clients(broker, version):
    """Kafka's tools may produce to it; the broker knows them by their client id."""
    broker.create("__consumer_offsets", cleanup_policy="compact")
    batch = encode_batch([BatchRecord(0, 0, b"key", b"value")], base_timestamp_ms=WALL_MS)
    Producer(broker, version).refused(ErrorCode.INVALID_TOPIC_EXCEPTION, "__consumer_offsets", batch)
    assert Producer(broker, version, "__admin_client").send("__consumer_offsets", batch).error_code == 0


def from_producer(*values, sequence=0, epoch=0):
    return batch_of(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


@at_both_ends
def test_a_gap_in_the_sequence(broker, version):
    """The error is OUT_OF_ORDER_SEQUENCE_NUMBER (KIP-98)."""
    broker.create("flights")
    producer = Producer(broker, version)
    assert producer.send("flights", from_producer(b"a", b"b")).error_code == 0
    producer.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "flights", from_producer(b"d", sequence=3))
    assert producer.send("flights", from_producer(b"c", sequence=2)).base_offset == 2


@at_both_ends
def test_an_epoch_that_is_over(broker, version):
    """The error is INVALID_PRODUCER_EPOCH (KIP-98, KIP-360)."""
    broker.create("flights")
    producer = Producer(broker, version)
    assert producer.send("flights", from_producer(b"a", epoch=2)).error_code == 0
    producer.refused(ErrorCode.INVALID_PRODUCER_EPOCH, "flights", from_producer(b"b", sequence=1, epoch=1))


@at_both_ends
def test_a_producer_without_a_sequence(broker, version):
    broker.create("flights")
    Producer(broker, version).refused(ErrorCode.INVALID_RECORD, "flights", from_producer(b"a", sequence=-1))


@at_both_ends
def test_a_disk_that_is_full(broker, version):
    broker.create("flights")
    producer = Producer(broker, version)
    broker.storage.free_bytes = 0
    producer.refused(ErrorCode.KAFKA_STORAGE_ERROR, "flights", batch_of(b"a"))
    broker.storage.free_bytes = None
    assert producer.send("flights", batch_of(b"a")).base_offset == 0


@at_both_ends
def test_a_batch_with_offsets_of_its_own(broker, version):
    broker.create("flights")
    sent = batch_of(b"a")
    seal(sent, read_header(sent)._replace(base_offset=7))
    Producer(broker, version).refused(ErrorCode.INVALID_RECORD, "flights", sent)


@at_both_ends
def test_a_time_that_is_not_the_brokers_though_the_batch_says_so(broker, version):
    """The broker clears the bit; on a topic with LogAppendTime it refuses the batch (Kafka's LogValidator)."""
    broker.create("flights")
    broker.create("stamped", message_timestamp_type="LogAppendTime")
    marked = batch_of(b"a")
    seal(marked, read_header(marked)._replace(attributes=0x08))
    producer = Producer(broker, version)
    producer.refused(ErrorCode.INVALID_TIMESTAMP, "stamped", bytearray(marked))
    assert producer.send("flights", marked).log_append_time_ms == -1
    (record,), header = stored(producer.client, "flights")
    assert (record.timestamp_ms, header.is_log_append_time) == (WALL_MS, False)


@at_both_ends
def test_a_batch_of_a_transaction_without_a_transactional_id(broker, version):
    """The broker refuses the request's other batches too, as Kafka does."""
    topic = broker.create("flights", 2)
    name = topic.id if version >= HIGHEST else "flights"
    for producer in ({}, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}):
        sent = batch_of(b"a", transactional=True, **producer)
        Producer(broker, version).refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "flights", bytearray(sent)
        )
        parts = [(name, n, memoryview(batch)) for n, batch in enumerate([batch_of(b"b"), sent])]
        results = broker.connect().ask(PRODUCE, version, ProduceRequest(None, 1, 1000, parts, False))
        assert [result.error_code for result in results] == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
    client = broker.connect()
    client.send(PRODUCE, version, ProduceRequest(None, 0, 1000, parts, False))
    assert "without transactional id" in client.closed
    assert [end_of(broker, "flights", n) for n in range(2)] == [0, 0]


@at_both_ends
def test_a_batch_of_a_transaction_that_is_no_producers(broker, version):
    """No marker would ever end it, so a read_committed consumer would wait for ever."""
    topic = broker.create("flights")
    name = topic.id if version >= HIGHEST else "flights"
    records = (name, 0, memoryview(batch_of(b"a", transactional=True)))
    request = ProduceRequest("payments", -1, 1000, [records], False)
    (result,) = broker.connect().ask(PRODUCE, version, request)
    assert result.error_code == ErrorCode.INVALID_TXN_STATE and end_of(broker, "flights") == 0


@at_both_ends
def test_a_partition_that_is_offline(broker, version):
    broker.create("flights")
    broker.services.log_of("flights", 0).offline = "a sync failed"
    Producer(broker, version).refused(ErrorCode.KAFKA_STORAGE_ERROR, "flights", batch_of(b"a"))


@at_both_ends
def test_a_broker_that_may_give_no_ids(broker, version):
    broker.create("flights")
    broker.worker.fence("another process has the worker number")
    Producer(broker, version).refused(ErrorCode.KAFKA_STORAGE_ERROR, "flights", batch_of(b"a"))


@at_both_ends
def test_of_a_request_that_ids_run_out_for_the_rest_is_to_be_sent_again(version):
    broker = EngineBroker(max_ahead_ms=1)  # 8,192 ids in one burst
    topic = broker.create("flights", 3)
    name = topic.id if version >= HIGHEST else "flights"
    parts = [(name, p, memoryview(batch_of(*[b""] * 4_000))) for p in range(3)]
    results = broker.connect().ask(PRODUCE, version, ProduceRequest(None, 1, 1000, parts, False))
    assert [result.error_code for result in results] == [0, 0, ErrorCode.REQUEST_TIMED_OUT]


@at_both_ends
def test_one_partition_that_is_refused_takes_no_other_with_it(broker, version):
    topic = broker.create("flights", 3)
    name = topic.id if version >= HIGHEST else "flights"
    parts = [
        (name, partition, memoryview(batch))
        for partition, batch in enumerate([batch_of(b"a"), bytearray(100), batch_of(b"c")])
    ]
    results = broker.connect().ask(PRODUCE, version, ProduceRequest(None, -1, 1000, parts, False))
    assert [result.error_code == 0 for result in results] == [True, False, True]
    assert [end_of(broker, "flights", n) for n in range(3)] == [1, 0, 1]


@at_both_ends
def test_without_acks_an_error_can_only_be_told_by_closing(broker, version):
    broker.create("flights", cleanup_policy="compact")
    producer = Producer(broker, version)
    name = broker.services.metadata.topic("flights").id if version >= HIGHEST else "flights"
    producer.client.send(PRODUCE, version, produce_request(name, b"no key", acks=0))
    assert "acks=0 failed" in producer.client.closed


# --- a topic's rules for its records -----------------------------------------------------------------------------


@at_both_ends
def test_with_log_append_time_the_answer_and_the_records_have_the_brokers_time(broker, version):
    broker.create("flights", message_timestamp_type="LogAppendTime")
    producer = Producer(broker, version)
    result = producer.send("flights", batch_of(b"a", b"b", timestamp_ms=5))
    now_ms = WALL_MS + broker.now_ms
    assert (result.base_offset, result.log_append_time_ms) == (0, now_ms)
    records, header = stored(producer.client, "flights")
    assert header.is_log_append_time and [record.timestamp_ms for record in records] == [now_ms, now_ms]


@at_both_ends
def test_with_log_append_time_a_repeated_batch_is_answered_with_the_time_it_got(broker, version):
    broker.create("flights", message_timestamp_type="LogAppendTime")
    producer = Producer(broker, version)
    first = producer.send("flights", from_producer(b"a"))
    broker.at(broker.now_ms + 500)
    assert producer.send("flights", from_producer(b"a")) == first
    assert end_of(broker, "flights") == 1


def test_offsets_are_found_by_log_append_time(broker):
    broker.create("flights", message_timestamp_type="LogAppendTime")
    client = broker.connect()
    times = []
    for value in (b"a", b"b", b"c"):
        client.ask(PRODUCE, 9, produce_request("flights", batch=batch_of(value, value, timestamp_ms=1)))
        times.append(WALL_MS + broker.now_ms)
        broker.at(broker.now_ms + 100)

    def offset_of(timestamp):
        partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        request = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "flights", "partitions": [partition]}]}
        result = client.ask(LIST_OFFSETS, 7, request).topics[0].partitions[0]
        return result.offset, result.timestamp

    assert offset_of(times[1]) == offset_of(times[0] + 1) == (2, times[1])
    assert offset_of(-3)[0] == 4, "the largest timestamp is that of the last batch"
    assert offset_of(times[2] + 1)[0] == -1


def test_a_batch_is_kept_in_the_topics_codec_at_its_offsets_with_its_sequence(broker):
    broker.create("flights", compression_type="zstd")
    client = broker.connect()
    client.produce("flights", b"before")
    values = [b"value %d" % n for n in range(100)]
    for _ in range(2):  # the second time it is a duplicate
        result = client.ask(PRODUCE, 9, produce_request("flights", batch=from_producer(*values)))[0]
        assert (result.error_code, result.base_offset) == (0, 1)
    (partition,) = client.ask(FETCH, 12, fetch_request("flights", offset=1)).partitions
    header = read_header(partition.records)
    assert (header.compression, header.base_offset, header.producer_id, header.base_sequence) == (4, 1, 7, 0)
    assert [record.value for record in decode_records(partition.records)] == values


def test_with_id_headers_each_record_carries_the_id_it_has(broker):
    broker.create("flights", flakelog_id_header="true")
    client = broker.connect()
    for _ in range(2):
        (result,) = client.ask(PRODUCE, 9, produce_request("flights", b"a", b"b", b"c", wants_ids=True))
    ids = [first + n for first, length in result.runs for n in range(length)]
    (partition,) = client.ask(FETCH, 12, fetch_request("flights", offset=3)).partitions
    records = decode_records(partition.records)
    assert [record.headers for record in records] == [(("flakelog-id", b"%d" % id),) for id in ids]
    assert [(record.offset, record.value) for record in records] == [(3, b"a"), (4, b"b"), (5, b"c")]


def test_records_that_cannot_take_an_id_leave_the_log_as_it_was(broker):
    broker.create("flights", flakelog_id_header="true")
    client = broker.connect()
    good = batch_of(b"x" * 30)
    bad = bytearray(good)
    bad[HEADER_BYTES:] = b"\x7f" * (len(good) - HEADER_BYTES)
    seal(bad, read_header(bad))
    result = client.ask(PRODUCE, 9, produce_request("flights", batch=bad))[0]
    assert result.error_code == ErrorCode.INVALID_RECORD and end_of(broker, "flights") == 0
    assert client.produce("flights", b"next").base_offset == 0
    again = broker.restarted(clean=False)
    assert end_of(again, "flights") == 1


def test_a_request_that_waits_for_ids_is_then_taken_as_it_was_sent():
    """A request is retried with the bytes that were received, because a changed header would be refused."""
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights", message_timestamp_type="LogAppendTime", flakelog_id_header="true")
    client = broker.connect()
    broker.worker.next_ids(4_090, broker.now.wall_ms)
    client.send(PRODUCE, 9, produce_request("flights", *[b"v"] * 10))
    assert not client.replies()
    broker.at(broker.now_ms + 5)
    ((_, (result,)),) = client.replies()
    assert (result.error_code, result.base_offset) == (0, 0)
    assert len(client.fetch("flights")) == 10


@pytest.mark.parametrize("acks", [1, -1])
def test_one_replica_is_in_sync_however_many_a_topic_wants(broker, acks):
    """Kafka requires no more replicas than a partition has (Partition.effectiveMinIsr): one node accepts acks=all."""
    broker.create("flights", min_insync_replicas=2)
    assert broker.connect().produce("flights", b"a", acks=acks).error_code == 0


def test_times_are_looked_at_also_where_requests_repeat(broker):
    """The fast path of a request that repeats the previous one checks times too."""
    broker.create("flights")
    client = broker.connect()
    late = WALL_MS + broker.now_ms + 2 * HOUR_MS
    codes = [
        client.ask(PRODUCE, 9, produce_request("flights", batch=batch_of(b"a", timestamp_ms=time)))[0].error_code
        for time in (WALL_MS, WALL_MS, late, WALL_MS)
    ]
    assert codes == [0, 0, ErrorCode.INVALID_TIMESTAMP, 0]


def test_a_setting_that_changes_is_met_by_the_next_request(broker):
    broker.create("flights")
    client = broker.connect()
    for _ in range(2):
        assert client.produce("flights", b"no key").error_code == 0
    log = broker.services.log_of("flights", 0)
    log.config = replace(log.config, cleanup_policy="compact")
    assert client.produce("flights", b"no key").error_code == ErrorCode.INVALID_RECORD
