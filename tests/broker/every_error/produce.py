"""Rows of the table of errors: Produce."""

from broker.record.compression import Codec
from broker.wire.errors import ErrorCode as E
from tests.broker.any_api import batch_of
from tests.broker.every_error.case import FAR_AHEAD_MS, NOWHERE, OFFSETS, Case, offline


def to_topic(world, batch=None, **configs):
    return world.produce(world.create(1, **configs), batch)


def of_producer(world, epoch=0, sequence=0, transactional=False):
    fields = {"producer_epoch": epoch, "base_sequence": sequence, "transactional": transactional}
    return batch_of(producer_id=1_000_000 + world.number, **fields)


def after(world, *batches):
    """Produce the batches in order; return the answer to the last one."""
    topic = world.create(1)
    return [world.produce(topic, batch) for batch in batches][-1]


def in_transaction(world, batch=None, producer=None, name=None, partition=0):
    """Produce a batch in a transaction that has partition 0."""
    mine = world.producer()
    world.add(mine)
    producer = producer or mine
    fields = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": 0}
    return world.produce(
        batch=batch or batch_of(**fields, transactional=True),
        partition=partition,
        transactional_id=world.transactional_id if name is None else name,
    )


def while_it_ends(world):
    """Produce a batch of the next transaction while the previous one waits for a partition to take its marker."""
    producer = world.producer()
    world.add(producer, (world.topic, 0), (world.topic, 1))
    world.broker.services.logs.get(world.topic, 1).offline = "a sync failed"
    world.end(producer, version=3)
    batch = batch_of(producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
    return world.produce(batch=batch, transactional_id=world.transactional_id)


def plain_in_transaction(world):
    producer = world.producer()
    world.add(producer)
    world.write(producer)
    return world.produce(batch=batch_of(producer_id=producer[0], producer_epoch=producer[1], base_sequence=1))


def never_synced(world):
    """Produce to a disk that never finishes its sync; return the answer."""
    topic = world.create(1, flakelog_durable_acks="true")
    world.broker.hold_syncs()
    return world.produce(topic)


def corrupt():
    batch = batch_of()
    batch[-1] ^= 1
    return batch


def fenced_batch(world):
    old = world.producer()
    world.add(old)
    world.end(old)
    world.producer()
    return world.write(old) if world.name != "Produce" else in_name_of(world, old)


def in_name_of(world, producer):
    fields = {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": 0, "transactional": True}
    return world.produce(batch=batch_of(**fields), transactional_id=world.transactional_id)


PRODUCE = [
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(NOWHERE), newest=12),
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(partition=7)),
    Case("Produce", E.UNKNOWN_TOPIC_ID, lambda w: w.produce(NOWHERE), oldest=13),
    Case("Produce", E.INVALID_REQUIRED_ACKS, lambda w: w.produce(acks=2)),
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(NOWHERE, acks=2), newest=12),
    Case("Produce", E.UNKNOWN_TOPIC_OR_PARTITION, lambda w: w.produce(partition=7, acks=2)),
    Case("Produce", E.UNKNOWN_TOPIC_ID, lambda w: w.produce(NOWHERE, acks=2), oldest=13),
    Case("Produce", E.INVALID_REQUEST, lambda w: in_transaction(w, name="", partition=1)),
    Case("Produce", E.INVALID_TOPIC_EXCEPTION, lambda w: w.coordinated() or w.produce(OFFSETS)),
    Case("Produce", E.CORRUPT_MESSAGE, lambda w: w.produce(batch=corrupt())),
    Case("Produce", E.MESSAGE_TOO_LARGE, lambda w: to_topic(w, max_message_bytes=50)),
    # Flakelog stores such a batch in a separate segment.
    Case("Produce", E.NONE, lambda w: to_topic(w, batch_of(value=bytes(1_200_000)), segment_bytes=1 << 20,
         max_message_bytes=2_000_000), kafka=E.RECORD_LIST_TOO_LARGE),
    Case("Produce", E.INVALID_RECORD, lambda w: to_topic(w, batch_of(None), cleanup_policy="compact")),
    Case("Produce", E.INVALID_RECORD, lambda w: w.produce(batch=batch_of(control=True))),
    Case("Produce", E.INVALID_TIMESTAMP, lambda w: w.produce(batch=batch_of(time_ms=FAR_AHEAD_MS))),
    Case("Produce", E.UNSUPPORTED_COMPRESSION_TYPE, lambda w: w.produce(batch=batch_of(codec=Codec.ZSTD)), newest=6),
    Case("Produce", E.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda w: after(w, of_producer(w), of_producer(w, sequence=5))),
    Case("Produce", E.INVALID_PRODUCER_EPOCH, lambda w: after(w, of_producer(w, 2), of_producer(w, 1))),
    Case("Produce", E.INVALID_PRODUCER_EPOCH, fenced_batch),
    Case(
        "Produce", E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        lambda w: w.produce(batch=of_producer(w, transactional=True)),
    ),
    Case("Produce", E.INVALID_PRODUCER_ID_MAPPING, lambda w: in_transaction(w, name="nobody")),
    Case("Produce", E.INVALID_PRODUCER_ID_MAPPING, lambda w: in_transaction(w, producer=(1 << 40, 0))),
    Case("Produce", E.INVALID_TXN_STATE, lambda w: in_transaction(w, partition=1), newest=10),
    Case("Produce", E.TRANSACTION_ABORTABLE, lambda w: in_transaction(w, partition=1), oldest=11, newest=11),
    # From v12 on Kafka adds the partition automatically; clients rely on it only if they saw transaction.version 2.
    Case("Produce", E.TRANSACTION_ABORTABLE, lambda w: in_transaction(w, partition=1), oldest=12, kafka=E.NONE),
    Case("Produce", E.INVALID_TXN_STATE, plain_in_transaction),
    Case("Produce", E.KAFKA_STORAGE_ERROR, lambda w: w.produce(offline(w)), inside=True),
    Case("Produce", E.REQUEST_TIMED_OUT, never_synced, inside=True),
    Case("Produce", E.NOT_ENOUGH_REPLICAS, while_it_ends, inside=True),
]  # fmt: skip
