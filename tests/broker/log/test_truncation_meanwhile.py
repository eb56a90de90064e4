"""Truncations while the cleaner, checks, deletions and reads are at the log, and on the files of the machine."""

import pytest

from broker.log import log_reader
from broker.log.compaction.cleaner import CleanLog
from broker.log.cut_log import PrepareCut
from broker.log.integrity.guard import FIRST_PASS_MS, ScrubJob
from broker.log.io_jobs import RemoveFiles
from broker.log.storage.os_storage import OsStorage
from broker.now import Now
from broker.settings.config import BrokerConfig
from tests.broker.log.compaction.cleaner_world import BACKOFF_MS, CleanerWorld
from tests.broker.log.conftest import START_MS
from tests.broker.log.truncation_world import Broker, contents, expected, fill, filled


def later(broker, ms):
    broker.now = Now(broker.now.ms + ms, START_MS + ms)
    broker.manager.tick(broker.now)


def test_a_truncation_waits_for_the_slice_of_the_cleaner_and_gives_up_its_pass():
    world = CleanerWorld()
    for _ in range(3):
        world.put(("a", b"1" * 300), ("b", b"2" * 300))
        world.roll()
    world.put(("a", b"3"), ("c", b"4"))
    world.put(("d", b"5"))
    world.ms += BACKOFF_MS
    world.manager.tick(world.now)
    (slice,) = [job for job in world.manager.take_syncs() if isinstance(job, CleanLog)]
    world.manager.truncate({("flights", 0): 8})
    assert not any(isinstance(job, PrepareCut) for job in world.manager.take_syncs())
    world.run(slice)
    while jobs := world.manager.take_syncs():
        world.run(*jobs)
    log = world.manager.get("flights", 0)
    assert log.log_end_offset == 8 and not [name for name in world.storage.list("flights-0") if "cleaned" in name]
    world.log = log
    assert world.clean(10 * BACKOFF_MS), "the new log is cleaned like others"
    assert world.reopened().log.log_end_offset == 8 and world.lines == []


@pytest.mark.parametrize("is_run", [True, False])
def test_what_the_scrub_found_in_the_old_log_is_no_fault_of_the_new_one(is_run):
    """The thread reads the file while it is cut."""
    broker = filled(checkpoint_at=30)
    broker.manager.next_deadline_ms(broker.now.ms)
    later(broker, FIRST_PASS_MS)
    jobs = broker.manager.take_syncs()
    (scrub,) = [job for job in jobs if isinstance(job, ScrubJob)]
    if is_run:
        scrub.run()
    broker.truncate(5)
    scrub.run()
    broker.manager.synced(scrub)
    assert broker.manager.offline == {} and broker.lines == []
    assert contents(broker.log()) == expected(5)[0]


def test_segments_that_were_to_be_removed_go_once_and_nothing_of_the_new_log_with_them():
    broker = filled(checkpoint_at=30, file_delete_delay_ms=1000)
    broker.manager.delete_records(broker.log(), 14, broker.now)
    broker.truncate(18)
    assert broker.log().log_start_offset == 14
    for _ in range(5):
        later(broker, 2_000)
        broker.settle()
    log = broker.log()
    assert contents(Broker(broker.storage).log()) == contents(log)
    assert (log.log_start_offset, log.log_end_offset) == (14, 18)


def test_a_truncation_waits_for_a_removal_of_files_of_its_log():
    """The new opening lists the files, and no list is whole while files go."""
    broker = filled(checkpoint_at=30, file_delete_delay_ms=0)
    broker.manager.delete_records(broker.log(), 14, broker.now)
    removals = []
    for _ in range(5):
        later(broker, 2_000)
        jobs = broker.manager.take_syncs()
        removals += [job for job in jobs if isinstance(job, RemoveFiles)]
        broker.run([job for job in jobs if not isinstance(job, RemoveFiles)])
    assert removals
    broker.manager.truncate({("flights", 0): 18})
    assert broker.manager.take_syncs() == []
    broker.run(removals)
    broker.settle()
    assert broker.log().log_end_offset == 18
    assert contents(Broker(broker.storage).log()) == contents(broker.log())


def test_a_read_of_the_old_log_that_is_still_being_sent_keeps_its_file():
    broker = filled()
    region = log_reader.read(broker.log(), 0, 1 << 20, True).records
    before = region.file.read(region.position, region.length)
    broker.truncate(13)
    assert before.startswith(region.file.read(region.position, region.length))


def test_another_truncation_runs_beside_the_first():
    broker = filled(partitions=2)
    fill(broker, 1)
    broker.manager.truncate({("flights", 0): 13})
    broker.run()
    broker.manager.truncate({("flights", 1): 8})
    broker.settle()
    ends = {outcome.partition: outcome.log.log_end_offset for outcome in broker.manager.take_truncated()}
    assert ends == {0: 13, 1: 8}


@pytest.mark.parametrize("checkpoint_at", [None, 5, 30])
def test_files_of_the_machine_are_truncated_in_the_same_way(tmp_path, checkpoint_at):
    storage = OsStorage(str(tmp_path))
    broker = filled(storage, checkpoint_at=checkpoint_at)
    for end in (24, 13, 2):
        outcome = broker.truncate(end)
        assert (contents(broker.log()), broker.log().epochs) == expected(end), outcome.reason
    broker.log().start_leader_epoch(9)
    broker.append(b"new")
    again = Broker(OsStorage(str(tmp_path)))
    assert contents(again.log()) == contents(broker.log()) and again.manager.offline == {}


def test_the_segments_of_a_truncated_log_share_the_registry_of_open_segments():
    broker = filled(config=BrokerConfig(max_open_segments=2), checkpoint_at=30)
    broker.truncate(24)
    log = broker.log()
    assert len(log.segments.all) > 3
    contents(log)
    assert len(broker.manager.open_segments) <= 2
