"""Rounds of the log manager: they sync the new records of each log and end in a checkpoint."""

import pytest

from broker.now import Now
from broker.settings.config import BrokerConfig, TopicConfig
from tests.broker.log.conftest import NOW, START_MS
from tests.broker.log.manager_world import MINUTE_MS, Broker, kinds


@pytest.fixture
def broker():
    return Broker()


# --- rounds ----------------------------------------------------------------------------------------------------------


def test_a_round_syncs_what_is_new_and_then_writes_the_checkpoint(broker):
    log, idle = broker.open(0), broker.open(1)
    broker.round()
    broker.append(log)
    broker.manager.syncs.start_round()
    (sync,) = broker.manager.take_syncs()
    assert sync.log is log, "the idle log has nothing new"
    broker.run(sync)
    assert kinds(jobs := broker.manager.take_syncs()) == ["WriteCheckpoint"]
    broker.run(*jobs)
    assert broker.checkpoint() == {"flights-0": log.position(), "flights-1": idle.position()}
    assert log.durability.flushed == log.position() and log.unflushed == 0


def test_a_round_without_anything_new_writes_nothing(broker):
    broker.open()
    broker.round()
    broker.manager.syncs.start_round()
    assert broker.manager.take_syncs() == []


def test_the_checkpoint_says_what_was_there_when_the_sync_was_asked_for(broker):
    """Records appended while a sync runs may not be on the disk."""
    log = broker.open()
    broker.append(log)
    position = log.position()
    broker.manager.syncs.start_round()
    (sync,) = broker.manager.take_syncs()
    broker.append(log)
    broker.run(sync)
    broker.run()
    assert broker.checkpoint()["flights-0"] == position
    assert log.unflushed == 1


def test_time_starts_a_round(broker):
    log = broker.open()
    broker.append(log)
    due = NOW.ms + MINUTE_MS
    assert broker.manager.next_deadline_ms(NOW.ms) <= due
    broker.manager.tick(Now(due - 1, START_MS))
    assert kinds(jobs := broker.manager.take_syncs()) == ["LookForFiles"]
    broker.run(*jobs)
    broker.manager.tick(Now(due, START_MS))
    assert kinds(broker.manager.take_syncs()) == ["SyncLog"]
    assert broker.manager.next_deadline_ms(due) <= due + MINUTE_MS


def test_a_round_takes_in_a_log_that_was_being_synced_when_it_began():
    """With flush.messages=1 under load some sync is always running; the checkpoint must be written all the same."""
    broker = Broker(flush_messages=1)
    log, other = broker.open(0), broker.open(1)
    broker.append(log)
    (first,) = broker.manager.take_syncs()
    broker.append(other)
    (second,) = broker.manager.take_syncs()
    broker.manager.syncs.start_round()
    broker.append(log)
    broker.run(first)
    third = broker.manager.take_syncs()
    assert [(sync.log, sync.for_checkpoint) for sync in third] == [(log, True)]
    broker.run(second)
    fourth = broker.manager.take_syncs()
    assert [(sync.log, sync.for_checkpoint) for sync in fourth] == [(other, True)]
    broker.run(*fourth)
    broker.append(other)
    (fifth,) = broker.manager.take_syncs()
    broker.run(*third)
    assert fifth.log is other, "it is still out when the round ends"
    assert kinds(jobs := broker.manager.take_syncs()) == ["WriteCheckpoint"]
    broker.run(*jobs)
    assert broker.checkpoint()["flights-0"].offset == 2


def test_a_round_that_waits_for_a_disk_is_not_begun_twice(broker):
    log = broker.open()
    broker.append(log)
    broker.manager.syncs.start_round()
    (sync,) = broker.manager.take_syncs()
    broker.manager.syncs.start_round()
    assert broker.manager.take_syncs() == []
    broker.run(sync)
    assert kinds(broker.manager.take_syncs()) == ["WriteCheckpoint"]


def test_one_checkpoint_is_written_at_a_time_and_the_newest_comes_last(broker):
    """If two threads replaced one file, the older version could be the last."""
    log = broker.open()
    broker.append(log)
    broker.manager.syncs.start_round()
    broker.run()
    (first,) = broker.manager.take_syncs()
    broker.append(log)
    broker.manager.syncs.start_round()
    broker.run()
    assert broker.manager.take_syncs() == []
    broker.run(first)
    assert broker.checkpoint()["flights-0"].offset == 1
    broker.run()
    assert broker.checkpoint()["flights-0"].offset == 2


def test_snapshots_of_producers_go_with_the_checkpoint_that_names_them(broker):
    log = broker.open()
    sent = {"producer_id": 7, "producer_epoch": 0}
    broker.append(log, base_sequence=0, **sent)
    broker.round()
    broker.append(log, base_sequence=1, **sent)
    broker.manager.syncs.start_round()
    broker.run()
    snapshots = [f"flights-0/{offset:020d}.snapshot" for offset in (1, 2)]
    paths = [path for path in broker.storage.files if path.endswith(".snapshot")]
    assert paths == snapshots, "the older one is still named"
    broker.run()
    assert [path for path in broker.storage.files if path.endswith(".snapshot")] == snapshots[1:]


def test_a_disk_too_full_for_a_snapshot_takes_no_log_offline(broker):
    """The broker serves again when there is space. The log is synced, and its headers identify the producers too."""
    log = broker.open()
    sent = {"producer_id": 7, "producer_epoch": 0}
    broker.append(log, base_sequence=0, **sent)
    broker.storage.free_bytes = 0
    broker.round()
    assert log.offline is None and log.unflushed == 0
    assert any("the checkpoint could not be written" in line for line in broker.lines)
    broker.storage.free_bytes = None
    broker.round()
    again = Broker(broker.storage)
    assert broker.append(again.open(), base_sequence=0, **sent).duplicate


# --- concurrent syncs ------------------------------------------------------------------------------------------------


def test_a_round_of_many_logs_has_no_more_syncs_out_than_there_are_threads():
    """The limit is flakelog.sync.threads; a disk with too many concurrent requests answers none of them in time."""
    broker = Broker(config=BrokerConfig(sync_threads=2))
    for partition in range(10):
        broker.append(broker.open(partition))
    broker.manager.syncs.start_round()
    seen = []
    while syncs := broker.manager.take_syncs():
        assert len(syncs) <= 2
        seen += kinds(syncs)
        broker.run(*syncs)
    assert seen == ["SyncLog"] * 10 + ["WriteCheckpoint"]
    assert len(broker.checkpoint()) == 10


def test_a_flush_that_is_due_does_not_wait_for_a_round_of_many_logs():
    broker = Broker(config=BrokerConfig(sync_threads=1), flush_messages=2)
    logs = [broker.open(partition) for partition in range(10)]
    for log in logs:
        broker.append(log)
    broker.manager.syncs.start_round()
    (first,) = broker.manager.take_syncs()
    broker.append(logs[9])
    broker.run(first)
    nearest = []
    for _ in range(2):
        (sync,) = broker.manager.take_syncs()
        nearest.append(sync.log)
        broker.run(sync)
    assert logs[9] in nearest


def test_flushes_that_are_always_due_do_not_keep_a_round_from_its_end():
    broker = Broker(config=BrokerConfig(sync_threads=1), flush_messages=1)
    busy, others = broker.open(0), [broker.open(partition) for partition in range(1, 4)]
    for log in others:
        log.config = TopicConfig()
        broker.append(log)
    broker.manager.syncs.start_round()
    for _ in range(12):
        broker.append(busy)
        broker.run(*broker.manager.take_syncs())
    assert len(broker.checkpoint()) >= 3


def test_a_log_is_synced_in_the_background_before_the_kernel_holds_its_writers_up():
    """The setting is flakelog.background.sync.bytes: past the kernel's dirty limits a write waits for the disk."""
    broker = Broker(config=BrokerConfig(background_sync_bytes=1 << 16))
    log = broker.open()
    for _ in range(6):
        broker.append(log, bytes(10_000))
    assert broker.manager.take_syncs() == []
    broker.append(log, bytes(10_000))
    (sync,) = broker.manager.take_syncs()
    broker.append(log, bytes(10_000))
    assert broker.manager.take_syncs() == []
    broker.run(sync)
    assert (log.durability.flushed.offset, broker.manager.take_syncs()) == (7, [])
