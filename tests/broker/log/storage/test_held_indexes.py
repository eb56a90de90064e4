"""HeldIndexes: on a full disk an index is held in memory, and written when there is space."""

import pytest

from broker.log.storage.held_indexes import HeldIndexes
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError

INDEX = "flights-0/00000000000000000000.index"


@pytest.fixture
def disk():
    storage = MemoryStorage()
    storage.make_directory("flights-0")
    storage.open(INDEX, create=True).append(b"abcd")
    storage.free_bytes = 0
    return storage


def test_what_does_not_fit_is_read_from_memory(disk):
    file = HeldIndexes(disk).open(INDEX)
    file.append(b"efgh")
    file.append(b"ijkl")
    assert (file.size, file.read(0, 100), file.read(2, 4), file.read(5, 2)) == (12, b"abcdefghijkl", b"cdef", b"fg")
    assert file.read_now(0, 4) == b"abcd" and file.read_now(2, 4) is None
    file.sync()
    assert disk.open(INDEX).size == 4


def test_what_is_held_is_written_before_the_next_entry_once_there_is_space(disk):
    file = HeldIndexes(disk).open(INDEX)
    file.append(b"efgh")
    disk.free_bytes = 100
    file.append(b"ijkl")
    assert disk.open(INDEX).read(0, 100) == file.read(0, 100) == b"abcdefghijkl"


@pytest.mark.parametrize("size", [0, 2, 4, 6, 8])
def test_a_cut_takes_from_memory_first(disk, size):
    file = HeldIndexes(disk).open(INDEX)
    file.append(b"efgh")
    file.truncate(size)
    assert (file.size, file.read(0, 100)) == (size, b"abcdefgh"[:size])
    assert disk.open(INDEX).size == min(size, 4)


def test_an_index_that_is_rewritten_in_memory_replaces_the_one_on_the_disk(disk):
    class NoNewFiles(MemoryStorage):
        def open(self, path, create=False, ahead_bytes=0, size=None):
            if create and not self.exists(path) and not self.free_bytes:
                raise StorageError(path, "No space left on device", full=True)
            return super().open(path, create, ahead_bytes)

    disk.__class__ = NoNewFiles
    storage = HeldIndexes(disk)
    file = storage.open(INDEX + ".cleaned", create=True)
    file.append(b"new!")
    storage.rename(file.path, INDEX)
    file.path = INDEX
    assert file.read(0, 4) == b"new!" and not disk.exists(INDEX)
    disk.free_bytes = 100
    file.append(b"more")
    assert disk.open(INDEX).read(0, 100) == b"new!more"


def test_other_errors_and_other_files_are_as_they_are(disk):
    storage = HeldIndexes(disk)
    with pytest.raises(StorageError, match="No space"):
        storage.open("flights-0/00000000000000000000.idindex", create=True).append(b"x")
    with pytest.raises(StorageError, match="No such file"):
        storage.open("flights-0/00000000000000000009.index")
