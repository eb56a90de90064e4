"""The committed records of a simulated cluster: each later leader has them, unless its election was unclean.

    lost-commit       a new leader lacks a record that an earlier high watermark has passed, or has another in its place
    id falls          a committed record has an id that is not above the one before it
    two leaders       two brokers lead a partition in one epoch
    HW falls          the high watermark of a leader falls within an epoch and a life of the leader. A leader that is
                      started again begins with the high watermark on its disk, perhaps in the same epoch (KIP-207)
    HW past the end   a follower's high watermark is past the end of its log (rule R4)
    start passes      a leader deletes records, although neither its topic nor an administrator asks for it

Records count from the moment when a leader's high watermark passes them. So a loss is noticed at the next election, and
not only when a client reads. A consumer may see a record before the leader's disk has it. So with durable acks a power
cut of all may take records that only the followers' disks had, and no producer was answered.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.record.batch import walk
from broker.record.records import LONG_MAX
from tests.broker.engine_client import DAY_MS


class Batch(NamedTuple):
    """A batch of a log: its last offset, leader epoch, CRC, and the ids of its records by their offsets."""

    last_offset: int
    epoch: int
    crc: int
    ids: dict

    def is_as(self, other, start, *, compacted):
        """Return True if this batch may stand for another in a log that begins at `start`."""
        own, ids = ({offset: id for offset, id in batch.ids.items() if offset >= start} for batch in (self, other))
        if compacted:
            return self.epoch == other.epoch and all(own.get(offset, id) == id for offset, id in ids.items())
        return self[:3] == other[:3] and own == ids


@dataclass
class Committed:
    """The committed records of a partition."""

    batches: dict = field(default_factory=dict)
    """By base offset."""
    ends: dict = field(default_factory=dict)
    """By leader epoch: the offset that the leader's high watermark has come to, if no other had come so far."""
    stored_end: int = 0
    """The end of the committed records that are on the leader's disk too."""
    last_id: int = -1

    @property
    def end(self):
        return max(self.ends.values(), default=0)

    def end_in(self, epoch):
        """Return the offset up to which the leaders of an epoch and of those before it have committed.

        The order to lead may come late, when others lead already. Such a leader lacks what they have committed.
        """
        return max((end for led, end in self.ends.items() if led <= epoch), default=0)


class CommittedRecords:
    """See the module. `oracle` knows of unclean elections, and of records that may be deleted."""

    def __init__(self, oracle):
        self._oracle = oracle
        self.partitions = {}
        """By (topic id, partition)."""
        self._leaders = {}
        """By (topic id, partition, leader epoch): the broker that leads."""
        self._highest = {}
        """By process, log and leader epoch: the highest high watermark that the leader has shown."""

    def check_leaders(self, process):
        """Check the partitions that a process leads, and note what their high watermarks have passed."""
        for partition in process.broker.services.replication.led.all():
            log, state = partition.log, partition.state
            if state is None:
                continue
            key, epoch = (log.topic_id, log.partition), state.leader_epoch
            if self._oracle.key_of(*key, epoch) is None:
                continue  # a leader that is replaced, and has not heard of it, or one of a topic that is being deleted
            name = f"{log.name} of {process.id} in epoch {epoch}"
            committed = self.partitions.setdefault(key, Committed())
            leadership, high_watermark = (process, log, epoch), log.high_watermark
            before = self._highest.get(leadership)
            if before is None:
                leader = self._leaders.setdefault((*key, epoch), process.id)
                assert leader == process.id, f"two leaders: {leader} and {process.id} lead {log.name} in epoch {epoch}"
                self._check_elected(name, log, key, committed, committed.end_in(epoch))
            else:
                assert high_watermark >= before, f"HW falls: that of {name} from {before} to {high_watermark}"
            if high_watermark != before:
                self._highest[leadership] = high_watermark
            if high_watermark > committed.end:
                self._commit(name, log, committed, epoch, high_watermark)
            committed.stored_end = max(committed.stored_end, min(high_watermark, log.durability.end_offset))
            self._check_start(name, log, key)

    def _check_elected(self, name, log, key, committed, committed_end):
        """Check that a leader has all that is committed below an offset."""
        if log.config.compacts:
            self._oracle.compacted.add(key)
        end, start = log.log_end_offset, log.log_start_offset
        assert end >= committed_end, f"lost-commit: {name} ends at {end}, and {committed_end} is committed"
        if not committed.batches:
            return
        own, compacted = batches_of(log, start, committed_end), key in self._oracle.compacted
        for base, batch in committed.batches.items():
            if start <= batch.last_offset < committed_end:
                own_batch = own.get(base)
                is_kept = compacted if own_batch is None else own_batch.is_as(batch, start, compacted=compacted)
                assert is_kept, f"lost-commit: {name} has {own_batch} at {base}, and {batch} is committed"

    def _commit(self, name, log, committed, epoch, end):
        """Note that a high watermark has come to `end`."""
        for base, batch in batches_of(log, committed.end, end).items():
            if committed.end <= base and batch.last_offset < end:
                for offset, id in sorted(batch.ids.items()):
                    assert id > committed.last_id, f"id falls: {name} has {id} at {offset} after {committed.last_id}"
                    committed.last_id = id
                committed.batches[base] = batch
        committed.ends[epoch] = end

    def _check_start(self, name, log, key):
        start = log.log_start_offset
        if start > self._oracle.start_of(key):
            config = log.config
            is_short = config.deletes and (config.retention_bytes >= 0 or 0 <= config.retention_ms < DAY_MS)
            assert is_short, f"start passes: {name} begins at {start}"
            self._oracle.starts[key] = start

    def keep_stored(self, key):
        """Forget what a leader had not on its disk when all lost power. Return the end of the other records."""
        committed = self.partitions.setdefault(key, Committed())
        end = committed.stored_end
        committed.batches = {base: batch for base, batch in committed.batches.items() if batch.last_offset < end}
        committed.ends = {epoch: min(of_epoch, end) for epoch, of_epoch in committed.ends.items()}
        committed.last_id = max([id for batch in committed.batches.values() for id in batch.ids.values()], default=-1)
        return end

    def forget(self, key):
        """Forget the records that the next leader may lack."""
        self.partitions.pop(key, None)

    def check_followers(self, process):
        """Check the high watermarks of the copies that a process has."""
        for log in process.broker.services.logs.all():
            if log.has_copies and log.replicated_to != LONG_MAX:
                is_within = log.replicated_to <= log.log_end_offset
                assert is_within, (
                    f"HW past the end: {log.name} of {process.id} ends at {log.log_end_offset}, "
                    f"and counts {log.replicated_to} as replicated"
                )


def batches_of(log, start, end):
    """Return the batches of a log that have an offset of `start` .. `end` - 1, by their base offsets."""
    headers, ids = [], {}
    for segment in log.segments.all:
        if segment.next_offset <= start or segment.base_offset >= end:
            continue
        headers += [header for _, header in walk(segment.log.read(0, segment.size))]
        for entry in segment.ids.entries():
            if entry.offset + entry.length > start and entry.offset < end:
                ids.update((entry.offset + n, entry.first_id + n) for n in range(entry.length))
    batches = {}
    for header in headers:
        if header.last_offset >= start and header.base_offset < end:
            offsets = range(header.base_offset, header.last_offset + 1)
            own = {offset: ids[offset] for offset in offsets if offset in ids}
            batches[header.base_offset] = Batch(header.last_offset, header.leader_epoch, header.crc, own)
    return batches
