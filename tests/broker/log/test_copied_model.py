"""Random logs of leaders are copied in answers of random sizes, and are the same log afterwards and after a restart."""

from random import Random

import pytest

from broker.log import leader_epochs, log_appender, log_reader
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.control import Marker
from broker.wire.errors import ApiError
from tests.broker.log.compaction.cleaner_world import DAY_MS, CleanerWorld
from tests.broker.log.conftest import START_MS, append_batches, reopen
from tests.broker.log.copying import (
    aborted_of,
    bytes_of,
    committed_of,
    copy,
    follower_at,
    headers_of,
    ids_of,
    producers_of,
)

PRODUCERS = range(7, 11)
TRANSACTIONAL = range(7, 9)


class Leader(CleanerWorld):
    """A leader's log that random acts of clients, of the cleaner and of the controller make."""

    def __init__(self, random):
        self.random = random
        super().__init__(
            segment_bytes=random.choice((1024, 4096, 1 << 20)),
            index_interval_bytes=random.choice((0, 300)),
            cleanup_policy=random.choice(("compact", "compact,delete")),
        )
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.open = set()

    def act(self, may_remove):
        acts = [self.plain] * 4 + [self.produced] * 4 + [self.together, self.ends, self.ends, self.bumps, self.leads]
        acts += [self.roll, self.later]
        if may_remove:
            acts += [self.cleaned, self.cleaned, self.deletes]
        self.random.choice(acts)()

    def pairs(self):
        keys = [self.random.choice("abcde") for _ in range(self.random.randint(1, 4))]
        return [(key, self.random.choice((None, "x", "y" * 60, "z" * 300))) for key in keys]

    def some_ms(self):
        return START_MS + self.ms + self.random.randint(-500, 500)

    def plain(self):
        self.put(*self.pairs(), timestamp_ms=self.some_ms())

    def produced(self):
        producer_id = self.random.choice(PRODUCERS)
        pairs, is_transactional = self.pairs(), producer_id in TRANSACTIONAL
        self.put(
            *pairs,
            timestamp_ms=self.some_ms(),
            producer_id=producer_id,
            producer_epoch=self.epochs[producer_id],
            base_sequence=self.sequences[producer_id],
            transactional=is_transactional,
        )
        self.sequences[producer_id] += len(pairs)
        if is_transactional:
            self.open.add(producer_id)

    def together(self):
        """Append several batches by one write, so that they share entries of the id index."""
        batches = [[b"v"] * self.random.randint(1, 3) for _ in range(self.random.randint(2, 5))]
        append_batches(self.log, *batches, worker=self.worker, now=self.now)

    def ends(self):
        if self.open:
            producer_id = self.random.choice(sorted(self.open))
            self.open.discard(producer_id)
            marker = Marker(bool(self.random.randrange(2)), self.random.randint(0, 1))
            try:
                log_appender.append_marker(
                    self.log, producer_id, self.epochs[producer_id], marker, self.worker, self.now
                )
            except ApiError:  # of a coordinator that is over
                self.open.add(producer_id)

    def bumps(self):
        producer_id = self.random.choice(PRODUCERS)
        if producer_id not in self.open:
            self.epochs[producer_id] += 1
            self.sequences[producer_id] = 0

    def leads(self):
        self.log.start_leader_epoch(self.log.leader_epoch + self.random.randint(1, 3))

    def later(self):
        self.ms += self.random.choice((5, 100, 2 * DAY_MS))

    def cleaned(self):
        self.roll()
        self.clean()

    def deletes(self):
        self.log.advance_start(self.random.randint(self.log.log_start_offset, self.log.last_stable_offset))


def follower_of(random, leader, storage=None):
    """Return an empty log for a copy: it begins at the start of the leader's log."""
    config = {"segment_bytes": random.choice((1024, 3000, 1 << 20)), "index_interval_bytes": random.choice((0, 300))}
    return follower_at(leader.log.log_start_offset, storage, **config)


def checkpointed(log, storage):
    """Return the position of the log for a checkpoint, after the file of epochs was written for it."""
    storage.replace(f"{log.name}/{leader_epochs.FILE}", leader_epochs.encode(log.epochs))
    return log.position()


def some_sizes(random):
    return [random.choice((1, 200, 1_000, 1 << 20)) for _ in range(5)]


def found_at(log, time_ms):
    return log_reader.offset_of_time(log, time_ms)


def check_equal(copied, leader):
    """Check that a log is the same as its leader's from the leader's start on."""
    assert (copied.log_start_offset, copied.log_end_offset) == (leader.log_start_offset, leader.log_end_offset)
    start = leader.log_start_offset
    if start < leader.log_end_offset:
        first = next(header for header in headers_of(leader) if header.last_offset >= start)
        position = sum(header.size for header in headers_of(leader) if header.last_offset < start)
        assert bytes_of(copied) == bytes_of(leader)[position:]
        assert ids_of(copied) == {offset: id for offset, id in ids_of(leader).items() if offset >= first.base_offset}
        assert copied.last_id == leader.last_id
    assert committed_of(copied) == committed_of(leader)
    assert copied.last_stable_offset == leader.last_stable_offset
    times = sorted({header.max_timestamp + more for header in headers_of(leader) for more in (0, 1)})
    assert [found_at(copied, ms) for ms in times] == [found_at(leader, ms) for ms in times]


def check_producers(copied, leader):
    """Check that a log which nothing was removed from knows of its producers and epochs what the leader knows."""
    assert producers_of(copied) == producers_of(leader)
    assert aborted_of(copied) == aborted_of(leader)
    begun = [epoch for epoch in leader.epochs if epoch[1] < leader.log_end_offset]
    assert copied.epochs == (begun or [(0, 0)])


def check_last_sequences(copied, leader):
    """Check that each producer whose last batch is in the log can go on there with its next sequence."""
    copied_producers = producers_of(copied)
    for producer_id, (epoch, batches, _, first_offset) in producers_of(leader).items():
        if batches and batches[-1][2] >= leader.log_start_offset:
            assert copied_producers[producer_id][0] == epoch and copied_producers[producer_id][1][-1] == batches[-1]
            assert copied_producers[producer_id][3] == first_offset or first_offset < leader.log_start_offset


@pytest.mark.parametrize("seed", range(40))
def test_a_log_that_nothing_was_removed_from_is_the_same_log(seed):
    """The follower copies meanwhile, and finds its place again after each restart of its own."""
    random = Random(seed)
    leader = Leader(random)
    storage = MemoryStorage()
    follower = follower_of(random, leader, storage)
    config, position = follower.config, None
    for _ in range(random.randint(5, 60)):
        leader.act(may_remove=False)
        if not random.randrange(4):
            copy(leader.log, follower, some_sizes(random), leader.now)
            check_equal(follower, leader.log)
            check_producers(follower, leader.log)
        if not random.randrange(8):
            position = checkpointed(follower, storage) if random.randrange(2) else position
            follower, report = reopen(storage, position, config)
            assert not report.cut
    copy(leader.log, follower, some_sizes(random), leader.now)
    check_equal(follower, leader.log)
    expected = aborted_of(follower), follower.epochs, follower.producers.open_transactions()
    again, report = reopen(storage, position, config)
    assert not report.cut
    check_equal(again, leader.log)
    assert (aborted_of(again), again.epochs, again.producers.open_transactions()) == expected


@pytest.mark.parametrize("seed", range(60))
def test_a_new_copy_of_a_log_that_was_cleaned_and_deleted_from_is_the_same_log(seed):
    random = Random(seed)
    leader = Leader(random)
    for _ in range(random.randint(10, 80)):
        leader.act(may_remove=True)
    storage = MemoryStorage()
    follower = follower_of(random, leader, storage)
    config, empty = follower.config, follower.position() if leader.log.log_start_offset else None
    copy(leader.log, follower, some_sizes(random), leader.now)
    check_equal(follower, leader.log)
    check_last_sequences(follower, leader.log)
    expected = aborted_of(follower), follower.epochs, producers_of(follower)
    for position in (empty, checkpointed(follower, storage)):
        again, report = reopen(storage, position, config)
        assert not report.cut, report
        check_equal(again, leader.log)
        assert (aborted_of(again), again.epochs, producers_of(again)) == expected
    leader.round()
    check_equal(again, leader.reopened().log)


@pytest.mark.parametrize("seed", range(30))
def test_a_copy_of_a_copy_is_the_same_log(seed):
    """The leader of the next epoch was a follower, and its log has gaps."""
    random = Random(seed)
    leader = Leader(random)
    for _ in range(random.randint(10, 50)):
        leader.act(may_remove=True)
    first = follower_of(random, leader)
    copy(leader.log, first, some_sizes(random))
    second = follower_of(random, leader)
    copy(first, second, some_sizes(random))
    check_equal(second, leader.log)
    assert second.epochs == first.epochs
