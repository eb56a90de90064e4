"""Requests that cannot be carried out completely: they leave nothing behind, or their answers name what failed."""

from broker.log.storage import reserve
from broker.record.records import BatchRecord, encode_batch
from broker.settings.config import BrokerConfig
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from tests.broker.engine_client import CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_LOG_DIRS, METADATA, PRODUCE, EngineBroker
from tests.broker.handlers.produce_requests import of_producer, offsets_of, producing


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
    return filled(broker)


def filled(broker):
    """Take all space of a broker's disk but the reserve, and return the broker."""
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


def test_on_a_full_disk_a_topic_is_deleted_also_if_another_is_created_in_the_same_write():
    broker = with_full_disk()
    clients = broker.connect(), broker.connect()
    topic = {"name": "trains", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    with broker.turn():
        clients[0].send(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
        clients[1].send(DELETE_TOPICS, 6, {"topics": [{"name": "flights"}], "timeout": 1000})
    created, deleted = [client.replies()[0][1] for client in clients]
    assert created.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "No space left" in created.topics[0].error_message
    assert deleted.responses[0].error_code == 0
    names = broker.restarted(clean=False).services.metadata
    assert names.topic("flights") is None and names.topic("trains") is None


def test_a_write_of_which_a_full_disk_took_a_part_tells_that_the_disk_is_full():
    broker = EngineBroker()
    broker.create("flights")
    broker.at(broker.now_ms + 10_000)
    broker.storage.gives_back, broker.storage.free_bytes = True, 0
    disk = broker.services.logs.disk
    assert broker.storage.exists(reserve.FILE) and not disk.is_full
    clients = broker.connect(), broker.connect()
    topic = {"name": "trains", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    with broker.turn():
        clients[0].send(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
        clients[1].send(DELETE_TOPICS, 6, {"topics": [{"name": "flights"}], "timeout": 1000})
    broker.at(broker.now_ms + 1)
    assert disk.is_full, "the next look at the disk is 10 s away"


def test_bytes_that_the_reserve_lacks_are_not_usable_to_clients_that_look_at_the_disk():
    """KIP-827: `flakelog produce` names a full disk by these bytes."""
    broker = with_full_disk()
    broker.delete("flights")  # takes the reserve
    broker.storage.free_bytes = 2 * BrokerConfig().disk_full_bytes
    broker.at(broker.now_ms + 1_000)
    (directory,) = broker.connect().ask(DESCRIBE_LOG_DIRS, 4, {"topics": ()}).results
    disk = broker.services.logs.disk
    assert directory.usable_bytes == disk.usable_bytes == broker.storage.free_bytes - disk.lacking_bytes
    assert disk.lacking_bytes > 0


def test_while_the_disk_is_full_a_batch_that_the_log_has_is_answered_as_the_first_time():
    """The producer did not get the answer, and sends the batch again (KIP-98)."""
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    client.send_together(*[producing(batch=of_producer(b"%d" % n, n)) for n in range(2)])
    assert offsets_of(client) == [0, 1]
    filled(broker)
    client.send_together(*[producing(batch=of_producer(b"%d" % n, n)) for n in (1, 2, 3, 0)])
    results = [reply[0] for _, reply in client.replies()]
    codes = [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert [result.error_code for result in results] == codes
    assert [results[0].base_offset, results[3].base_offset] == [1, 0]
    assert client.fetch("flights") == [b"0", b"1"]


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
