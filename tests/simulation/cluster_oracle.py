"""What a simulated cluster promises: the oracle knows what clients sent and what brokers answered.

    lost-write         a record that was acknowledged is not at its offset
    duplicate          a value is in a topic twice, although its producer is idempotent
    another topic      a record of a deleted topic is in the topic that was made again under its name
    id twice, id falls an id is given to two records, or is not above the one before it
    two leaders        two brokers serve one epoch of a partition
    producer id twice  two producers have the same id
    two owners         two members of a generation own one partition, or a commit of an earlier generation is taken
    half, aborted-read a transaction is visible in a part of its partitions, or although nobody asked to commit it
"""

from dataclasses import dataclass, field

from broker.record.records import LONG_MAX

KEYS = 4
"""Each client writes so many keys in turn."""
KEY_BYTES = 120
"""Few records of such keys fill a segment of the least size, 1 KiB, so that logs of a short history are compacted."""


def key_of(value):
    """Return the key of a record: in a compacted topic, the client's later values of the same key replace it."""
    client, number = value.rsplit(b".", 1)
    return (b"%s.key%d" % (client, int(number) % KEYS)).ljust(KEY_BYTES)


@dataclass
class Transaction:
    """A transaction: its values by (topic id, partition), and its end as far as its producer knows it."""

    values: dict = field(default_factory=dict)
    commits: bool | None = None
    """Whether its producer asked to commit or to abort it; None: neither."""
    answered: bool = False
    is_forgotten: bool = False
    """True if its coordinator or a partition may have forgotten its end in a power cut without durable acks. If its
    producer goes on, the next end counts for its records too, as in Kafka with one copy."""


class Oracle:
    def __init__(self):
        self.acked = {}
        """By (topic id, partition): offset -> (value, id)."""
        self.partitions = {}
        """By value: the (topic id, partition) that acknowledged it last."""
        self.owners = {}
        """By (topic id, partition): the broker that served it last."""
        self.ids = {}
        """By id: the value that it was given to."""
        self.leaders = {}
        self.producer_ids = {}
        self.transactions = []
        self.offsets = {}
        """By group: (the offset that was committed last, the later ones whose commit may have been made)."""
        self.group_owners = {}
        """By (group, generation): the id of the member that owns the partition."""
        self.generations = {}
        """By group: the latest generation whose owner was told."""
        self.sent = set()
        self.starts = {}
        """By (topic id, partition): the offset below which an administrator has asked to delete the records."""
        self.losses = 0
        """The number of power cuts without durable acks. The coordinator may know nothing of a transaction then, which
        holds its partitions back until an operator aborts it, as in Kafka."""

    # --- what brokers answer -------------------------------------------------------------------------------------

    def note_producer_id(self, producer_id, producer):
        owner = self.producer_ids.setdefault(producer_id, producer)
        assert owner == producer, f"producer id twice: {producer_id} is that of {owner} and of {producer}"

    def note_served(self, served, broker_id):
        """Note that a broker has appended to (topic id, partition, leader epoch)."""
        leader = self.leaders.setdefault(served, broker_id)
        assert leader == broker_id, f"two leaders: {leader} and {broker_id} serve {served}"
        self.owners[served[:2]] = broker_id

    def key_of(self, topic_id, partition, epoch):
        """Return the key of a partition that was written or read in a leader epoch; None if that counts for nothing."""
        return topic_id, partition

    def note_acked(self, partition, base_offset, values, runs):
        ids = [first + n for first, length in runs for n in range(length)]
        assert not ids or len(ids) == len(values), f"{len(ids)} ids for {len(values)} values"
        records = self.acked.setdefault(partition, {})
        for number, value in enumerate(values):
            record_id = ids[number] if ids else None
            records[base_offset + number] = value, record_id
            self.partitions[value] = partition
            if record_id is not None:
                self._note_id(record_id, value)

    def _note_id(self, record_id, value):
        owner = self.ids.setdefault(record_id, value)
        assert owner == value, f"id twice: {record_id} is that of {owner} and of {value}"

    def note_power_cut(self, broker_id):
        """Forget what a broker may have lost, because its acks were not durable."""
        self.losses += 1
        for partition, owner in self.owners.items():
            if owner == broker_id:
                self.acked.pop(partition, None)
        for transaction in self.transactions:
            transaction.is_forgotten = True
        self.offsets.clear()

    # --- what readers find ---------------------------------------------------------------------------------------

    def check_read(self, partition, start, records, ids):
        """Check records [(offset, value)] that were read from `start` on, and their ids by offset."""
        acked = self.acked.get(partition, {})
        last_id = -1
        seen = {}
        for offset, value in records:
            assert value in self.sent, f"{partition}: {value} was never sent"
            assert value not in seen, f"duplicate: {partition} has {value} at {seen[value]} and at {offset}"
            seen[value] = offset
            record_id = ids[offset]
            assert record_id > last_id, f"id falls: {partition} has {record_id} after {last_id}"
            last_id = record_id
            self._note_id(record_id, value)
            acked_by = self.partitions.get(value, partition)
            assert acked_by == partition, f"another topic: {value} of {acked_by} is in {partition}"
            if offset in acked:
                assert acked[offset] == (value, acked[offset][1]), f"lost-write: {acked[offset]} is {value} at {offset}"
                assert acked[offset][1] in (None, record_id), f"another id: {acked[offset]} has {record_id}"
        return seen

    def start_of(self, partition):
        """Return where a reader of all records may begin."""
        return self.starts.get(partition, 0)

    def may_be_gone(self, partition, offset, value):
        """Return True for a record that may have been deleted."""
        return offset < self.start_of(partition)

    def _lost(self, partition, start, end, offsets):
        """Return the acknowledged records of a range that are not among the offsets that a read has found."""
        acked = self.acked.get(partition, {}).items()
        lost = {offset: record for offset, record in acked if start <= offset < end and offset not in offsets}
        return {
            offset: record for offset, record in lost.items() if not self.may_be_gone(partition, offset, record[0])
        }

    def check_partition(self, partition, start, records, ids):
        """Check all records of a partition from an offset on."""
        self.check_read(partition, start, records, ids)
        lost = self._lost(partition, start, LONG_MAX, {offset for offset, _ in records})
        assert not lost, f"lost-write: {partition} lacks {lost}"

    def _deleted(self, partition):
        """Return the acknowledged values that were deleted, or may have been."""
        acked = self.acked.get(partition, {}).items()
        return {value for offset, (value, _) in acked if self.may_be_gone(partition, offset, value)}

    def check_transactions(self, committed):
        """Check all transactions, given the committed values of each partition that there is."""
        for transaction in self.transactions:
            visible = {
                partition: values & committed[partition] - self._deleted(partition)
                for partition, values in transaction.values.items()
                if partition in committed
            }
            if transaction.commits is not True:
                is_seen = any(visible.values()) and not transaction.is_forgotten
                assert not is_seen, f"aborted-read: {transaction} shows {visible}"
            if self.losses or not visible:
                continue
            is_whole = all(visible[part] == transaction.values[part] - self._deleted(part) for part in visible)
            if transaction.answered and transaction.commits:
                assert is_whole, f"lost-write: of {transaction} only {visible} is visible"
            assert is_whole or not any(visible.values()), f"half: of {transaction} only {visible} is visible"

    # --- groups --------------------------------------------------------------------------------------------------

    def note_offset(self, group, offset, *, is_sure):
        committed, doubtful = self.offsets.get(group, (-1, frozenset()))
        if is_sure and offset < committed:
            return  # another member has committed since this one was answered
        # A greater offset is of a later commit, which may be under way while this one is answered.
        later = frozenset(other for other in doubtful if other > offset)
        self.offsets[group] = (offset, later) if is_sure else (committed, doubtful | {offset})

    def note_owner(self, group, generation, member_id):
        owner = self.group_owners.setdefault((group, generation), member_id)
        assert owner == member_id, f"two owners: {owner} and {member_id} in generation {generation} of {group}"
        self.generations[group] = max(self.generations.get(group, -1), generation)

    def check_generation(self, group, generation, newest):
        """Check the generation of a commit that was taken, given the newest one that had an owner before it was sent.
        """
        assert generation >= newest, f"two owners: {group} takes a commit of {generation} in generation {newest}"

    def check_offset(self, group, offset):
        if group not in self.offsets:
            return
        committed, doubtful = self.offsets[group]
        if committed < 0 and self.losses:
            return  # the offset of before the power cut may be there
        assert offset in doubtful | {committed}, f"offset lost: {group} has {offset}, not {committed} or {doubtful}"
