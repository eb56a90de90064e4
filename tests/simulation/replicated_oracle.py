"""The oracle of a simulated cluster whose topics have several copies. Besides the promises of cluster_oracle.py:

    inconsistent-offsets   two reads find other records, or ids, at one offset below the high watermark
    lost-write             a read passes over a record that was acknowledged
    id falls               a record has an id below one of a record before it, which may be deleted
    nonmonotonic-poll      a consumer cannot go on where it has come to

A record that was acknowledged or shown in a leader epoch before an unclean election may be lost, so it counts no more.
"""

from tests.simulation.cluster_oracle import Oracle


class ReplicatedOracle(Oracle):
    """See the module."""

    def __init__(self):
        super().__init__()
        self.read = {}
        """By (topic id, partition): offset -> (value, id), as a read has found them."""
        self.latest = {}
        """By (topic id, partition): the last offset of all that was acknowledged, and its id."""
        self.unclean_epochs = {}
        """By (topic id, partition): the leader epoch of the last unclean election."""

    def key_of(self, topic_id, partition, epoch):
        is_over = epoch < self.unclean_epochs.get((topic_id, partition), 0)
        return None if is_over else (topic_id, partition)

    def note_unclean_election(self, topic_id, partition, epoch):
        """Forget what a new leader may lack, and what coordinators may have forgotten with it."""
        key = topic_id, partition
        self.unclean_epochs[key] = epoch
        for known in (self.acked, self.read, self.latest):
            known.pop(key, None)
        self.losses += 1
        for transaction in self.transactions:
            transaction.is_forgotten = True
        self.offsets.clear()

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
            found = value, ids[offset]
            before = read.setdefault(offset, found)
            assert before == found, f"inconsistent-offsets: {partition} has {found} at {offset}, and had {before}"
        if records:
            offsets, last = {offset for offset, _ in records}, records[-1][0]
            begin = max(start, self.start_of(partition))
            acked = self.acked.get(partition, {})
            lost = {offset: acked[offset] for offset in acked if begin <= offset < last and offset not in offsets}
            assert not lost, f"lost-write: a read of {partition} from {start} to {last} passes over {lost}"
        return seen
