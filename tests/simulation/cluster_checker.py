"""The client that checks the whole of a simulated cluster once it is quiet."""

from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from tests.broker.transactional import committed_in
from tests.simulation.cluster_clients import TOPICS, Producer, Reader, Sleep, end_of


class Checker(Reader):
    """Checks the whole of a quiet cluster: it reads and writes each partition, and reads each group's offset."""

    def __init__(self, world):
        super().__init__(world, "checker")
        self.writer = Producer(world, self.name)

    def run(self):
        oracle, committed = self.world.oracle, {}
        writer = self.writer
        while writer.id < 0:
            yield from writer.init()
            yield Sleep(100)
        yield from self.refresh(*TOPICS, creates=True)
        yield Sleep(6_000)
        yield from self.refresh(*TOPICS)
        assert set(self.topics) == set(TOPICS), f"topics that cannot be made: {self.topics}"
        for topic, (topic_id, leaders) in self.topics.items():
            for partition in leaders:
                key = topic_id, partition
                yield from writer.refresh(topic)
                code = yield from writer.send(topic, partition, writer.new_values())
                assert code == 0, f"{topic}-{partition} cannot be written: {code}"
                start = yield from self.start_of(topic, partition)
                assert start <= oracle.start_of(key), f"lost-write: {topic}-{partition} begins at {start}"
                records, ids, _, _ = yield from self.read_all(topic, partition, start)
                oracle.check_partition(key, max(start, oracle.start_of(key)), records, ids)
                read = yield from self.read_all(topic, partition, start, READ_COMMITTED)
                committed[key], state = read[2:]
                is_free = state.last_stable_offset == state.high_watermark
                assert is_free or oracle.losses, f"{topic}-{partition} is held back"
        oracle.check_transactions(committed)
        for group in list(oracle.offsets):
            code = yield from self.check_offset(group)
            is_held_back = code == ErrorCode.UNSTABLE_OFFSET_COMMIT and oracle.losses
            assert code == 0 or is_held_back, f"the offsets of {group} cannot be read: {code}"
        self.world.is_checked = True

    def read_all(self, topic, partition, offset, isolation=READ_UNCOMMITTED):
        """Return (records, ids by offset, values of committed records, the last answer). An answer has one segment.

        Records that are deleted meanwhile are passed over.
        """
        records, ids, committed = [], {}, set()
        while True:
            read = yield from self.read(topic, partition, offset, isolation)
            if read is None:
                before, offset = offset, (yield from self.start_of(topic, partition))
                assert offset > before, f"{topic}-{partition} cannot be read at {before}"
                continue
            read_records, read_ids, answer = read
            records += read_records
            ids |= read_ids
            committed.update(committed_in(answer))
            state = answer.partitions[0]
            offset, before = end_of(state, offset), offset
            if offset == before:
                return records, ids, committed, state
