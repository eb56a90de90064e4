"""The largest requests about records and offsets of logs."""

from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from tests.broker.any_api import batch_of
from tests.broker.largest_requests.case import PARTITIONS, case, logs, names


def produced(batch, number):
    parts = [{"index": index, "records": bytes(batch)} for index in range(number)]
    topic = {"name": "wide", "partition_data": parts}
    return {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": [topic]}


@case("Produce", 12, most=PARTITIONS)
def produce_to_partitions(world, number):
    logs(world, number)
    return produced(batch_of(), number)


@case("Produce", 12, most=PARTITIONS)
def produce_with_the_time_of_the_append(world, number):
    logs(world, number, message_timestamp_type="LogAppendTime")
    return produced(batch_of(), number)


@case("Produce", 12, most=PARTITIONS)
def produce_compressed_records(world, number):
    logs(world, number)
    return produced(encode_batch([BatchRecord(0, 0, None, b"x" * 100)], base_timestamp_ms=0, codec=Codec.ZSTD), number)


@case("Produce", 12, most=PARTITIONS)
def produce_to_unknown_topics(world, number):
    batch = bytes(batch_of())
    data = [{"name": name, "partition_data": [{"index": 0, "records": batch}]} for name in names(number)]
    return {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": data}


def fetched(topics_and_partitions, session=(0, -1)):
    part = {"fetch_offset": 0, "partition_max_bytes": 1 << 20}
    wanted = [
        {"topic": topic, "partitions": [part | {"partition": index} for index in indexes]}
        for topic, indexes in topics_and_partitions
    ]
    fields = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "replica_id": -1}
    return fields | {"session_id": session[0], "session_epoch": session[1], "topics": wanted}


@case("Fetch", 12, most=PARTITIONS)
def fetch_partitions(world, number):
    return fetched([(logs(world, number), range(number))])


@case("Fetch", 12, most=PARTITIONS)
def fetch_unknown_topics(world, number):
    return fetched([(name, [0]) for name in names(number)])


@case("Fetch", 12, most=PARTITIONS)
def begin_a_fetch_session(world, number):
    return fetched([(logs(world, number), range(number))], (0, 0))


@case("ListOffsets", 7, most=PARTITIONS)
def list_offsets_of_partitions(world, number):
    parts = [{"partition_index": index, "timestamp": -1} for index in range(number)]
    return {"replica_id": -1, "topics": [{"name": logs(world, number), "partitions": parts}]}


@case("ListOffsets", 7, most=PARTITIONS)
def list_offsets_of_unknown_topics(world, number):
    parts = [{"partition_index": 0, "timestamp": -1}]
    return {"replica_id": -1, "topics": [{"name": name, "partitions": parts} for name in names(number)]}


@case("OffsetForLeaderEpoch", most=PARTITIONS)
def leader_epochs(world, number):
    parts = [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0} for index in range(number)]
    return {"replica_id": -1, "topics": [{"topic": logs(world, number), "partitions": parts}]}


@case("DeleteRecords", most=PARTITIONS)
def delete_records(world, number):
    parts = [{"partition_index": index, "offset": -1} for index in range(number)]
    return {"topics": [{"name": logs(world, number), "partitions": parts}], "timeout": 1_000}
