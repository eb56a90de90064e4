"""Transactions in one partition's log (KIP-98): last stable offset, markers, aborted transactions, and recovery."""

import struct

import pytest

from broker.log import log_appender, log_reader
from broker.log.index.txn_index import AbortedTransaction
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.record.batch import walk
from broker.record.control import Marker, decode_marker
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.conftest import BROKER, NOW, append, mend, new_worker, reopen

COMMIT, ABORT = Marker(True, 0), Marker(False, 0)


def send(log, producer, *values, sequence=0, epoch=0, worker):
    sent = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return append(log, *values, worker=worker, transactional=True, **sent).base_offset


def end(log, producer, marker, epoch=0, *, worker):
    return log_appender.append_marker(log, producer, epoch, marker, worker, NOW).base_offset


def committed(log, offset=0, max_bytes=1 << 20):
    """Read as a read_committed consumer; return (base offsets of the batches, aborted transactions)."""
    result = log_reader.read(log, offset, max_bytes, True, committed=True)
    region = result.records
    data = region.file.read(region.position, region.length) if result.records else b""
    return [header.base_offset for _, header in walk(data)], result.aborted


def test_the_last_stable_offset_is_where_the_first_open_transaction_begins(log, worker):
    append(log, b"before", worker=worker)
    send(log, 7, b"a", b"b", worker=worker)
    send(log, 8, b"c", worker=worker)
    assert log.last_stable_offset == 1
    end(log, 7, COMMIT, worker=worker)
    assert log.last_stable_offset == 3
    end(log, 8, ABORT, worker=worker)
    assert log.last_stable_offset == log.log_end_offset == 6


def test_committed_reads_end_before_what_is_open(log, worker):
    append(log, b"before", worker=worker)
    send(log, 7, b"a", worker=worker)
    append(log, b"after", worker=worker)
    assert committed(log) == ([0], ())
    assert committed(log, 1) == committed(log, 2) == ([], ())
    end(log, 7, COMMIT, worker=worker)
    assert committed(log) == ([0, 1, 2, 3], ())


def test_a_committed_read_names_the_aborted_transactions_in_it_and_no_others(log, worker):
    send(log, 7, b"a", worker=worker)
    end(log, 7, ABORT, worker=worker)
    send(log, 8, b"b", worker=worker)
    end(log, 8, COMMIT, worker=worker)
    send(log, 7, b"c", sequence=1, worker=worker)
    end(log, 7, ABORT, worker=worker)
    assert committed(log) == ([0, 1, 2, 3, 4, 5], ((7, 0), (7, 4)))
    assert committed(log, 2)[1] == ((7, 4),)
    assert committed(log, 0, max_bytes=1) == ([0], ((7, 0),))
    assert log_reader.read(log, 0, 1 << 20, True).aborted is None, "read_uncommitted is told of none"


def test_overlapping_aborts_are_found_by_each_part_of_them(log, worker):
    """An entry's last stable offset limits the look-up (Kafka's TransactionIndex)."""
    send(log, 1, b"a", worker=worker)
    send(log, 2, b"b", worker=worker)
    end(log, 2, ABORT, worker=worker)
    end(log, 1, ABORT, worker=worker)
    first, second = AbortedTransaction(1, 0, 3, 4), AbortedTransaction(2, 1, 2, 0)
    assert log_reader.aborted_transactions(log, 0, 1) == [first]
    assert log_reader.aborted_transactions(log, 1, 2) == [second, first]
    assert log_reader.aborted_transactions(log, 3, 4) == [first]
    assert log_reader.aborted_transactions(log, 4, 9) == []


def test_the_index_is_laid_out_as_kafkas(storage, log, worker):
    """Kafka's AbortedTxn has version, producer id, first, last and last stable offset. No abort means no file."""
    send(log, 7, b"a", worker=worker)
    end(log, 7, COMMIT, worker=worker)
    path = "flights-0/00000000000000000000.txnindex"
    assert not storage.exists(path)
    send(log, 7, b"a", sequence=1, worker=worker)
    end(log, 7, ABORT, worker=worker)
    assert storage.open(path).read(0, 99) == struct.pack(">hqqqq", 0, 7, 2, 3, 4)


def test_a_marker_is_a_record_of_its_producer_with_an_id(log, worker):
    """The formats are Kafka's ControlRecordType and EndTransactionMarker."""
    send(log, 7, b"a", epoch=3, worker=worker)
    done = log_appender.append_marker(log, 7, 3, Marker(False, 5), worker, NOW)
    region = log_reader.read(log, 1, 1000, True).records
    batch = region.file.read(region.position, region.length)
    ((_, header),) = walk(batch)
    assert header.is_control and header.is_transactional and header.record_count == 1
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    assert decode_marker(batch) == Marker(False, 5)
    assert log_reader.ids_of(log, 1, 2) == tuple(map(tuple, done.runs))


def test_a_later_epoch_fences_a_marker_and_what_the_old_one_sends(log, worker):
    send(log, 7, b"a", epoch=3, worker=worker)
    with pytest.raises(ApiError) as caught:
        end(log, 7, ABORT, epoch=2, worker=worker)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 7, Marker(False, 4), epoch=4, worker=worker)
    with pytest.raises(ApiError) as caught:
        send(log, 7, b"b", epoch=3, sequence=1, worker=worker)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(ApiError) as caught:
        end(log, 7, Marker(False, 3), epoch=4, worker=worker)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert send(log, 7, b"b", epoch=4, worker=worker) == 2, "the new epoch begins at sequence 0"


def test_within_a_transaction_nothing_is_sent_outside_it(log, worker):
    send(log, 7, b"a", worker=worker)
    with pytest.raises(ApiError) as caught:
        append(log, b"b", worker=worker, producer_id=7, producer_epoch=0, base_sequence=1)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


def test_a_marker_for_no_transaction_changes_nothing_but_the_epoch(log, worker):
    end(log, 7, ABORT, worker=worker)
    assert log.last_stable_offset == 1 and committed(log) == ([0], ())


def test_an_abort_that_could_not_be_written_is_not_in_the_index(storage, log, worker):
    send(log, 7, b"a", worker=worker)
    storage.free_bytes = 40  # enough for the entry of the index, not for the marker
    with pytest.raises(ApiError):
        end(log, 7, ABORT, worker=worker)
    storage.free_bytes = None
    mend(log)
    assert log.last_stable_offset == 0 and log_reader.aborted_transactions(log, 0, 9) == []
    end(log, 7, COMMIT, worker=worker)
    assert committed(log) == ([0, 1], ())


def test_half_an_entry_of_the_index_that_cannot_be_cut_takes_the_partition_offline(log, storage, worker):
    """A reader would find nonsense there, and the next entry would be in the wrong place."""
    send(log, 7, b"a", worker=worker)
    end(log, 7, ABORT, worker=worker)
    send(log, 7, b"b", sequence=1, worker=worker)
    storage.free_bytes = 10
    storage.failing_cuts.add(log.segments.all[0].aborted.files[0].path)
    with pytest.raises(ApiError):
        end(log, 7, ABORT, worker=worker)
    assert log.offline is not None and ".txnindex" in log.offline


def test_a_disk_too_full_for_an_entry_of_the_index_leaves_it_as_it_was(log, storage, worker):
    send(log, 7, b"a", worker=worker)
    storage.free_bytes = 10
    with pytest.raises(ApiError):
        end(log, 7, ABORT, worker=worker)
    storage.free_bytes = None
    assert log.offline is None and log_reader.aborted_transactions(log, 0, 9) == []
    end(log, 7, ABORT, worker=worker)
    assert [aborted.first_offset for aborted in log_reader.aborted_transactions(log, 0, 9)] == [0]


class _LooksInto(MemoryStorage):
    """Storage that counts the files that are opened."""

    opened = 0

    def open(self, path, create=False, ahead_bytes=0, size=None):
        self.opened += 1
        return super().open(path, create)


def test_a_committed_read_looks_into_the_segments_where_something_was_aborted_only(worker):
    """This holds for any number of later segments. A read names no aborted transactions past its own records."""
    storage = _LooksInto()
    manager = LogManager(storage, BROKER, pytest.fail)
    manager.open("flights", 0, TopicConfig(**SMALL))
    log = manager.get("flights", 0)
    for number in range(30):
        append(log, b"x" * 900, worker=worker)
        if number in (10, 20):
            send(log, 7, b"a", worker=worker, sequence=number // 20)
            end(log, 7, ABORT, worker=worker)
    manager.syncs.start_round()
    for sync in manager.take_syncs():
        sync.run()
        manager.synced(sync)
    for offset in (0, 10):
        committed(log, offset)
    storage.opened = 0
    assert committed(log, 0) == ([0], ()) and storage.opened <= 1
    assert committed(log, 11)[1] == ((7, 11),)
    assert len(log_reader.aborted_transactions(log, 0, log.log_end_offset)) == 2


def life(log, worker):
    """Append aborted, committed and open transactions across several segments."""
    send(log, 1, b"a" * 600, worker=worker)
    send(log, 2, b"b" * 600, worker=worker)
    end(log, 1, ABORT, worker=worker)
    append(log, b"c" * 900, worker=worker)
    end(log, 2, COMMIT, worker=worker)
    send(log, 3, b"d" * 600, worker=worker)
    send(log, 1, b"e", sequence=1, worker=worker)
    end(log, 1, ABORT, worker=worker)


def state(log):
    return (
        log.last_stable_offset,
        log_reader.aborted_transactions(log, 0, log.log_end_offset),
        log.producers.open_transactions(),
        sorted(producer[:2] + producer[4:] for producer in log.producers.active()),
    )


SMALL = {"segment_bytes": 1024}


@pytest.mark.parametrize("checkpoint_after", [None, "in between", "all"])
@pytest.mark.parametrize("lost", ["nothing", "snapshot", "index"])
def test_a_restart_finds_open_and_aborted_transactions_again(storage, checkpoint_after, lost):
    config, worker = TopicConfig(**SMALL), new_worker()
    manager = LogManager(storage, BROKER, lambda line: None)
    manager.open("flights", 0, config)
    log = manager.get("flights", 0)
    checkpointed = None
    life(log, worker)
    if checkpoint_after == "all":
        manager.close()
        checkpointed = log.position()
    send(log, 4, b"late", worker=worker)
    if checkpoint_after == "in between":
        manager.close()
        checkpointed = log.position()
    end(log, 3, ABORT, worker=worker)
    before = state(log)
    for name in storage.list("flights-0"):
        if name.endswith(".snapshot") and lost == "snapshot" or name.endswith(".txnindex") and lost == "index":
            file = storage.open(f"flights-0/{name}")
            file.truncate(max(file.size - 5, 0))
    again, _ = reopen(storage, checkpointed, config)
    assert state(again) == before
    assert again.last_stable_offset == 8 and len(before[1]) == 3
    with pytest.raises(ApiError):
        append(again, b"x", worker=new_worker(number=2), producer_id=4, producer_epoch=0, base_sequence=1)


def test_producers_with_an_open_transaction_are_neither_expired_nor_pushed_out(log, worker):
    send(log, 7, b"a", worker=worker)
    log.producers._producers_max = 1
    append(log, b"b", worker=worker, producer_id=8, producer_epoch=0, base_sequence=0)
    log.producers.expire(now_ms=NOW.wall_ms + 10**9, silence_ms=1)
    assert log.producers.open_transactions() == {7: 0} and log.last_stable_offset == 0
    end(log, 7, COMMIT, worker=worker)
    log.producers.expire(now_ms=NOW.wall_ms + 10**9, silence_ms=1)
    assert len(log.producers) == 0
