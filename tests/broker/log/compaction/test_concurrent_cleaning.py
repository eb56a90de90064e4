"""Cleaning passes beside readers, appends and deletions, and on disks that are full or damaged."""

from broker.log import log_reader
from tests.broker.log.compaction.cleaner_world import BACKOFF_MS, CleanerWorld


def test_a_reader_goes_on_in_what_it_has(world):
    world.put(("a", "1"))
    world.put(("a", "2"))
    region = log_reader.read(world.log, 0, 1 << 20, True).records
    before = region.file.read(region.position, region.length)
    world.roll()
    world.clean()
    assert region.file.read(region.position, region.length) == before


def test_what_is_appended_meanwhile_is_there(world):
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.ms += BACKOFF_MS
    world.manager.tick(world.now)
    (work,) = world.manager.take_syncs()
    world.put(("a", "3"))
    world.run(work)
    world.clean(0)
    assert world.records() == {1: (b"a", b"2"), 2: (b"a", b"3")}


def begun(world):
    """Begin a pass and return it when its first segment is written but not yet in its place."""
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.ms += BACKOFF_MS
    world.manager.tick(world.now)
    (work,) = world.manager.take_syncs()
    world.run(work)
    assert work.cleaned is not None and world.files(".cleaned")
    return work


def test_a_topic_deleted_meanwhile_is_not_brought_back(world):
    begun(world)
    world.manager.delete({"flights": [0]}).run()
    world.log = world.open()
    world.put(("new", "1"))
    world.clean(0)
    assert world.records() == {0: (b"new", b"1")} and not world.files(".cleaned")


def test_segments_that_retention_took_meanwhile_are_not_brought_back():
    world = CleanerWorld(cleanup_policy="compact,delete")
    begun(world)
    world.manager.delete_records(world.log, 2, world.now)
    world.clean(0)
    assert world.bases() == [2] and not world.files(".cleaned")


def test_a_log_of_which_records_were_deleted_is_cleaned_from_its_start():
    world = CleanerWorld(cleanup_policy="compact,delete")
    world.put(("a", "1"), ("b", "1"))
    world.roll()
    world.put(("a", "2"), ("a", "3"))
    world.roll()
    world.manager.delete_records(world.log, 2, world.now)
    world.clean()
    assert world.records() == {3: (b"a", b"3")}


def test_a_corrupt_batch_is_named_and_the_log_left_alone(world):
    world.put(("a", "1"))
    world.put(("a", "2"))
    world.roll()
    content = world.storage.files["flights-0/00000000000000000000.log"]
    content.data[-1] ^= 0xFF
    before = bytes(content.data)
    world.clean()
    assert "00000000000000000000.log at byte" in world.lines[-1] and "CRC" in world.lines[-1]
    assert bytes(content.data) == before and not world.files(".cleaned") and world.log.offline is None
    line_count = len(world.lines)
    assert world.clean() == 0 and len(world.lines) == line_count


def test_a_full_disk_is_said_once_and_tried_again(world):
    world.put(("a", "1"), ("a", "2"))
    world.roll()
    world.storage.free_bytes = 0
    world.clean()
    world.clean()
    assert [line for line in world.lines if "cleaned" in line and "No space left" in line] == world.lines[-1:]
    assert not world.files(".cleaned") and len(world.records()) == 2
    world.storage.free_bytes = None
    world.clean()
    assert len(world.records()) == 1
