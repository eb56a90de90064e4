"""The names of a new log's files are synced with its first records, or before it gets a second segment."""

import os
from random import Random
from uuid import UUID

import pytest

from broker.log import log_reader
from broker.log.closed_segment import OpenSegments
from broker.log.log_manager import LogManager
from broker.log.new_logs import NewLog, create
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.os_storage import OsStorage
from broker.log.storage.port import StorageError
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError
from tests.broker.log.conftest import BROKER, append, new_worker, reopen

SMALL = TopicConfig(segment_bytes=1024)


def test_new_logs_wait_for_the_disk_once_together(tmp_path, monkeypatch):
    synced = synced_names(monkeypatch)
    logs = {("flights", partition): NewLog(TopicConfig(), UUID(int=4)) for partition in range(10)}
    assert len(create(OsStorage(str(tmp_path)), BROKER, OpenSegments(10), logs)) == 10
    assert synced == [str(tmp_path)]


def test_logs_that_are_made_because_a_client_uses_them_share_the_wait_for_their_directories(tmp_path, monkeypatch):
    manager = LogManager(OsStorage(str(tmp_path)), BROKER, pytest.fail)
    logs = {("flights", partition): NewLog(TopicConfig(), UUID(int=4)) for partition in range(40)}
    manager.add_new((), logs)
    synced = synced_names(monkeypatch)
    for key in logs:
        assert manager.get(*key).log_end_offset == 0
    assert len(synced) == -(-40 // BROKER.max_new_logs_at_once)


def synced_names(monkeypatch):
    """Return a list that gets the path of each file and directory that is synced."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
    return synced


def test_a_log_that_was_never_synced_never_begins_in_the_middle():
    """A power cut may keep the names of a later segment only if those of the first one are on the disk."""
    ends = set()
    for seed in range(200):
        storage, worker = MemoryStorage(), new_worker()
        log, _ = reopen(storage, config=SMALL)
        for _ in range(4):
            append(log, b"x" * 900, worker=worker)
        assert len(log.segments.all) == 4
        restarted, _ = reopen(storage.power_cut(Random(seed).randrange), config=SMALL)
        assert (restarted.log_start_offset, restarted.segments.bases[0]) == (0, 0), seed
        ends.add(restarted.log_end_offset)
    assert len(ends) > 1


def test_only_the_first_roll_of_a_log_that_was_never_synced_waits_for_its_names():
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage, config=SMALL)
    for syncs in (0, 1, 1, 1):
        append(log, b"x" * 900, worker=worker)
        assert storage.directory_syncs == syncs
    checkpointed, synced = log.position(), storage.directory_syncs
    again, _ = reopen(storage, checkpointed, config=SMALL, is_uncut=True)
    append(again, b"x" * 900, worker=worker)
    assert storage.directory_syncs == synced, "the checkpoint has it, so its names are on the disk"


def test_a_log_whose_names_cannot_be_synced_goes_offline():
    class NoNames(MemoryStorage):
        def sync_directory(self, path):
            raise StorageError(path, "Input/output error")

    worker = new_worker()
    log, _ = reopen(NoNames(), config=SMALL)
    append(log, b"x" * 900, worker=worker)
    with pytest.raises(ApiError, match="Input/output error"):
        append(log, b"x" * 900, worker=worker)
    assert log.offline == "a sync failed: flights-0: Input/output error"
    assert log_reader.ids_of(log, 0, 1)
