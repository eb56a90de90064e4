"""Requests that cannot be carried out completely: they leave nothing behind, or their answers name what failed."""

from broker.log.storage import reserve
from broker.record.records import BatchRecord, encode_batch
from broker.settings.config import BrokerConfig
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from tests.broker.engine_client import CREATE_TOPICS, METADATA, PRODUCE, EngineBroker


def test_a_topic_that_does_not_fit_on_the_disk_is_refused_and_leaves_nothing():
    broker = EngineBroker()
    client = broker.connect()
    broker.storage.free_bytes = 700  # enough for the metadata, not for the files of every partition
    topic = {"name": "flights", "num_partitions": 50, "replication_factor": 1, "assignments": (), "configs": ()}
    answer = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
    broker.storage.free_bytes = None
    if answer.topics[0].error_code == ErrorCode.NONE:  # the storage decides how much a file takes
        raise AssertionError("the disk was not full: lower free_bytes")
    assert answer.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "No space left" in answer.topics[0].error_message
    fields = {"topics": [{"name": "flights"}], "allow_auto_topic_creation": False}
    assert client.ask(METADATA, 9, fields).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000}).topics[0].error_code == ErrorCode.NONE


def with_full_disk():
    """Return a broker with a topic on a disk with a reserve, and no space beside it."""
    broker = EngineBroker()
    broker.create("flights")
    broker.at(broker.now_ms + 1)
    assert broker.storage.exists(reserve.FILE)
    broker.storage.gives_back = True
    broker.storage.free_bytes = 0
    broker.at(broker.now_ms + 10_000)
    assert broker.services.logs.disk.is_full
    return broker


def test_while_the_disk_is_full_a_message_that_would_fit_is_refused_and_reads_are_served():
    broker = with_full_disk()
    broker.storage.free_bytes = BrokerConfig().disk_full_bytes - 1
    client = broker.connect()
    end_offset = broker.services.logs.get("flights", 0).log_end_offset
    refused = client.produce("flights", b"a line")
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert refused.message == "flights-0: the disk of /memory is full; messages are taken again when it has space"
    assert broker.services.logs.get("flights", 0).log_end_offset == end_offset and client.fetch("flights") == []
    broker.storage.free_bytes = 1 << 30
    broker.at(broker.now_ms + 2_000)
    assert client.produce("flights", b"a line").error_code == 0


def test_on_a_full_disk_a_topic_is_deleted_with_the_reserve_and_none_is_created_with_it():
    broker = with_full_disk()
    client = broker.connect()
    topic = {"name": "trains", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    answer = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
    assert answer.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR and broker.storage.exists(reserve.FILE)
    broker.delete("flights")
    assert not broker.storage.exists(reserve.FILE) and not broker.storage.list("flights-0")
    assert broker.restarted(clean=False).services.metadata.topic("flights") is None


def records(number):
    return encode_batch([BatchRecord(i, 0, None, b"") for i in range(number)], base_timestamp_ms=1)


def test_a_request_for_more_ids_than_there_are_is_answered_partition_by_partition():
    broker = EngineBroker(max_ahead_ms=1)  # 8,192 ids in one burst
    broker.create("flights", 3)
    client = broker.connect()
    parts = [("flights", p, memoryview(records(4_000))) for p in range(3)]
    results = client.ask(PRODUCE, 9, ProduceRequest(None, 1, 1000, parts, False))
    codes = [result.error_code for result in results]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
    broker.at(broker.now_ms + 10)
    again = client.ask(PRODUCE, 9, ProduceRequest(None, 1, 1000, [parts[2]], False))
    assert (again[0].error_code, again[0].base_offset) == (ErrorCode.NONE, 0)
