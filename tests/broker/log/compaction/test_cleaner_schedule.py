"""The logs that the cleaner takes, when it takes them, and how fast it reads and writes (KIP-58, KIP-354)."""

from broker.log.compaction.cleaner import CleanLog
from broker.log.compaction.cleaner_plan import plan
from broker.log.io_jobs import WriteCheckpoint
from broker.log.log_walk import SLICE
from broker.settings.config import BrokerConfig
from tests.broker.log.compaction.cleaner_world import BACKOFF_MS, DAY_MS, CleanerWorld
from tests.broker.log.conftest import START_MS

# --- limits and schedule ---------------------------------------------------------------------------------------------


def test_only_what_the_checkpoint_on_the_disk_covers_is_cleaned(world):
    """Past the checkpoint recovery needs every offset in its place."""
    world.put(("a", "1"))
    world.put(("a", "2"))
    world.log.roll()
    assert plan(world.log, world.now.wall_ms) is None
    world.round()
    assert plan(world.log, world.now.wall_ms).end == 2


def test_what_only_waits_for_the_checkpoint_has_it_written_and_is_cleaned_then(world):
    """max.compaction.lag.ms may be less than log.flush.offset.checkpoint.interval.ms."""
    world.put(("a", "1"))
    world.put(("a", "2"))
    world.log.roll()
    assert world.clean() > 0 and world.records() == {1: (b"a", b"2")}


def test_a_log_that_closes_segments_all_the_time_has_the_checkpoint_written_once_in_the_cleaners_rest(world):
    checkpoints = 0
    world.ms += BACKOFF_MS
    for number in range(20):
        world.put(("a", str(number)))
        world.log.roll()
        world.manager.tick(world.now)
        syncs = world.manager.take_syncs()
        checkpoints += sum(isinstance(sync, WriteCheckpoint) for sync in syncs)
        world.run(*syncs)
    assert checkpoints == 1


def test_what_is_not_due_has_no_checkpoint_written():
    world = CleanerWorld(min_cleanable_dirty_ratio=1)
    world.put(("a", "1"))
    world.log.roll()
    world.clean()
    assert world.log.durability.checkpointed.offset == 0


def test_records_younger_than_the_lag_stay():
    world = CleanerWorld(min_compaction_lag_ms=BACKOFF_MS)
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.put(("a", "3"), ("a", "4"), timestamp_ms=2**60)
    world.roll()
    assert world.clean(BACKOFF_MS - 1) == 0
    world.clean(BACKOFF_MS)
    assert world.records() == {1: (b"a", b"2"), 2: (b"a", b"3"), 3: (b"a", b"4")}


def test_a_log_is_cleaned_when_enough_of_it_is_dirty():
    world = CleanerWorld(min_cleanable_dirty_ratio=0.5, segment_bytes=1 << 20)
    world.put(*((str(n), "x" * 10) for n in range(100)))
    world.roll()
    world.clean()
    world.put(("0", "new"))
    world.roll()
    assert world.clean() == 0
    world.put(*((str(n), "y" * 10) for n in range(120)))
    world.roll()
    assert world.clean() > 0 and len(world.records()) == 120


def test_a_record_that_is_overdue_is_cleaned_whatever_the_ratio():
    """The maximum lag is from KIP-354."""
    world = CleanerWorld(min_cleanable_dirty_ratio=1, max_compaction_lag_ms=DAY_MS)
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    assert world.clean() == 0
    assert world.clean(DAY_MS) > 0 and len(world.records()) == 1


def test_a_compacted_topic_closes_its_segments_in_time_for_it():
    """Kafka does the same; otherwise the last records of the log would never be compacted."""
    world = CleanerWorld(max_compaction_lag_ms=1000)
    world.put(("a", "1"), timestamp_ms=5000)
    world.put(("a", "2"), timestamp_ms=6000)
    assert len(world.bases()) == 1
    world.put(("a", "3"), timestamp_ms=6001)
    assert len(world.bases()) == 2


def test_the_dirtiest_log_is_first():
    world = CleanerWorld()
    other = CleanerWorld.open(world, 1)
    world.put(("a", "1"), ("b", "1"))
    world.roll()
    world.clean()
    world.put(("a", "2"))
    clean, world.log = world.log, other
    world.put(("a", "1"), ("a", "2"))
    world.log.roll()
    world.log = clean
    world.roll()
    world.ms += BACKOFF_MS
    world.manager.tick(world.now)
    (work,) = world.manager.take_syncs()
    assert work.log is other


def test_the_cleaner_can_be_off():
    world = CleanerWorld(config=BrokerConfig(log_cleaner_enable=False))
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    assert world.clean() == 0


def test_how_far_a_log_is_cleaned_outlives_the_process(world):
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.clean()
    world.round()
    again = world.reopened()
    assert again.log.cleaned_offset == 2 and again.clean() == 0


def test_a_long_log_is_cleaned_in_slices(monkeypatch):
    """A thread that is asked to end, or a stop of the broker, waits for one slice at most."""
    monkeypatch.setattr("broker.log.compaction.cleaner.SLICE_BYTES", 1000)
    world = CleanerWorld()
    for number in range(20):
        world.put((str(number % 3), "x" * 300))
    world.roll()
    assert world.clean() > 10 and len(world.records()) == 3


# --- many logs, and the cleaner's rate -------------------------------------------------------------------------------


def test_the_dirtiest_of_many_logs_is_cleaned_first_and_all_are_in_the_end():
    world = CleanerWorld(min_cleanable_dirty_ratio=0.1)
    world.put(("a", "x" * 500))
    world.roll()
    world.clean()
    assert world.manager.cleaner.max_dirty_ratio == 0, "all is clean"
    logs = [world.log]
    for partition in range(1, SLICE + 3):
        world.manager.open("flights", partition, world.topic)
        logs.append(world.manager.get("flights", partition))
    for world.log in logs:
        world.put(("a", "2"))
        world.roll()
    world.ms += BACKOFF_MS
    order = []
    while len(order) < len(logs):
        world.manager.tick(world.now)
        for sync in world.manager.take_syncs():
            if isinstance(sync, CleanLog) and sync.log not in order:
                order.append(sync.log)
            world.run(sync)
        world.ms += 10
    assert order[-1] is logs[0], "a part of it is clean"
    assert world.manager.cleaner.max_dirty_ratio == 1


def test_the_cleaner_reads_and_writes_no_more_in_a_second_than_it_may(monkeypatch):
    """The limit is log.cleaner.io.max.bytes.per.second."""
    monkeypatch.setattr("broker.log.compaction.cleaner.SLICE_BYTES", 1000)
    world = CleanerWorld(config=BrokerConfig(log_cleaner_io_max_bytes_per_second=1000), segment_bytes=5000)
    for n in range(8):
        world.put((str(n), "x" * 400))
    world.roll()
    began_ms = world.ms = world.ms + BACKOFF_MS
    while not world.manager.cleaner.passes:
        world.manager.tick(world.now)
        world.run(*world.manager.take_syncs())
        world.ms = max(world.manager.next_deadline_ms(world.ms), world.ms)
    figures = world.manager.cleaner
    took_ms = figures.last_ended_ms - START_MS - began_ms
    assert figures.bytes_read + figures.bytes_written > 8000
    assert took_ms > 6000 and figures.last_pass_ms == took_ms


def test_what_the_cleaner_has_done_is_counted(world):
    world.put(("a", "1"), ("b", "1"))
    world.put(("a", "2"))
    world.roll()
    assert world.manager.cleaner.passes == 0
    world.clean()
    figures = world.manager.cleaner
    assert (figures.passes, figures.records_read, figures.records_written) == (1, 3, 2)
    assert 0 < figures.bytes_written < figures.bytes_read
    assert figures.last_ended_ms == START_MS + world.ms
