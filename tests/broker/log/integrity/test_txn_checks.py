"""The checksums of aborted transactions: a damaged index is rebuilt from the log, and never read."""

import pytest

from broker.log import log_reader
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError
from tests.broker.log.conftest import BROKER, new_worker
from tests.broker.log.recovery.test_recovery import copy_of, data_of, put
from tests.broker.log.test_transactions import ABORT, end, life, send, state

CONFIG = TopicConfig(segment_bytes=1024)
SUFFIXES = ".txnindex", ".txncheck"


def opened(storage, report=pytest.fail):
    manager = LogManager(storage, BROKER, report)
    manager.load_checkpoint()
    manager.open("flights", 0, CONFIG)
    manager.opened()
    return manager


@pytest.fixture(scope="module")
def whole():
    """A storage after a clean stop, with aborted transactions in closed segments and in the active one."""
    storage, worker = MemoryStorage(), new_worker()
    manager = opened(storage)
    log = manager.get("flights", 0)
    life(log, worker)
    end(log, 3, ABORT, worker=worker)
    manager.close()
    paths = [path for path in storage.files if path.endswith(SUFFIXES)]
    assert len(paths) >= 4 and len(log.segments.all) > 2
    return storage, state(log), paths


def restarted(storage, clean):
    if not clean:
        storage.remove(".stopped-cleanly")
    return opened(storage).get("flights", 0)


@pytest.mark.parametrize("clean", [True, False])
def test_any_flipped_bit_of_an_index_or_of_its_checksums_is_found_and_both_are_rebuilt(whole, clean):
    storage, before, paths = whole
    for path in paths:
        for at in range(len(data_of(storage, path))):
            damaged = copy_of(storage)
            data = bytearray(data_of(storage, path))
            data[at] ^= 1 << at % 8
            put(damaged, path, data)
            log = restarted(damaged, clean)
            assert state(log) == before, (path, at)
            assert data_of(damaged, path) == data_of(storage, path)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["missing", "empty", "short", "doubled"])
def test_an_index_or_checksums_of_another_length_are_rebuilt(whole, clean, how):
    storage, before, paths = whole
    for path in paths:
        damaged, data = copy_of(storage), data_of(storage, path)
        if how == "missing":
            damaged.remove(path)
        else:
            put(damaged, path, {"empty": b"", "short": data[:-3], "doubled": data * 2}[how])
        assert state(restarted(damaged, clean)) == before, path
        assert data_of(damaged, path) == data


def test_a_log_of_an_older_version_gets_its_checksums_at_the_first_start(whole):
    storage, before, paths = whole
    old = copy_of(storage)
    for path in paths:
        if path.endswith(".txncheck"):
            old.remove(path)
    assert state(restarted(old, clean=True)) == before
    assert all(data_of(old, path) == data_of(storage, path) for path in paths)


def test_a_rebuild_that_a_crash_interrupts_is_done_again(whole):
    """The checksums are written last, so a partial index never counts as whole."""
    storage, before, paths = whole
    index, checks = (next(path for path in paths if path.endswith(suffix)) for suffix in SUFFIXES)
    for size in range(0, len(data_of(storage, index)) + 1, 34):
        damaged = copy_of(storage)
        put(damaged, index, data_of(storage, index)[:size])
        put(damaged, checks, b"\0")
        assert state(restarted(damaged, clean=False)) == before


def test_damage_after_the_start_takes_the_partition_offline_by_name_until_a_start_rebuilds_the_index():
    storage, worker, lines = MemoryStorage(), new_worker(), []
    log = opened(storage, lines.append).get("flights", 0)
    send(log, 7, b"a", worker=worker)
    end(log, 7, ABORT, worker=worker)
    path = f"flights-0/{0:020d}.txnindex"
    before = state(restarted(copy_of(storage), clean=False))
    storage.files[path].data[9] ^= 1
    with pytest.raises(ApiError, match="checksum does not hold"):
        log_reader.read(log, 0, 1 << 20, True, committed=True)
    assert lines == [f"partition flights-0 is offline: {path}: an entry is damaged: its checksum does not hold"]
    assert state(restarted(storage, clean=False)) == before
