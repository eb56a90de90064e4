"""What the partitions of a task share: memory, and lists of those with work, so that idle ones cost nothing."""

from partition_manager.config import SpoutConfig
from partition_manager.manager import PartitionManager
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import Saved, SaveOffset
from partition_manager.progress import Progress
from partition_manager.share import TaskShare
from tests.partition_manager.managers import calls_of, emit_all
from tests.partition_manager.test_coordinator import coordinator_of, world_of
from tests.partition_manager.world import record

MESSAGE = bytes(1_000)


def managers_of(limit, count, **settings):
    share = TaskShare(limit)
    config = SpoutConfig(**{f"spout_{name}": value for name, value in settings.items()})
    return share, [PartitionManager("t", number, Progress(0), config, share=share) for number in range(count)]


def fill(manager, messages=100):
    """Answer fetches with messages of 1 kB until the manager wants no more; return {offset: ticket}."""
    tickets = {}
    while (wanted := manager.wanted()) is not None:
        records = [record(wanted.offset + number, value=MESSAGE) for number in range(messages)]
        manager.fetched(records, wanted.offset + messages, 10**6)
        tickets |= emit_all(manager)
    return tickets


def test_one_partition_may_use_what_the_others_leave():
    share, (busy, *idle) = managers_of(1_000_000, 10)
    fill(busy)
    assert 500_000 < share.memory.used_bytes < 560_000, "all but half, which is divided evenly"


def test_one_partition_cannot_starve_the_rest_and_together_they_keep_the_limit():
    share, managers = managers_of(1_000_000, 10)
    for manager in managers:
        fill(manager)
        assert manager.pending >= 40, "a tenth of the half"
    assert share.memory.used_bytes <= 1_000_000 + 10 * 1_300, "and each overshoots by one message at most"


def test_a_partition_that_found_no_room_is_listed_again_when_another_settles():
    share, (first, second) = managers_of(100_000, 2)
    fill(first)
    tickets = fill(second)
    share.take_fetches()
    assert first.wanted() is None and share.take_fetches() == []
    for offset, ticket in tickets.items():
        second.ack(offset, ticket)
    assert first in share.take_fetches()


def test_a_partition_waits_until_a_fetch_is_worth_it():
    """A fetch for each message that settles would read every batch many times."""
    share, (manager,) = managers_of(100_000, 1)
    tickets = fill(manager)
    assert manager.wanted() is None
    for settled, (offset, ticket) in enumerate(tickets.items(), 1):
        manager.ack(offset, ticket)
        if (wanted := manager.wanted()) is not None:
            break
    assert settled > 15 and wanted.max_bytes >= 25_000


def test_a_partition_that_leaves_gives_its_memory_back():
    share, (first, second) = managers_of(100_000, 2)
    fill(first)
    first.leave()
    assert share.memory.used_bytes == 0
    fill(second)
    assert second.pending > 70, "the whole limit is its own"


def test_a_step_does_the_same_work_beside_a_thousand_idle_partitions_as_alone():
    def step():
        coordinator.take_asks(1_000)
        (id, _), _ = coordinator.next(1_000), coordinator.next(1_000)
        coordinator.ack(id)
        coordinator.next_deadline_ms()

    work = []
    for idle in (0, 1_000):
        coordinator = coordinator_of(world_of(100, *[0] * idle))
        coordinator.take_asks(1_000)
        work.append(calls_of(step))
    assert work[0] == work[1]


def test_a_commit_visits_only_the_partitions_that_changed():
    work = []
    for idle in (0, 1_000):
        coordinator = coordinator_of(world_of(100, *[0] * idle))
        coordinator.commit(0)
        (id, _) = coordinator.next(0)
        coordinator.ack(id)
        work.append(calls_of(lambda: coordinator.commit(0)))
        assert [type(ask.request) for ask in coordinator.take_asks(0)] == [SaveOffset]
    assert work[0] == work[1]


def test_what_changes_during_a_write_is_stored_by_the_next_commit():
    coordinator = coordinator_of(world_of(2))
    for stored in (1, 2):
        coordinator.ack(coordinator.next(0)[0])
        coordinator.commit(0)
        if stored == 1:
            (save,) = coordinator.take_asks(0)
    coordinator.answered(save.number, Saved(1), 0)
    coordinator.commit(0)
    (save,) = coordinator.take_asks(0)
    assert OffsetDocument.decode(save.request.document).progress.offset == 2


def test_fetches_are_held_while_enough_messages_wait_in_all_partitions_together():
    config = SpoutConfig(spout_fetch_max_records=30)
    coordinator = coordinator_of(world_of(*[15] * 10), config=config)
    assert coordinator.has_enough
    waiting = 150
    while coordinator.has_enough:
        coordinator.next(0)
        coordinator.take_asks(0)
        waiting -= 1
    assert waiting == 29


def test_messages_that_cannot_be_emitted_now_hold_no_fetch():
    """Otherwise a partition that waits for an ack would stop the others."""
    share, (held, other) = managers_of(10**6, 2, fetch_max_records=10, max_settled_ranges=1)
    for manager in (held, other):
        manager.fetched([record(offset) for offset in range(20)], 20, 20)
    assert share.waiting == 40
    emit_all(held)
    assert held.waiting and share.waiting == 20, "two of its messages are in flight, and no more may be"
    other.leave()
    assert share.waiting == 0


def test_acks_of_a_step_may_be_told_together():
    world = world_of(3, 3)
    coordinator = coordinator_of(world)
    ids = [id for id, _ in iter(lambda: coordinator.next(0), None)]
    coordinator.ack_many([*ids[:5], ids[0], ids[0]._replace(partition=7)])
    assert [(status.watermark, status.pending) for status in coordinator.status()] == [(3, 0), (2, 1)]
    assert coordinator.counts.acked == 5 and coordinator.counts.stale == 1
