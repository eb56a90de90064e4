"""The oracle of a simulated cluster whose topics have several copies. Besides the promises of cluster_oracle.py:

    inconsistent-offsets   two reads find other records, or ids, at one offset below the high watermark
    lost-write             a read passes over a record that was acknowledged
    id falls               a record has an id below one of a record before it, which may be deleted
    nonmonotonic-poll      a consumer cannot go on where it has come to
    offset lost            a coordinator tells another offset of a group than one before it, although none was committed

replicated_committed.py has the checks of the replicas. A record that was acknowledged or shown in a leader epoch before
an unclean election may be lost, so it counts no more. A topic promises nothing once its deletion is asked for.
"""

from tests.simulation.cluster_oracle import KEYS, Oracle
from tests.simulation.replicated_committed import CommittedRecords


class ReplicatedOracle(Oracle):
    """See the module."""

    def __init__(self):
        super().__init__()
        self.read = {}
        """By (topic id, partition): offset -> (value, id), as a read has found them."""
        self.latest = {}
        """By (topic id, partition): the last offset of all that was acknowledged, and its id."""
        self.unclean_epochs = {}
        """By (topic id, partition): the leader epoch of the last unclean election, or of the first leader after the
        only copy has lost records."""
        self._sure_offsets = {}
        """By group: the last offset whose commit was answered."""
        self.deleted = set()
        """The ids of the topics whose deletion was asked for."""
        self.compacted = set()
        """The (topic id, partition) whose logs are compacted."""
        self.committed = CommittedRecords(self)

    def key_of(self, topic_id, partition, epoch):
        is_over = topic_id in self.deleted or epoch < self.unclean_epochs.get((topic_id, partition), 0)
        return None if is_over else (topic_id, partition)

    def note_loss(self, topic_id, partition, epoch):
        """Forget what the leaders before an epoch had, and what coordinators may have forgotten with it."""
        key = topic_id, partition
        self.unclean_epochs[key] = epoch
        self.committed.forget(key)
        for history in (self.acked, self.read, self.latest):
            history.pop(key, None)
        self.losses += 1
        for transaction in self.transactions:
            transaction.is_forgotten = True
        self.offsets.clear()
        self._sure_offsets.clear()

    def note_power_cut_of_all(self, topic_id, partition, epoch):
        """Forget what consumers have seen before it was on the leader's disk, and was not acknowledged."""
        key = topic_id, partition
        self.unclean_epochs[key] = epoch
        end = self.committed.keep_stored(key)
        self.read[key] = {offset: record for offset, record in self.read.get(key, {}).items() if offset < end}
        for group, (committed, doubtful) in self.offsets.items():
            self.offsets[group] = self._sure_offsets.get(group, -1), doubtful | {committed}

    def note_offset(self, group, offset, *, is_sure):
        super().note_offset(group, offset, is_sure=is_sure)
        if is_sure:
            self._sure_offsets[group] = max(offset, self._sure_offsets.get(group, -1))

    def note_acked(self, partition, base_offset, values, runs):
        super().note_acked(partition, base_offset, values, runs)
        last = base_offset + len(values) - 1
        record_id = self.acked[partition][last][1]
        offset, latest_id = self.latest.get(partition, (-1, -1))
        if last > offset and record_id is not None:
            assert record_id > latest_id, f"id falls: {partition} has {record_id} at {last}, {latest_id} at {offset}"
            self.latest[partition] = last, record_id

    def check_read(self, partition, start, records, ids):
        seen = super().check_read(partition, start, records, ids)
        read = self.read.setdefault(partition, {})
        for offset, value in records:
            record = value, ids[offset]
            before = read.setdefault(offset, record)
            assert before == record, f"inconsistent-offsets: {partition} has {record} at {offset}, and had {before}"
        if records:
            last = records[-1][0]
            lost = self._lost(partition, start, last, {offset for offset, _ in records})
            assert not lost, f"lost-write: a read of {partition} from {start} to {last} passes over {lost}"
        return seen

    def may_be_gone(self, partition, offset, value):
        """Return True for a record that may have been deleted, or compacted away."""
        if super().may_be_gone(partition, offset, value):
            return True
        if partition not in self.compacted:
            return False
        return self._is_superseded(partition, value) or self._may_be_aborted(partition, value)

    def _may_be_aborted(self, partition, value):
        return any(
            value in transaction.values.get(partition, ()) and not (transaction.commits and transaction.answered)
            for transaction in self.transactions
        )

    def _is_superseded(self, partition, value):
        """Return True if a later value of the same key may be in the same partition."""
        client, number = value.rsplit(b".", 1)
        later = int(number) + KEYS
        while (other := b"%s.%d" % (client, later)) in self.sent:
            if self.partitions.get(other, partition) == partition:
                return True
            later += KEYS
        return False

    def check_offset(self, group, offset):
        """Check the offset that a coordinator tells. It is committed, so that no later coordinator tells another."""
        super().check_offset(group, offset)
        if group in self.offsets and offset >= 0:
            committed, doubtful = self.offsets[group]
            self.offsets[group] = offset, doubtful
