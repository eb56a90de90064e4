"""broker.log.storage.open_files: few descriptors for many files, without a byte or an error lost."""

import errno
import os
import resource
import threading
from contextlib import contextmanager

import pytest

from broker.log.storage import os_storage
from broker.log.storage.os_storage import OsStorage
from broker.log.storage.port import StorageError

LIMIT = 4


@pytest.fixture
def storage(tmp_path):
    storage = OsStorage(str(tmp_path))
    storage.descriptors.limit = LIMIT
    storage.make_directory("d")
    return storage


def made(storage, number, begin=0):
    """Make files, and sync them, so that they can be closed."""
    files = []
    for index in range(begin, begin + number):
        file = storage.open(f"d/{index}", create=True)
        file.append(b"%d" % index)
        file.sync()
        files.append(file)
    return files


def close(storage):
    """Close all files that can be closed, by using others."""
    others = made(storage, 2 * LIMIT, begin=1000)
    for file in others:
        file.read(0, 1)


def open_fds():
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def failing_syncs(monkeypatch, *files):
    """Let the syncs of these files fail; yield the list of the descriptors that were synced."""
    synced, sync = [], os_storage._datasync

    def datasync(fd):
        synced.append(fd)
        if any(file.at is not None and file.at.fd == fd for file in files):
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os_storage, "_datasync", datasync)
        yield synced


def test_at_most_so_many_files_are_open(storage):
    before = open_fds()
    files = made(storage, 50)
    assert storage.open_count == LIMIT == open_fds() - before
    for number, file in enumerate(files):
        assert file.read(0, 9) == b"%d" % number == bytes(file.read_now(0, len(b"%d" % number)))
        file.append(b"!")
        file.sync()
    assert storage.open_count == LIMIT == open_fds() - before
    assert [file.read(0, 9) for file in files] == [b"%d!" % number for number in range(50)]
    del files, file
    assert (storage.open_count, open_fds()) == (0, before)


def test_a_file_that_is_used_again_and_again_stays_open(storage):
    used, *others = made(storage, 20)
    used.read(0, 1)
    fd = used.fileno()
    for other in others:
        other.read(0, 1)
        used.read(0, 1)
        assert used.fileno() == fd


def test_a_file_stays_open_while_its_descriptor_is_held(storage):
    """A sendfile or a sync in another thread uses the number, which must not be given to another file meanwhile."""
    file = made(storage, 1)[0]
    held = file.descriptor()
    close(storage)
    assert file.at is None and os.pread(held.fd, 9, 0) == b"0"
    fd = held.fd
    del held
    with pytest.raises(OSError):
        os.fstat(fd)
    assert file.read(0, 9) == b"0"


def test_a_file_with_unsynced_writes_is_synced_before_it_is_closed(storage, monkeypatch):
    """The kernel tells of a failed write only those who had the file open."""
    files = made(storage, LIMIT)
    for file in files:
        file.append(b"!")
    with failing_syncs(monkeypatch) as synced:
        made(storage, 2, begin=10)
    assert len(synced) == LIMIT + 2, "all of them at once, and the two new files"
    assert not any(file.is_dirty for file in files) and storage.open_count <= LIMIT


def test_a_file_without_unsynced_writes_is_closed_before_others(storage, monkeypatch):
    dirty, *clean = made(storage, LIMIT)
    dirty.append(b"!")
    with failing_syncs(monkeypatch, dirty):
        made(storage, 20, begin=10)
    assert dirty.at is not None
    dirty.sync()
    assert not dirty.is_dirty


def test_a_failed_sync_is_not_forgotten_by_closing(storage, monkeypatch):
    """The file is not opened again as if it were synced, and its next sync fails although the disk works again."""
    files = made(storage, LIMIT)
    for file in files:
        file.append(b"!")
    with failing_syncs(monkeypatch, *files):
        made(storage, 1, begin=10)
    assert all(file.is_dirty and file.at is not None for file in files)
    close(storage)
    for file in files:
        assert file.at is not None
        with pytest.raises(StorageError, match=r"d/\d: Input/output error"):
            file.sync()


def test_a_sync_of_a_closed_file_opens_it_only_if_it_may_have_data_that_is_not_on_the_disk(storage, monkeypatch):
    file = made(storage, 1)[0]
    another = storage.open("d/0")
    close(storage)
    with failing_syncs(monkeypatch) as synced:
        file.sync()
        assert (synced, file.at) == ([], None)
        another.sync()  # an earlier process may have written to it
        assert len(synced) == 1
        another.sync()
        assert len(synced) == 1


def test_a_write_while_a_sync_runs_needs_another_sync(storage, monkeypatch):
    file = made(storage, 1)[0]
    file.append(b"a")
    monkeypatch.setattr(os_storage, "_datasync", lambda fd: file.append(b"b"))
    file.sync()
    assert file.is_dirty


def test_a_file_that_is_removed_stays_readable_to_those_that_hold_it(storage):
    file, other = made(storage, 2)
    close(storage)
    storage.remove("d/0")
    made(storage, 1)
    assert (file.read(0, 9), other.at) == (b"0", None)
    close(storage)
    assert file.read(0, 9) == b"0"
    with pytest.raises(StorageError, match="No such file"):
        storage.open("d/no")


@pytest.mark.parametrize("how", ["rename", "replace"])
def test_a_file_that_is_overwritten_stays_readable_to_those_that_hold_it(storage, how):
    file = made(storage, 1)[0]
    close(storage)
    if how == "replace":
        storage.replace("d/0", b"new")
    else:
        new = storage.open("d/new", create=True)
        new.append(b"new")
        new.sync()
        storage.rename("d/new", "d/0")
    close(storage)
    assert (file.read(0, 9), storage.open("d/0").read(0, 9)) == (b"0", b"new")
    if how == "rename":
        assert new.read(0, 9) == b"new"


def test_a_file_is_found_under_its_new_name(storage):
    file = made(storage, 1)[0]
    close(storage)
    storage.rename("d/0", "d/0.deleted")
    storage.rename("d", "e")
    storage.make_directory("d")
    made(storage, 1)
    close(storage)
    assert file.at is None and file.read(0, 9) == b"0"
    file.append(b"!")
    assert (storage.open("e/0.deleted").read(0, 9), file.path) == (b"0!", os.path.join(storage.root, "e/0.deleted"))


def test_the_files_of_a_removed_directory_stay_readable_to_those_that_hold_them(storage):
    files = made(storage, 3)
    close(storage)
    storage.rename("d", "d.deleted")
    storage.remove("d.deleted")
    storage.make_directory("d")
    close(storage)
    assert [file.read(0, 9) for file in files] == [b"0", b"1", b"2"]


def test_a_file_that_another_program_removed_is_named(storage, tmp_path):
    file = made(storage, 1)[0]
    close(storage)
    (tmp_path / "d/0").unlink()
    for use in (lambda: file.append(b"a"), lambda: file.read(0, 1), file.descriptor, file.modified_ms):
        with pytest.raises(StorageError, match="d/0: No such file or directory"):
            use()
    assert file.read_now(0, 1) is None


@pytest.mark.parametrize("with_data, reason", [(b"other", "another file has this"), (None, "it has 0 bytes, 1 were")])
def test_a_file_that_another_program_exchanged_or_cut_is_refused_by_name(storage, tmp_path, with_data, reason):
    file = made(storage, 1)[0]
    close(storage)
    if with_data is None:
        os.truncate(tmp_path / "d/0", 0)
    else:
        (tmp_path / "new").write_bytes(with_data)
        os.rename(tmp_path / "new", tmp_path / "d/0")
    before = storage.open_count
    with pytest.raises(StorageError, match=f"d/0: {reason}"):
        file.append(b"a")
    assert storage.open_count <= before


def test_a_failed_start_of_a_file_leaves_no_descriptor(storage):
    before = open_fds()
    with pytest.raises(StorageError, match="No such file"):
        storage.open("d/none")
    assert (storage.open_count, open_fds()) == (0, before)


@contextmanager
def no_descriptor_left():
    """Take every descriptor that the process may still open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, hard))
        with pytest.raises(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_a_process_without_descriptors_closes_files_before_it_gives_up(storage):
    """Connections and registries may have taken what the limit left to them."""
    storage.descriptors.limit = 1 << 30
    files = made(storage, 20)
    with no_descriptor_left():
        more = made(storage, 1, begin=50)
        assert more[0].read(0, 9) == b"50"
    assert [file.read(0, 9) for file in files] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    "does",
    [
        lambda storage: storage.sync_directory("d"),
        lambda storage: storage.replace("d/replaced", b"new"),
        lambda storage: storage.note_until_cut("d/note"),
    ],
    ids=["sync_directory", "replace", "note_until_cut"],
)
def test_a_process_without_descriptors_closes_files_for_directories_too(storage, does):
    """A partition went offline until the next start, because its directory could not be opened for a sync."""
    files = made(storage, 2)
    with no_descriptor_left():
        does(storage)
    assert [file.read(0, 9) for file in files] == [b"0", b"1"]


def test_a_lack_of_descriptors_is_no_error_of_the_file_and_a_missing_name_is_one(storage):
    (file,) = made(storage, 1)
    assert file.closed()
    with no_descriptor_left(), pytest.raises(StorageError, match="Too many open files") as lacking:
        file.read(0, 9)
    assert lacking.value.is_passing and not lacking.value.is_of_file
    with pytest.raises(StorageError) as missing:
        storage.open("d/none")
    assert missing.value.is_of_file and file.read(0, 9) == b"0"


def test_threads_that_read_write_and_sync_meet_no_closed_descriptor(storage):
    files, faults = made(storage, 3 * LIMIT), []
    whole = [[b"%d" % number] for number in range(len(files))]

    def work(write):
        try:
            for turn in range(50):
                for number, file in enumerate(files):
                    if write:
                        file.append(b"%3d" % turn)
                        whole[number].append(b"%3d" % turn)
                    else:
                        file.sync()
                        assert file.read(0, 2).strip().startswith(b"%d" % number)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(write,)) for write in (True, False, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [file.read(0, 1 << 20) for file in files] == [b"".join(parts) for parts in whole]
    for file in files:
        file.sync()
    close(storage)
    assert storage.open_count <= LIMIT
