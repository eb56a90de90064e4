"""A truncation that is stopped between any two steps: a start finds the log before the cut or after it (rule S5).

After a kill, all that was written is in the page cache. After a power cut, unsynced writes are lost in part
(`MemoryStorage.power_cut`). Acks are durable, so the journal has batches that the cut takes away. A crash while later
segments are removed may leave a log that ends with one of them: the next fetch from the leader diverges once more.
"""

from functools import cache
from random import Random

import pytest

from broker.log.leader_epochs import truncated
from broker.now import Now
from tests.broker.log.truncation_world import Broker, Stopped, StoppingStorage, contents, expected, fill, filled

LATER_MS = 60_000
CUTS = 0, 8, 13, 18, 24, 30
CHECKPOINTS = None, 5, 16, 30
POWER_CUTS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 20))]
"""Seeds of the power cuts after each step."""

expected_at = cache(expected)


@cache
def whole():
    log = fill(Broker())
    return contents(log), log.epochs, log.segments.bases


def needed_journal(broker):
    """Let another log need the journal's file, so that what it has of the truncated log stays there."""
    broker.held.add(1)
    broker.append(b"other", partition=1)
    return broker


def stopped(offset, checkpoint_at, steps, *, anew=False):
    """Truncate a log, and stop before change number `steps`. Return the broker, and True if it was not stopped."""
    broker = needed_journal(filled(checkpoint_at=checkpoint_at, partitions=2))
    storage = broker.storage
    storage.steps_left = steps
    is_done = True
    try:
        broker.manager.truncate({("flights", 0): offset}, anew=anew)
        broker.settle()
    except Stopped:
        is_done = False
    storage.steps_left = 1 << 30
    return broker, is_done


def restarted(storage):
    other = StoppingStorage()
    other.files, other._synced_names = storage.files, storage._synced_names
    other.directories, other._renames = storage.directories, storage._renames
    return Broker(other, partitions=2, later_ms=LATER_MS)


def check(broker, offset, *, is_done=False, is_torn=False):
    """Assert that the log is as before the cut or as after it, or ends with a segment between them.

    `is_torn`: the cut of a file was perhaps not on the disk, and the simulated disk keeps some of what was cut off.
    """
    assert broker.manager.offline == {}
    log = broker.log()
    before, epochs, bases = whole()
    end = log.log_end_offset
    if end == before[1] and not is_done:
        assert contents(log) == before
        # The epoch that was begun last and has no batch is only in the file, which is written at a checkpoint.
        assert log.epochs in (epochs, epochs[:-1], truncated(epochs, end))
        return
    assert end == offset or (end > offset and not is_done and (is_torn or end in bases))
    contents_then, epochs_then = expected_at(end)
    assert contents(log) == contents_then
    if is_done:
        assert log.epochs == epochs_then
    else:  # recovery keeps the newest epoch of the file
        epochs_kept = [*truncated(epochs, end), log.epochs[-1]] if log.epochs else []
        assert log.epochs == epochs_then or (log.epochs == epochs_kept and log.epochs[-1][1] == end)


def goes_on(broker, random, end):
    """Truncate the log as the leader says, append batches of a new epoch, and crash: they are there, and no others.

    The journal has batches of the part that is cut, of an epoch before.
    """
    needed_journal(broker)
    broker.log().start_leader_epoch(19)
    for _ in range(random.randrange(3)):
        broker.append(b"cut" * random.randrange(1, 200))
    if random.randrange(2):
        broker.write(b"cut too")
    broker.truncate(end)
    check(broker, end, is_done=True)
    log = broker.log()
    log.start_leader_epoch(20)
    for number in range(random.randrange(6)):
        broker.append(bytes([number]) * random.randrange(1, 500))
    written, epochs = contents(log), log.epochs
    for storage in (broker.storage.power_cut(random.randrange), broker.storage):
        again = restarted(storage).log()
        assert contents(again) == written
        assert again.epochs in (epochs, truncated(epochs, again.log_end_offset))


@pytest.mark.parametrize("checkpoint_at", CHECKPOINTS)
@pytest.mark.parametrize("offset", CUTS)
def test_a_kill_between_any_two_steps_leaves_the_log_before_the_cut_or_after_it(offset, checkpoint_at):
    steps, is_done = 0, False
    while not is_done:
        broker, is_done = stopped(offset, checkpoint_at, steps)
        again = restarted(broker.storage)
        check(again, offset, is_done=is_done)
        goes_on(again, Random(steps), offset)
        steps += 1
    assert steps > 10


@pytest.mark.parametrize("checkpoint_at", CHECKPOINTS)
@pytest.mark.parametrize("offset", CUTS)
def test_segments_that_a_killed_process_has_removed_do_not_come_back_in_a_power_cut(offset, checkpoint_at):
    """The disk may still have their names. After the next start the log must not change by a power cut."""
    steps, is_done = 0, False
    while not is_done:
        broker, is_done = stopped(offset, checkpoint_at, steps)
        again = restarted(broker.storage)
        opened = contents(again.log())
        for chance in (lambda n: 0, lambda n: n - 1):
            assert contents(restarted(again.storage.power_cut(chance)).log()) == opened, steps
        steps += 1


@pytest.mark.parametrize("seed", POWER_CUTS)
@pytest.mark.parametrize("checkpoint_at", CHECKPOINTS)
def test_a_power_cut_between_any_two_steps_leaves_the_log_before_the_cut_or_after_it(seed, checkpoint_at):
    random = Random(seed)
    offset, steps, is_done = random.choice(CUTS), 0, False
    while not is_done:
        broker, is_done = stopped(offset, checkpoint_at, steps)
        for _ in range(3):
            again = restarted(broker.storage.power_cut(random.randrange))
            check(again, offset, is_done=is_done, is_torn=True)
        goes_on(again, random, offset)
        steps += 1


@pytest.mark.parametrize("offset", [2, 30, 40])
def test_a_crash_while_a_log_begins_anew_leaves_it_as_it_was_or_empty(offset):
    steps, is_done, random = 0, False, Random(offset)
    while not is_done:
        broker, is_done = stopped(offset, 16, steps, anew=True)
        for storage in (broker.storage.power_cut(random.randrange), broker.storage):
            log = restarted(storage).log()
            if log.log_start_offset == 0:
                assert contents(log) == whole()[0] and not is_done
            else:
                assert (log.log_start_offset, log.log_end_offset, contents(log)[3]) == (offset, offset, b"")
        steps += 1


# --- disks that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["flights-0/{:020d}.log", "flights-0/{:020d}.idindex"])
def test_a_sync_that_fails_leaves_the_partition_offline_by_name_and_the_log_as_it_was(path):
    broker = filled(checkpoint_at=16)
    base = broker.log().segments.active.base_offset
    broker.storage.failing_syncs.add(path.format(base))
    outcome = broker.truncate(13)
    assert outcome.log is None and "truncation to offset 13 failed: " + path.format(base) in outcome.reason
    assert broker.manager.offline == {"flights-0": outcome.reason}
    assert broker.lines[-1] == f"partition flights-0 is offline: {outcome.reason}"
    broker.storage.failing_syncs.clear()
    check(restarted(broker.storage), 13)


def test_a_cut_that_fails_leaves_the_partition_offline_by_name_until_a_start():
    broker = filled(checkpoint_at=16)
    (base,) = [base for base in broker.log().segments.bases if base <= 13][-1:]
    broker.storage.failing_cuts.add(f"flights-0/{base:020d}.log")
    outcome = broker.truncate(13)
    assert outcome.log is None and "Input/output error" in broker.manager.offline["flights-0"]
    broker.storage.failing_cuts.clear()
    again = restarted(broker.storage)
    check(again, 13)
    goes_on(again, Random(1), 13)


@pytest.mark.parametrize("restarts", [True, False])
def test_a_full_disk_at_any_step_delays_the_truncation_until_there_is_space_or_a_start(restarts):
    delayed = 0
    for free_bytes in range(0, 4000, 100):
        broker = filled(checkpoint_at=16, partitions=2)
        broker.storage.free_bytes = free_bytes
        broker.manager.truncate({("flights", 0): 13})
        broker.settle()
        broker.storage.free_bytes = None
        if not broker.manager.take_truncated():
            delayed += 1
            assert "truncated to offset 13 when the disk has space" in broker.manager.offline["flights-0"]
        if restarts:
            broker = restarted(broker.storage)
        else:
            wait_for_space(broker)
        check(broker, 13)
        goes_on(broker, Random(free_bytes), 13)
    assert delayed > 3


def wait_for_space(broker):
    for _ in range(5):
        broker.now = Now(broker.now.ms + 1_000, broker.now.wall_ms + 1_000)
        broker.manager.tick(broker.now)
        broker.settle()
    broker.manager.take_truncated()


def test_a_log_that_waits_for_space_to_be_truncated_may_be_deleted():
    broker = filled(checkpoint_at=16)
    broker.storage.free_bytes = 0
    broker.manager.truncate({("flights", 0): 13})
    broker.settle()
    broker.storage.free_bytes = None
    broker.run([broker.manager.delete({"flights": [0]})])
    wait_for_space(broker)
    assert not broker.manager.all() and not broker.manager.is_offline("flights", 0)


def test_a_checkpoint_that_cannot_be_written_takes_no_other_partition_with_it():
    broker = filled(checkpoint_at=16, partitions=2)
    fill(broker, 1)
    broker.storage.free_bytes = 0
    broker.manager.truncate({("flights", 0): 13})
    broker.settle()
    broker.storage.free_bytes = None
    assert list(broker.manager.offline) == ["flights-0"]
    broker.append(b"a", partition=1)


def test_a_sync_that_runs_at_the_release_and_fails_ends_the_truncation():
    """The kernel may have dropped the bytes, and would say nothing at the next sync."""
    broker = filled()
    broker.log().ask_sync(soon=True)
    running = broker.manager.take_syncs()
    broker.manager.truncate({("flights", 0): 13})
    broker.storage.failing_syncs = {path for path in broker.storage.files if path.startswith("flights-0/")}
    broker.run(running)
    broker.storage.failing_syncs = set()
    broker.settle()
    (outcome,) = broker.manager.take_truncated()
    assert "a sync failed" in outcome.reason
