"""The note `.uncut`: a start after a kill syncs no file for a cut, unless the last process cut one."""

import os
from random import Random

import pytest

from broker.log import log_reader
from broker.log.recovery import clean_stop
from broker.log.storage.os_storage import OsStorage
from broker.log.storage.port import StorageError
from broker.wire.errors import ApiError
from tests.broker.log.conftest import START_MS, new_worker
from tests.broker.log.manager_world import LOG, Broker, kinds

IDS = LOG.replace(".log", ".idindex")


def started(storage=None, ms=0):
    """Return a broker whose start is over, and its log."""
    broker = Broker(storage)
    broker.worker = new_worker(START_MS + ms)
    log = broker.open()
    broker.manager.opened()
    return broker, log


def fail(broker, log, *values):
    """Let an append fail on a full disk, after its ids are written and part of the log."""
    broker.storage.free_bytes = 40
    with pytest.raises(ApiError):
        broker.append(log, *values)
    broker.storage.free_bytes = None


def syncs_of_a_start(storage):
    synced = []
    for path in (LOG, IDS):
        before = storage.files[path].synced
        storage.files[path].synced = None
        synced.append((path, before))
    started(storage, 10)
    count = sum(storage.files[path].synced is not None for path, _ in synced)
    for path, before in synced:
        storage.files[path].synced = before
    return count


def test_a_kill_without_a_cut_leaves_nothing_to_sync():
    broker, log = started()
    broker.append(log)
    assert broker.storage.exists(clean_stop.UNCUT)
    assert syncs_of_a_start(broker.storage) == 0
    assert broker.storage.exists(clean_stop.UNCUT), "so the next start after a kill has nothing to sync either"


def test_a_failed_write_that_was_undone_makes_the_next_start_sync():
    broker, log = started()
    broker.append(log)
    fail(broker, log, b"b")
    assert not broker.storage.exists(clean_stop.UNCUT)
    assert syncs_of_a_start(broker.storage) == 2
    assert broker.storage.exists(clean_stop.UNCUT)


def test_a_disk_that_can_wait_for_all_files_at_once_syncs_no_log_apart():
    broker, log = started()
    broker.append(log)
    broker.round()
    fail(broker, log, b"b")
    storage = broker.storage
    storage.syncs_all = True
    storage.failing_syncs.add(LOG)
    second, _ = started(storage, 10)
    assert second.manager.offline == {} and storage.exists(clean_stop.UNCUT)
    for seed in range(20):
        _, again = started(storage.power_cut(Random(seed).randrange), 20)
        assert again.log_end_offset == 1, "the cut was on the disk when the start was over"


def test_this_disk_is_synced_at_once_or_says_that_it_cannot(tmp_path, monkeypatch):
    broker, log = started(OsStorage(str(tmp_path)))
    broker.append(log)
    broker.round()
    (tmp_path / clean_stop.UNCUT).unlink()
    can_sync_all = broker.storage.sync_all()
    synced, fsync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
    started(OsStorage(str(tmp_path)), 10)
    assert any(path.endswith("flights-0") for path in synced) is not can_sync_all


def test_a_kill_during_a_start_that_has_cut_a_file_leaves_no_note():
    broker, log = started()
    broker.append(log)
    broker.storage.files[LOG].data += b"half a batch"
    second = Broker(broker.storage)
    second.open()  # cuts the log
    assert not broker.storage.exists(clean_stop.UNCUT)


def test_a_start_whose_undone_write_may_not_be_on_the_disk_leaves_no_note():
    broker, log = started()
    broker.append(log)
    broker.storage.files[LOG].data += b"half a batch"
    broker.storage.failing_syncs.add(LOG)
    second, _ = started(broker.storage)
    assert "flights-0" in second.manager.offline
    assert not broker.storage.exists(clean_stop.UNCUT)


def test_a_start_that_cannot_open_a_log_leaves_no_note():
    """The start did not come to the log's files, so a cut in them may not be on the disk."""
    broker, log = started()
    broker.append(log)
    fail(broker, log, b"b")
    broker.storage.failing_opens.add(LOG)
    second, _ = started(broker.storage)
    assert "flights-0" in second.manager.offline
    assert not broker.storage.exists(clean_stop.UNCUT)


def test_a_clean_stop_syncs_a_cut_that_no_thread_has_synced_yet():
    broker, log = started()
    broker.append(log)
    broker.round()
    fail(broker, log, b"b")
    assert broker.storage.files[LOG].cut
    broker.manager.close()
    assert broker.storage.exists(clean_stop.FILE) and not broker.storage.exists(clean_stop.UNCUT)
    assert not broker.storage.files[LOG].cut and not broker.storage.files[IDS].cut


def test_no_record_gets_the_ids_of_an_undone_write_by_a_kill_and_a_power_cut():
    """The ids of the undone write may be on the disk, and the next batch has its place, its size and its count."""
    end_offsets = set()
    for seed in range(300):
        broker, log = started()
        broker.append(log, b"a")
        broker.round()
        fail(broker, log, b"b")
        broker, log = started(broker.storage, 10)
        broker.append(log, b"c")
        ids = log_reader.ids_of(log, 1, 2)
        _, torn = started(broker.storage.power_cut(Random(seed).randrange), 20)
        assert torn.log_end_offset in (1, 2)
        end_offsets.add(torn.log_end_offset)
        if torn.log_end_offset == 2:
            assert log_reader.ids_of(torn, 1, 2) == ids, seed
    assert end_offsets == {1, 2}


@pytest.mark.parametrize("how", ["truncate", "a failed append"])
def test_the_note_on_a_disk_is_removed_before_a_file_is_cut(tmp_path, monkeypatch, how):
    storage = OsStorage(str(tmp_path))
    file = storage.open("0.log", create=True)
    file.append(b"ab")
    storage.note_until_cut(".uncut")
    assert has_note(tmp_path), "an append is no cut"
    if how == "truncate":
        file.truncate(1)
    else:
        monkeypatch.setattr("os.write", lambda fd, data: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(Exception, match="No space left"):
            file.append(b"c")
    assert not has_note(tmp_path)
    storage.note_until_cut(".uncut")
    assert has_note(tmp_path)


def has_note(directory):
    return (directory / ".uncut").exists()


def test_a_round_of_syncs_has_nothing_to_do_after_a_kill_of_an_idle_server():
    broker, log = started()
    broker.append(log)
    broker.round()
    second, _ = started(broker.storage, 10)
    second.manager.syncs.start_round()
    assert kinds(second.manager.take_syncs()) == []


@pytest.mark.parametrize("written, opens, syncs", [(0, 2, 0), (1, 4, 0)])
def test_a_start_after_a_kill_opens_few_files_of_a_partition_and_syncs_none(
    tmp_path, monkeypatch, written, opens, syncs
):
    """An idle partition's indexes are opened at their first use; the files of a written one are synced later."""
    broker, log = started(OsStorage(str(tmp_path)))
    broker.append(log)
    broker.round()
    for _ in range(written):
        broker.append(log, b"b")
    opened, synced, listed = [], [], []
    monkeypatch.setattr("os.open", noting(opened, os.open))
    monkeypatch.setattr("os.scandir", noting(listed, os.scandir))
    monkeypatch.setattr("broker.log.storage.os_storage._datasync", noting(synced, os.fdatasync))
    _, again = started(OsStorage(str(tmp_path)), 10)
    assert again.log_end_offset == 1 + written
    assert sum("flights-0" in str(path) for path in opened) <= opens
    assert (len(synced), len(listed)) == (syncs, 1)
    monkeypatch.undo()
    assert again.segments.active.log.is_dirty == bool(written), "so it is synced before it is closed"


def noting(done, real):
    """Return a function that notes its first argument."""

    def noted(path, *more, **named):
        done.append(path)
        return real(path, *more, **named)

    return noted


def test_an_index_that_another_program_has_cut_since_the_start_is_refused_by_name_when_it_is_opened(tmp_path):
    storage = OsStorage(str(tmp_path))
    (tmp_path / "0.index").write_bytes(b"12345678")
    file = storage.open("0.index", size=8)
    (tmp_path / "0.index").write_bytes(b"1234")
    with pytest.raises(StorageError, match="0.index: it has 4 bytes, 8 were written"):
        file.read(0, 8)
