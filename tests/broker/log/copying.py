"""A follower in a test: fetch answers of a leader's log, copied into another log, and what both must have in common."""

from broker.log import log_reader
from broker.log.checkpoint import LogPosition
from broker.log.copied_appender import append_copied
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.batch import walk
from broker.record.records import decode_records
from broker.settings.config import TopicConfig
from broker.wire.fetch import IdRegion
from tests.broker.log.conftest import NOW, reopen

ALL_BYTES = 1 << 30


def answer_of(leader, offset, max_bytes=ALL_BYTES):
    """Return the records and ids that a follower is sent from an offset on."""
    read = log_reader.read(leader, offset, max_bytes, True, with_ids=True, upto=leader.log_end_offset)
    if not read.records:
        return b"", None
    entries = read.ids.entries
    ids = IdRegion(read.ids.base_offset, entries.file.read(entries.position, entries.length))
    return read.records.file.read(read.records.position, read.records.length), ids


def follower_at(offset=0, storage=None, last_id=-1, **config):
    """Return an empty log that begins at an offset, in leader epoch 0."""
    position = LogPosition(offset, offset, last_id, offset, 0, 0, -1, offset, 0)
    return reopen(storage or MemoryStorage(), position if offset else None, TopicConfig(**config))[0]


def copy(leader, follower, sizes=(ALL_BYTES,), now=NOW):
    """Copy until the follower has all of the leader's log, in answers of `sizes` bytes in turn."""
    follower.follow(leader.leader_epoch)
    number = 0
    while follower.log_end_offset < leader.log_end_offset:
        records, ids = answer_of(leader, follower.log_end_offset, sizes[number % len(sizes)])
        assert append_copied(follower, records, ids, now)
        number += 1


def bytes_of(log):
    return b"".join(segment.log.read(0, segment.size) for segment in log.segments.all)


def ids_of(log):
    """Return {offset: id} of the offsets that have a batch."""
    return {
        entry.offset + n: entry.first_id + n
        for segment in log.segments.all
        for entry in segment.ids.entries()
        for n in range(entry.length)
    }


def headers_of(log):
    return [header for segment in log.segments.all for _, header in segment.batches()]


def producers_of(log):
    """Return what a log knows of its producers, but for the time when it heard of them."""
    return {
        producer_id: (
            producer.epoch,
            [batch[:4] for batch in producer.batches],
            producer.coordinator_epoch,
            producer.first_offset,
        )
        for producer_id, producer in log.producers._producers.items()
    }


def aborted_of(log):
    return log_reader.aborted_transactions(log, log.log_start_offset, log.log_end_offset)


def committed_of(log):
    """Return (offset, key, value) of the records that a read_committed consumer gets."""
    records, offset, aborting = [], log.log_start_offset, set()
    while offset < log.last_stable_offset:
        read = log_reader.read(log, offset, 2_000, True, committed=True)
        if not read.records:
            return records
        aborted = sorted(read.aborted, key=lambda transaction: transaction[1])
        data = read.records.file.read(read.records.position, read.records.length)
        for position, header in walk(data):
            while aborted and aborted[0][1] <= header.last_offset:
                aborting.add(aborted.pop(0)[0])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in aborting:
                batch = decode_records(data, position)
                records += [(record.offset, record.key, record.value) for record in batch if record.offset >= offset]
            offset = header.last_offset + 1
    return records
