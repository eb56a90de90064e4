"""Swap of a segment for its cleaned one: a crash at any step leaves a whole log, the old one or the new one."""

from random import Random

import pytest

from broker.log import log_reader
from broker.log.compaction.swap import finish_swaps
from broker.log.recovery import stored_checkpoint
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.os_storage import OsStorage
from broker.log.storage.port import StorageError
from tests.broker.log.compaction.cleaner_world import CleanerWorld

BEFORE = {0: b"1", 1: b"1", 2: b"2", 3: b"1", 4: b"2", 5: b"3"}
AFTER = {3: b"1", 4: b"2", 5: b"3"}
KEYS = {0: b"b", 1: b"a", 2: b"a", 3: b"c", 4: b"b", 5: b"a"}


class _Stop(Exception):
    pass


class _StopsAt(MemoryStorage):
    """Storage whose process is killed after `steps` changes of names."""

    steps = 1 << 30

    def _step(self):
        self.steps -= 1
        if self.steps < 0:
            raise _Stop

    def open(self, path, create=False, ahead_bytes=0, size=None):
        if create and path not in self.files:
            self._step()
        return super().open(path, create)

    def rename(self, source, target):
        self._step()
        super().rename(source, target)

    def remove(self, path):
        if self.exists(path):
            self._step()
        super().remove(path)

    def replace(self, path, data):
        self._step()
        super().replace(path, data)


def filled(storage=None):
    """Fill three closed segments with two batches of one record each; the cleaner has not run."""
    world = CleanerWorld(storage, segment_bytes=5000)
    for offset, value in BEFORE.items():
        world.put((KEYS[offset], value + b"." * 600))
        if offset % 2:
            world.roll()
    return world


def killed(steps):
    """Clean a log, with a kill after `steps` changes of names; return the world, and True if the cleaning ended."""
    world = filled(_StopsAt())
    world.ids_before = world.ids()
    world.storage.steps = steps
    try:
        world.clean()
        world.clean()
    except _Stop:
        pass
    ended, world.storage.steps = world.storage.steps >= 0, 1 << 30
    return world, ended


def check(world, storage):
    again = world.reopened(storage)
    assert not again.lines, again.lines
    values = {offset: value[:1] for offset, (_, value) in again.records().items()}
    assert values in (BEFORE, AFTER)
    assert again.ids().items() <= world.ids_before.items() and values.keys() <= again.ids().keys()
    assert not again.files(".cleaned") + again.files(".swap") + again.files(".deleted")
    assert len(again.files(".log")) == len(again.files(".idindex")) == (2 if values == AFTER else 4)
    assert again.put(("new", "1")).base_offset == 6
    again.roll()
    again.clean()
    assert again.latest().keys() == {b"a", b"b", b"c", b"new"} and not again.lines
    return values == AFTER


def test_neighbours_become_one_segment_and_their_files_go():
    world, ended = killed(1 << 30)
    assert ended and world.bases() == [0, 6]
    world.clean()
    assert [name[:20] for name in world.files(".log")] == [f"{0:020d}", f"{6:020d}"]
    assert check(world, world.storage)


def test_a_kill_at_any_step_leaves_a_whole_log():
    outcomes, steps, ended = [], 0, False
    while not ended:
        world, ended = killed(steps)
        outcomes.append(check(world, world.storage))
        steps += 1
    assert steps > 25 and outcomes == sorted(outcomes), "from one step on it is gone through with"


@pytest.mark.parametrize("seed", range(15))
def test_a_power_cut_at_any_step_leaves_a_whole_log(seed):
    random = Random(seed)
    for steps in range(0, 45, 2):
        world, _ = killed(steps + seed % 2)
        check(world, world.storage.power_cut(random.randrange))


@pytest.mark.parametrize("seed", range(15))
def test_a_power_cut_after_a_kill_while_it_is_finished_leaves_a_whole_log(seed):
    random = Random(seed)
    for steps in range(8, 30):
        world, _ = killed(steps)
        world.storage.steps = random.randrange(20)
        try:
            world.reopened()
        except _Stop:
            pass
        world.storage.steps = 1 << 30
        check(world, world.storage.power_cut(random.randrange))


class _FailsAt(MemoryStorage):
    """A disk whose renames fail after `renames_left` renames of the cleaner, until a test sets `renames_left` to -1."""

    renames_left = -1

    def rename(self, source, target):
        if self.renames_left == 0:
            raise StorageError(source, "Input/output error")
        if any(part in source + target for part in (".cleaned", ".swap", ".deleted")):
            self.renames_left -= 1
        super().rename(source, target)


def half_swapped(step):
    """Clean a log with a rename that fails after `step` others; return None if the cleaning has fewer renames."""
    world = filled(_FailsAt())
    world.ids_before = world.ids()
    world.storage.renames_left = step
    world.clean()
    return world if world.log.uncleanable else None


def test_a_disk_that_does_not_rename_for_a_while_is_said_and_the_log_is_cleaned_in_the_end():
    """This holds for each of the renames. Meanwhile reads return the old records."""
    step = 0
    while (world := half_swapped(step)) is not None:
        assert world.log.uncleanable and "is not cleaned any more" in world.lines[-1]
        assert len(world.records()) == 6 and world.ids() == world.ids_before
        world.clean()
        assert len(world.lines) == 1, "it is said once"
        world.storage.renames_left = -1
        world.clean()
        assert world.lines[1:] == ["partition flights-0 is cleaned again"] and world.log.uncleanable is None
        world.clean()
        world.clean()
        assert {offset: value[:1] for offset, (_, value) in world.records().items()} == AFTER
        world.lines.clear()
        assert check(world, world.storage)
        step += 1
    assert step > 15


def test_a_start_goes_on_with_a_swap_that_is_half_way():
    step = 0
    while (world := half_swapped(step)) is not None:
        world.storage.renames_left = -1
        check(world, world.storage)
        step += 1


def test_no_segment_goes_while_names_are_being_changed():
    """A segment that is dropped by its name could be the new one of that name."""
    world = half_swapped(12)
    world.manager.delete_records(world.log, 4, world.now)
    assert world.log.log_start_offset == 4 and world.bases()[0] == 0
    world.storage.renames_left = -1
    world.clean()
    world.manager.delete_records(world.log, 5, world.now)
    world.clean()
    assert world.records().keys() == {5} and check_bases(world)


def check_bases(world):
    again = world.reopened()
    return again.records().keys() == {5} and not again.lines


def test_a_log_on_a_real_disk_is_cleaned_and_opened_again(tmp_path):
    world = filled(OsStorage(str(tmp_path)))
    region = log_reader.read(world.log, 0, 1 << 20, True).records
    before = region.file.read(region.position, region.length)
    world.clean()
    assert world.log.segments.all[0].log.path.endswith(f"{0:020d}.log")
    world.clean()
    assert region.file.read(region.position, region.length) == before
    world.manager.close()
    again = world.reopened()
    assert {offset: value[:1] for offset, (_, value) in again.records().items()} == AFTER and not again.lines


COPY, MINE = f"{5:020d} (copy).log.swap", f"{5:020d}.mine.swap"


@pytest.mark.parametrize("name", ["x.log.swap", "x.log.cleaned", "0.x.log.swap", "5.log.swap", COPY, MINE])
def test_a_file_whose_name_is_none_of_a_segment_is_left_alone(name):
    world = filled()
    world.storage.replace(f"flights-0/{name}", b"somebody's copy")
    again = world.reopened()
    assert again.log.log_end_offset == len(BEFORE) and bytes(again.storage.files[f"flights-0/{name}"].data)


def test_a_directory_without_a_swap_is_left_alone():
    storage = MemoryStorage()
    storage.replace("flights-0/00000000000000000000.log", b"")
    finish_swaps(storage, "flights-0")
    assert list(storage.files) == ["flights-0/00000000000000000000.log"]


def test_a_compacted_log_survives_a_new_checkpoint():
    """The id index shows where each batch belongs, so a gap is no damage."""
    world, _ = killed(1 << 30)
    stored_checkpoint.begin(world.storage, ())
    again = world.reopened()
    assert {offset: value[:1] for offset, (_, value) in again.records().items()} == AFTER and not again.lines
    assert again.log.log_end_offset == 6
