"""The files port: one suite for a directory of the machine and for memory."""

import os
import resource
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from broker.log.storage.memory_storage import PAGE_BYTES, MemoryStorage
from broker.log.storage.os_storage import OsStorage, _c_library
from broker.log.storage.page_cache import is_in_memory, read_into_memory, read_now
from broker.log.storage.port import StorageError


@pytest.fixture(params=["os", "memory"])
def storage(request, tmp_path):
    return OsStorage(str(tmp_path)) if request.param == "os" else MemoryStorage()


@pytest.fixture
def file(storage):
    storage.make_directory("d")
    return storage.open("d/f", create=True)


def content(storage, path):
    file = storage.open(path)
    return file.read(0, file.size)


# --- both storages -----------------------------------------------------------------------------------------------


def test_appends_follow_each_other_whatever_kind_of_bytes_they_are(file):
    for data in (b"one", bytearray(b"two"), memoryview(b"-three")[1:], b""):
        file.append(data)
    assert (file.size, file.read(0, 100)) == (11, b"onetwothree")


def test_a_read_gives_fewer_bytes_only_at_the_end(file):
    file.append(b"0123456789")
    assert (file.read(2, 3), file.read(8, 5), file.read(10, 5), file.read(50, 5)) == (b"234", b"89", b"", b"")


def test_a_cut_file_goes_on_at_its_new_end(file):
    file.append(b"0123456789")
    file.truncate(4)
    file.append(b"x")
    assert (file.size, file.read(0, 100)) == (5, b"0123x")


def test_two_handles_see_one_file(storage, file):
    file.append(b"abc")
    other = storage.open("d/f")
    assert (other.size, other.read(0, 3)) == (3, b"abc")


def test_it_says_where_it_is_and_how_much_still_fits(storage, file):
    total, free = storage.space()
    assert 0 < free <= total and storage.location.startswith("/")


def test_a_file_that_is_not_there_is_made_only_when_asked(storage, file):
    with pytest.raises(StorageError, match="none: No such file") as caught:
        storage.open("d/none")
    assert caught.value.path.endswith("d/none") and not caught.value.full
    assert not storage.exists("d/none")
    storage.open("d/none", create=True)
    assert storage.exists("d/none")


def test_opening_to_create_keeps_what_is_there(storage, file):
    file.append(b"abc")
    assert storage.open("d/f", create=True).size == 3


def test_names_are_listed_in_order_and_a_missing_directory_has_none(storage, file):
    for name in ("d/b", "d/a"):
        storage.open(name, create=True)
    storage.make_directory("d/sub")
    assert storage.list("d") == ["a", "b", "f", "sub"]
    assert storage.list("") == ["d"] and storage.list("nowhere") == []


def test_a_directory_is_made_with_its_parents_and_again_without_complaint(storage):
    for _ in range(2):
        storage.make_directory("a/b/c")
    assert storage.exists("a") and storage.exists("a/b/c")


def test_a_directory_is_renamed_with_all_that_is_in_it(storage, file):
    file.append(b"abc")
    storage.rename("d", "e")
    storage.sync_directory("")
    assert not storage.exists("d") and content(storage, "e/f") == b"abc"


def test_a_rename_does_not_swallow_a_directory_that_holds_something(storage, file):
    storage.make_directory("e")
    storage.open("e/x", create=True)
    with pytest.raises(StorageError):
        storage.rename("d", "e")
    with pytest.raises(StorageError):
        storage.rename("nowhere", "z")
    assert storage.list("d") == ["f"] and storage.list("e") == ["x"]


def test_a_removed_file_stays_readable_for_who_holds_it(storage, file):
    """A fetch answer keeps its segment open, whatever retention does meanwhile (rule 1 of CONTRIBUTING.md)."""
    file.append(b"abc")
    storage.remove("d/f")
    assert not storage.exists("d/f") and file.read(0, 3) == b"abc"


def test_removing_takes_a_directory_whole_and_what_is_not_there_is_fine(storage, file):
    for _ in range(2):
        storage.remove("d")
        storage.remove("d/f")
    assert storage.list("") == []


def test_replace_puts_a_whole_file_and_leaves_nothing_beside_it(storage):
    storage.replace("c", b"first, which is longer")
    storage.replace("c", b"second")
    assert content(storage, "c") == b"second" and storage.list("") == ["c"]


def test_a_handle_of_a_replaced_file_keeps_the_old_bytes(storage):
    storage.replace("c", b"old")
    old = storage.open("c")
    storage.replace("c", b"new")
    assert old.read(0, 3) == b"old" and content(storage, "c") == b"new"


def test_syncs_return(storage, file):
    file.append(b"abc")
    file.sync()
    storage.sync_directory("d")
    storage.sync_directory("")


# --- the machine's files -----------------------------------------------------------------------------------------


def test_a_descriptor_closes_with_the_last_reference(tmp_path):
    storage = OsStorage(str(tmp_path))
    fd = storage.open("f", create=True).fileno()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_only_their_owner_may_read_what_it_makes(tmp_path):
    """Messages and SCRAM keys are in these files. A user who could open the lock could hold it, too."""
    storage, umask = OsStorage(str(tmp_path / "data")), os.umask(0)
    try:
        storage.make_directory("flights-0")
        storage.lock()
        storage.open("flights-0/f", create=True)
        storage.open("journal", create=True, ahead_bytes=64)
        storage.replace("metadata.json", b"{}")
    finally:
        os.umask(umask)
        storage.unlock()
    for path in (tmp_path / "data", *(tmp_path / "data").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_descriptors_are_not_inherited_by_child_processes(tmp_path):
    assert not os.get_inheritable(OsStorage(str(tmp_path)).open("f", create=True).fileno())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is always full")
def test_a_full_disk_is_told_from_other_faults(tmp_path):
    storage = OsStorage(str(tmp_path))
    os.symlink("/dev/full", tmp_path / "f")
    file = storage.open("f")
    with pytest.raises(StorageError):
        file.append(b"abc")
    assert file.size == 0


def test_an_append_that_failed_and_cannot_be_cut_says_what_is_there(tmp_path):
    """The owner undoes the append by the file's size; a size without the torn bytes would leave them in the log."""
    storage = OsStorage(str(tmp_path))
    file = storage.open("f", create=True)
    file.append(b"whole")
    reader = os.open(tmp_path / "f", os.O_RDONLY)
    torn = os.open(tmp_path / "f", os.O_WRONLY | os.O_APPEND)
    os.write(torn, b"to")
    os.dup2(reader, file.fileno())  # writes and cuts fail from now on
    with pytest.raises(StorageError):
        file.append(b"torn")
    assert file.size == 7
    os.close(torn)
    os.close(reader)


# --- preallocation ---------------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * 4096  # a bulk producer's batch


def test_a_file_that_was_trimmed_goes_on_where_it_was(storage, file):
    file.append(LARGE)
    file.trim()
    file.append(b"more")
    file.trim()
    assert (file.size, content(storage, "d/f")) == (len(LARGE) + 4, LARGE + b"more")


@pytest.fixture
def on_disk(tmp_path):
    """Return a file, and a function that returns the number of bytes that it takes on the disk."""
    file = OsStorage(str(tmp_path)).open("f", create=True)
    return file, lambda: os.stat(tmp_path / "f").st_blocks * 512


@pytest.fixture
def reserving(on_disk):
    file, taken = on_disk
    file.append(LARGE)
    file.append(LARGE)
    if taken() < 2.2 * len(LARGE):
        pytest.skip("this system sets no room aside")
    return on_disk


def test_room_is_set_aside_for_large_appends_and_the_end_of_the_file_stays_where_it_is(reserving):
    file, taken = reserving
    assert os.fstat(file.fileno()).st_size == file.size == 2 * len(LARGE)
    for _ in range(30):
        file.append(LARGE)
    assert file.size <= taken() <= file.size + (10 << 20)
    assert file.read(31 * len(LARGE), 2 * len(LARGE)) == LARGE


def test_what_is_set_aside_is_a_part_of_what_there_is(reserving):
    """Without this bound, a third of a full disk was preallocated for silent partitions."""
    file, taken = reserving
    for _ in range(30):
        file.append(LARGE)
        assert taken() <= file.size + file.size // 4 + 65536


def test_room_is_given_back_and_when_it_was_written_to_stays(reserving):
    file, taken = reserving
    file.set_modified_ms(1_000)
    file.trim()
    assert (file.modified_ms(), file.read(len(LARGE), 2 * len(LARGE))) == (1_000, LARGE)
    assert taken() <= 2 * len(LARGE) + 8192


def test_room_that_a_killed_process_left_is_given_back_by_the_next_one(reserving, tmp_path):
    file, taken = reserving
    OsStorage(str(tmp_path)).open("f").trim()
    assert taken() <= file.size + 8192


def test_a_python_that_cannot_call_the_c_library_sets_no_room_aside(on_disk, monkeypatch):
    file, _ = on_disk
    monkeypatch.setitem(sys.modules, "ctypes", None)  # like a Python that was compiled without libffi
    _c_library.cache_clear()
    try:
        file.append(LARGE)
    finally:
        _c_library.cache_clear()
    assert file.read(0, 2 * len(LARGE)) == LARGE


def test_giving_room_back_takes_nothing_that_another_handle_has_written(reserving, tmp_path):
    _, taken = reserving
    file, other = (OsStorage(str(tmp_path)).open("f") for _ in range(2))
    other.append(LARGE)
    file.trim()
    assert os.stat(tmp_path / "f").st_size == other.size == 3 * len(LARGE)


def test_no_space_is_preallocated_on_a_file_system_that_may_not_gain_by_it(on_disk, monkeypatch):
    """On btrfs a file that once had preallocated space is no longer compressed: it took thirty times its space."""
    file, taken = on_disk
    monkeypatch.setattr("broker.log.storage.os_storage._GAINING", ())
    for _ in range(4):
        file.append(LARGE)
    os.fsync(file.fileno())
    assert taken() <= file.size + 8192


def test_small_appends_set_no_room_aside(on_disk):
    file, taken = on_disk
    for _ in range(100):
        file.append(bytes(40_000))
    os.fsync(file.fileno())
    assert taken() <= file.size + 65536


def test_the_last_room_of_a_disk_is_not_set_aside(on_disk, monkeypatch):
    file, taken = on_disk
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=64 * len(LARGE), f_frsize=1))
    for _ in range(4):
        file.append(LARGE)
    os.fsync(file.fileno())
    assert taken() <= file.size + 8192


# --- zeros ahead of the end ------------------------------------------------------------------------------------------


@pytest.fixture
def ahead(storage):
    return storage.open("f", create=True, ahead_bytes=100)


def test_who_appends_over_zeros_sees_only_what_was_appended(storage, ahead):
    for data in (b"one", b"two", bytes(range(1, 120)), b"three" * 20, b"four"):
        ahead.append(data)
    whole = b"onetwo" + bytes(range(1, 120)) + b"three" * 20 + b"four"
    assert ahead.size == len(whole) and ahead.read(0, len(whole)) == whole
    assert content(storage, "f").startswith(whole) and not any(content(storage, "f")[len(whole) :])


def test_most_appends_over_zeros_leave_the_end_where_it_is(storage, ahead):
    ends = []
    for _ in range(50):
        ahead.append(b"0123456789")
        ends.append(storage.open("f").size)
    assert len(set(ends)) <= 6 and ends[-1] >= 500


def test_a_cut_takes_the_zeros_too(storage, ahead):
    ahead.append(b"0123456789")
    ahead.truncate(4)
    assert (ahead.size, content(storage, "f")) == (4, b"0123")
    ahead.append(b"x")
    assert (ahead.size, content(storage, "f")[:6]) == (5, b"0123x\0")


def test_a_disk_without_room_for_the_zeros_takes_what_is_appended(tmp_path):
    memory = MemoryStorage()
    memory.free_bytes = 50
    with files_of_at_most(50):
        for storage in (memory, OsStorage(str(tmp_path))):
            ahead = storage.open("f", create=True, ahead_bytes=100)
            ahead.append(bytes(40))
            with pytest.raises(StorageError):
                ahead.append(b"x" * 20)
            assert ahead.size == 40
            ahead.append(b"y" * 5)
            assert (ahead.size, ahead.read(38, 9).rstrip(b"\0")) == (45, b"\0\0yyyyy")


@pytest.mark.parametrize("free, stored", [(6_300, b"0123456789"), (6_500, b"0123456789" + bytes(100))], ids=str)
def test_zeros_do_not_take_the_last_of_a_disk(tmp_path, monkeypatch, free, stored):
    """Otherwise a topic could not be created in the space that was freed on a full disk."""
    memory = MemoryStorage()
    memory.free_bytes = free
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=free // 100, f_frsize=100))
    for storage in (memory, OsStorage(str(tmp_path))):
        storage.open("f", create=True, ahead_bytes=100).append(b"0123456789")
        assert content(storage, "f") == stored


@contextmanager
def files_of_at_most(size):
    """Limit every file to `size` bytes, like a disk that is full beyond them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- faults of MemoryStorage -------------------------------------------------------------------------------------


@pytest.fixture
def memory():
    storage = MemoryStorage()
    storage.make_directory("d")
    storage.sync_directory("")
    return storage


def cuts(memory, seeds=300):
    """Return the files after a power cut, for many random outcomes."""
    from random import Random

    return [memory.power_cut(Random(seed).randrange) for seed in range(seeds)]


def test_a_full_memory_takes_nothing_of_an_append(memory):
    file = memory.open("d/f", create=True)
    memory.free_bytes = 4
    with pytest.raises(StorageError, match="No space left") as caught:
        file.append(b"12345")
    assert caught.value.full and file.size == 0
    file.append(b"1234")


def test_what_was_synced_is_there_after_every_power_cut(memory):
    file = memory.open("d/f", create=True)
    file.append(b"s" * (PAGE_BYTES + 100))
    file.sync()
    memory.sync_directory("d")
    file.append(b"u" * 3 * PAGE_BYTES)
    for after in cuts(memory):
        assert content(after, "d/f")[: PAGE_BYTES + 100] == b"s" * (PAGE_BYTES + 100)


def test_what_was_not_synced_may_be_whole_gone_torn_or_nonsense_page_by_page(memory):
    file = memory.open("d/f", create=True)
    memory.sync_directory("d")
    new = (bytes(range(1, 251)) * 50)[: 2 * PAGE_BYTES]
    file.append(new)
    contents = [content(after, "d/f") for after in cuts(memory)]
    pages = [[f[n : n + PAGE_BYTES] for n in range(0, len(f), PAGE_BYTES)] for f in contents if len(f) == len(new)]
    whole = [[page == new[n * PAGE_BYTES :][: len(page)] for n, page in enumerate(file_pages)] for file_pages in pages]
    assert [True, False] in whole and [False, True] in whole, "in any order"
    assert new in contents and b"" in contents
    flat = [page for file_pages in pages for page in file_pages]
    assert bytes(PAGE_BYTES) in flat, "zeros: the size is there, the data is not"
    assert any(page[:9] == new[:9] and page.endswith(bytes(9)) for page in flat), "torn"
    assert any(page[:9] not in (new[:9], bytes(9)) and page.count(0) < 99 for page in flat), "nonsense"


def test_bytes_that_were_cut_off_and_written_over_may_come_back_until_a_sync(memory):
    file = memory.open("d/f", create=True)
    memory.sync_directory("d")
    file.append(b"first")
    file.truncate(0)
    file.append(b"other")
    assert b"first" in [content(after, "d/f") for after in cuts(memory)]
    file.sync()
    assert {content(after, "d/f") for after in cuts(memory)} == {b"other"}


def test_a_new_name_may_be_lost_until_its_directory_is_synced(memory):
    memory.open("d/f", create=True).sync()
    assert {after.exists("d/f") for after in cuts(memory)} == {True, False}
    memory.sync_directory("d")
    assert {after.exists("d/f") for after in cuts(memory)} == {True}


def test_a_removal_may_be_undone_until_its_directory_is_synced(memory):
    memory.replace("d/f", b"abc")
    memory.remove("d/f")
    assert {after.exists("d/f") for after in cuts(memory)} == {True, False}
    memory.sync_directory("d")
    assert {after.exists("d/f") for after in cuts(memory)} == {False}


def test_a_rename_happens_or_does_not_and_loses_nothing(memory):
    memory.replace("d/f", b"abc")
    memory.rename("d", "e")
    assert {(*after.list("d"), "|", *after.list("e")) for after in cuts(memory)} == {("f", "|"), ("|", "f")}
    memory.sync_directory("")
    assert {tuple(after.list("e")) for after in cuts(memory)} == {("f",)}


def test_a_replaced_file_is_never_a_part(memory):
    memory.replace("c", b"old")
    memory.replace("c", b"new!")
    assert {content(after, "c") for after in cuts(memory)} == {b"new!"}


def test_a_sync_that_is_told_to_fail_leaves_the_file_unsynced(memory):
    file = memory.open("d/f", create=True)
    memory.sync_directory("d")
    file.append(b"abc")
    memory.failing_syncs.add("d/f")
    with pytest.raises(StorageError, match="Input/output error"):
        file.sync()
    assert b"" in [content(after, "d/f") for after in cuts(memory)]


def test_it_is_told_what_of_a_file_is_in_memory_and_it_can_be_read_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(4 << 20))
    with path.open("rb") as file:
        fd = file.fileno()
        os.fsync(fd)
        assert is_in_memory(fd, 0, 4 << 20)
        assert read_now(fd, 100, 50) == bytes(50)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if is_in_memory(fd, 0, 4 << 20):
            pytest.skip("this system does not say, or forgets nothing")
        assert read_now(fd, 1 << 20, 50) is None
        read_into_memory(fd, 0, 4 << 20)
        assert read_now(fd, 1 << 20, 50) == bytes(50)
        assert read_now(fd, (4 << 20) - 10, 50) is None, "there are not so many"
        assert is_in_memory(fd, 0, 4 << 20)
        assert is_in_memory(fd, 4 << 20, 100), "nothing is there to wait for"
