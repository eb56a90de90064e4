"""The journal: a start appends its records, with their ids, if the segments lack them, wherever a crash cut either."""

import tracemalloc

import pytest

from broker.log import log_appender, log_reader
from broker.log.io_jobs import CutJournal, NotJournaled, SyncJournal, SyncLog
from broker.log.journal import FoundJournal
from broker.log.journal_format import (
    JOURNAL_HEADER_BYTES,
    ROUND_HEADER_BYTES,
    SUFFIX,
    VERSION,
    JournalUnreadable,
    header_of,
)
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.os_storage import OsStorage
from broker.log.validation.batch import validate
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.log.conftest import (
    BROKER,
    NOW,
    START_MS,
    append,
    append_batches,
    batch_of,
    new_worker,
    uuid_of,
)

DURABLE = TopicConfig(durable_acks=True)
JOURNAL = f"{1:020d}{SUFFIX}"


class Broker:
    """A log manager over two partitions of a durable topic; its disk does only the work that a test runs."""

    def __init__(self, storage=None, config=DURABLE, topic_id=1, partitions=2, later_ms=0, **settings):
        self.storage = storage or MemoryStorage()
        self.lines = []
        self.later_ms = later_ms
        self.manager = LogManager(self.storage, BrokerConfig(**settings), self.lines.append)
        self.manager.load_checkpoint()
        for partition in range(partitions):
            self.manager.open("flights", partition, config, uuid_of(topic_id))
        self.manager.opened()
        self.worker = new_worker(START_MS + later_ms)

    def log(self, partition=0):
        return self.manager.get("flights", partition)

    def append(self, *values, partition=0):
        """Append one batch and run the journal's round for it."""
        now = NOW._replace(wall_ms=START_MS + self.later_ms)
        done = append(self.log(partition), *values, worker=self.worker, now=now)
        self.manager.appended(self.log(partition))
        self.run(SyncJournal)
        return done

    def run(self, *kinds):
        """Run the syncs of these kinds; the other syncs never finish."""
        for sync in self.manager.take_syncs():
            if isinstance(sync, kinds):
                sync.run()
                self.manager.synced(sync)

    def all_done(self):
        while syncs := self.manager.take_syncs():
            for sync in syncs:
                sync.run()
                self.manager.synced(sync)

    def ids(self, partition=0):
        log = self.log(partition)
        return log_reader.ids_of(log, 0, log.log_end_offset)


def every_id(broker):
    return [id for first, length in broker.ids() for id in range(first, first + length)]


def journal_bytes(broker):
    return sum(len(content.data) for path, content in broker.storage.files.items() if path.endswith(SUFFIX))


def entries(storage, partition=0):
    """Return the batches of a partition in the journal."""
    return FoundJournal(storage).entries(uuid_of(1), partition)


def journal_end(storage, partition=0):
    """Return the position where the last record of a partition ends."""
    last = entries(storage, partition)[-1]
    return last.position + last.header.size


def copy_of(storage):
    """Return a copy of the files, as a crash left them."""
    other = MemoryStorage()
    other.directories = set(storage.directories)
    for path, content in storage.files.items():
        other.replace(path, bytes(content.data))
    return other


def put(storage, path, data):
    storage.replace(path, bytes(data))


@pytest.fixture
def crashed():
    """Return the storage of a broker that crashed with three batches in a journal, and their ids."""
    broker = Broker()
    for values in ((b"a",), (b"b", b"c"), (b"d" * 500,)):
        broker.append(*values)
    return broker.storage, broker.ids()


def test_ids_that_go_on_over_a_millisecond_are_the_same_in_the_log_and_in_the_journal():
    """With a single worker number, a batch of two milliseconds has two runs without a gap between them."""
    broker = Broker()
    broker.worker = IdWorker(Layout(58, 0, 0, 5), 0, start_ms=START_MS, limit_ms=START_MS + 1000)
    assert len(broker.append(*[b"a"] * 40).runs) == 2
    again = Broker(copy_of(broker.storage))
    assert (again.manager.offline, again.log().log_end_offset, again.ids()) == ({}, 40, broker.ids())


@pytest.mark.parametrize("suffix", [".log", ".idindex"])
def test_of_batches_that_were_written_together_those_that_a_log_lacks_are_restored_each_with_its_ids(suffix):
    """The batches are one record of the journal, and here a run of ids ends inside the second one."""
    broker = Broker()
    broker.worker = IdWorker(Layout(58, 0, 0, 5), 0, start_ms=START_MS, limit_ms=START_MS + 1000)
    append_batches(broker.log(), [b"a"] * 20, [b"b"] * 20, [b"c"] * 20, worker=broker.worker)
    broker.manager.appended(broker.log())
    broker.run(SyncJournal)
    path, log = f"flights-0/{0:020d}{suffix}", f"flights-0/{0:020d}.log"
    whole = bytes(broker.storage.files[path].data)
    for size in range(len(whole) + 1):
        shortened = copy_of(broker.storage)
        put(shortened, path, whole[:size])
        again = Broker(shortened)
        assert (again.manager.offline, every_id(again)) == ({}, every_id(broker)), f"cut at byte {size}"
        assert shortened.files[log].data == broker.storage.files[log].data
    assert [len(entry.runs) for entry in entries(broker.storage)] == [1, 2, 1]


@pytest.mark.parametrize("suffix", [".log", ".idindex"])
def test_a_segment_cut_at_any_byte_is_made_whole_with_the_same_ids(crashed, suffix):
    """Recovery uses the segments first, then the journal, and stamps nothing again."""
    storage, ids = crashed
    path = f"flights-0/{0:020d}{suffix}"
    whole = bytes(storage.files[path].data)
    for size in range(len(whole)):
        shortened = copy_of(storage)
        put(shortened, path, whole[:size])
        again = Broker(shortened)
        assert again.manager.offline == {}
        assert (again.log().log_end_offset, again.ids()) == (4, ids), f"cut at byte {size}"


def test_a_batchs_memory_may_be_written_over_before_its_round_is_on_the_disk():
    """The memory of a large frame is used again for the next frame."""
    broker = Broker()
    batch = memoryview(batch_of(b"a" * 5000))
    log = broker.log()
    log_appender.append(log, batch, validate(batch, log.config, BROKER), broker.worker, NOW)
    written = bytes(batch)
    batch[:] = bytes(len(batch))
    broker.run(SyncJournal)
    assert [entry.batch() for entry in entries(broker.storage)] == [written]


def test_what_found_no_room_between_two_writes_of_a_round_is_not_counted_with_them():
    """The round has the first and the third batch; the second one is on the disk when its log is synced."""
    broker = Broker(journal_max_bytes=1 << 16)
    for size in (10, 70_000, 10):
        append(broker.log(), bytes(size), worker=broker.worker)
    syncs = broker.manager.take_syncs()
    assert sorted(type(sync).__name__ for sync in syncs) == ["SyncJournal", "SyncLog"]
    for sync in sorted(syncs, key=lambda sync: isinstance(sync, SyncLog)):
        sync.run()
        broker.manager.synced(sync)
        assert broker.log().durability.end_offset == (3 if isinstance(sync, SyncLog) else 0)


def test_a_journal_cut_at_any_byte_gives_the_records_before_it():
    broker = Broker()
    ends = [0]
    for values in ((b"a",), (b"b", b"c"), (b"d",)):
        broker.append(*values)
        ends.append(journal_end(broker.storage))
    whole = bytes(broker.storage.files[JOURNAL].data)
    for size in range(JOURNAL_HEADER_BYTES, ends[-1] + 2):
        shortened = copy_of(broker.storage)
        put(shortened, JOURNAL, whole[:size])
        for path in (f"flights-0/{0:020d}.log", f"flights-0/{0:020d}.idindex"):
            put(shortened, path, b"")
        records = sum(size >= end for end in ends[1:])
        assert Broker(shortened).log().log_end_offset == (0, 1, 3, 4)[records]


def test_a_journal_of_a_newer_version_refuses_the_start_by_name(crashed):
    """The remedy is in the message, and all files stay as they are."""
    storage, _ = crashed
    put(storage, JOURNAL, header_of(VERSION + 1) + bytes(storage.files[JOURNAL].data[JOURNAL_HEADER_BYTES:]))
    before = {path: bytes(content.data) for path, content in storage.files.items()}
    with pytest.raises(JournalUnreadable, match=f"^{JOURNAL} is a journal of version 3; .* stop it cleanly"):
        Broker(storage)
    assert {path: bytes(content.data) for path, content in storage.files.items()} == before


def test_a_flipped_bit_in_the_journals_header_refuses_the_start_by_name(crashed):
    storage, _ = crashed
    whole = storage.files[JOURNAL].data
    for position in range(JOURNAL_HEADER_BYTES):
        put(storage, JOURNAL, whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(JournalUnreadable, match=f"^{JOURNAL} begins with .* it should be 464c414b454a4e4c00000002"):
            Broker(storage)


@pytest.mark.parametrize("size", [0, 1, 8, JOURNAL_HEADER_BYTES - 1])
def test_a_journal_cut_inside_its_header_refuses_the_start(crashed, size):
    """No crash leaves such a file: the header is on the disk before the file has its name."""
    storage, _ = crashed
    put(storage, JOURNAL, storage.files[JOURNAL].data[:size])
    with pytest.raises(JournalUnreadable, match="no header of a journal.* move it to another directory"):
        Broker(storage)


@pytest.mark.parametrize("beginning", [bytes(4096), b"\x9a" * 100], ids=["zeros", "garbage"])
def test_a_journal_that_begins_with_other_bytes_refuses_the_start(crashed, beginning):
    storage, _ = crashed
    put(storage, JOURNAL, beginning + storage.files[JOURNAL].data[len(beginning) :])
    with pytest.raises(JournalUnreadable, match="no header of a journal"):
        Broker(storage)


def records_of(storage):
    """Return the bytes of the records of the journal, one for each round."""
    at = JOURNAL_HEADER_BYTES + ROUND_HEADER_BYTES
    data = bytes(storage.files[JOURNAL].data)
    records = []
    for entry in entries(storage):
        end = entry.position + entry.header.size
        records.append(data[at:end])
        at = end + ROUND_HEADER_BYTES
    return records


@pytest.mark.parametrize("header", [b"", header_of(1)], ids=["version 0", "version 1"])
@pytest.mark.parametrize("zeros", [0, 100])
def test_a_journal_without_headers_of_rounds_is_read(crashed, header, zeros):
    storage, ids = crashed
    put(storage, JOURNAL, header + b"".join(records_of(storage)) + bytes(zeros))
    for path in (f"flights-0/{0:020d}.log", f"flights-0/{0:020d}.idindex"):
        put(storage, path, b"")
    again = Broker(storage)
    assert (again.log().log_end_offset, again.ids(), again.manager.offline) == (4, ids, {})


def test_a_journal_file_that_cannot_be_made_leaves_its_round_to_a_sync_of_the_log():
    broker = Broker()
    broker.storage.failing_opens.add(JOURNAL)
    append(broker.log(), b"a", worker=broker.worker)
    broker.manager.appended(broker.log())
    (round,) = broker.manager.take_syncs()
    with pytest.raises(NotJournaled) as failed:
        round.run()
    broker.manager.sync_failed(round, failed.value)
    broker.all_done()
    assert broker.log().durability.end_offset == 1
    broker.append(b"b")
    assert (broker.log().durability.end_offset, broker.manager.offline) == (2, {})


def test_the_journal_is_gone_once_its_records_are_in_the_segments(crashed):
    storage, ids = crashed
    put(storage, f"flights-0/{0:020d}.log", b"")
    first = Broker(storage)
    assert first.lines == [
        "partition flights-0 recovered: ends at offset 4, 0 batches past the checkpoint, 3 from the journal; "
        f"cut 0 bytes, 60 bytes of ids and 0 segments (flights-0/{0:020d}.log ends at byte 0, its ids go on)"
    ]
    assert not storage.exists(JOURNAL)
    cut_storage = storage.power_cut(lambda n: 0)
    assert Broker(cut_storage).ids() == ids, "they were synced before it went"


def test_a_batch_other_than_the_journal_says_is_damage_by_name(crashed):
    """A record at an offset below the log's end must match the log."""
    storage, _ = crashed
    other = Broker(later_ms=60_000)
    for values in ((b"x",), (b"y", b"z"), (b"q" * 500,)):
        other.append(*values)
    for suffix in (".log", ".idindex"):
        put(storage, f"flights-0/{0:020d}{suffix}", other.storage.files[f"flights-0/{0:020d}{suffix}"].data)
    again = Broker(storage)
    assert list(again.manager.offline) == ["flights-0"] and JOURNAL in again.manager.offline["flights-0"]
    assert storage.exists(JOURNAL), "what it says is kept for whoever looks"


def test_records_of_a_topic_that_was_made_anew_under_the_name_are_not_its_own(crashed):
    storage, _ = crashed
    for name in ("flights-0", "flights-1"):
        storage.remove(name)
    again = Broker(storage, topic_id=2)
    assert again.log().log_end_offset == 0 and again.manager.offline == {}


def test_what_a_log_that_is_damaged_has_in_the_journal_is_kept(crashed):
    """The journal may be the only copy of the log's records."""
    storage, _ = crashed
    storage.failing_opens.add(f"flights-0/{0:020d}.log")
    again = Broker(storage)
    assert list(again.manager.offline) == ["flights-0"]
    again.manager.close()
    assert storage.exists(JOURNAL)


def test_of_a_kept_file_only_the_entries_of_the_logs_that_need_it_stay():
    """Entries past a gap were never answered. Their offsets are given again, and a later start would compare them."""
    broker = Broker()
    for partition in (0, 1, 0, 1):
        broker.append(b"a", partition=partition)
    storage = copy_of(broker.storage)
    found = FoundJournal(storage)
    of_the_kept_log = [(entry.runs, entry.batch()) for entry in found.entries(uuid_of(1), 1)]
    found.keep(uuid_of(1), 1)
    found.remove()
    again = FoundJournal(storage.power_cut(lambda n: 0))
    assert [(entry.runs, entry.batch()) for entry in again.entries(uuid_of(1), 1)] == of_the_kept_log != []
    assert not again.entries(uuid_of(1), 0)


def test_a_kept_file_stays_whole_on_a_full_disk():
    broker = Broker()
    for partition in (0, 1):
        broker.append(b"a", partition=partition)
    storage = copy_of(broker.storage)
    found = FoundJournal(storage)
    found.keep(uuid_of(1), 1)
    storage.free_bytes = 0
    found.remove()
    assert len(FoundJournal(storage).entries(uuid_of(1), 1)) == 1


def test_after_a_failed_sync_of_a_segment_the_next_start_has_its_records_from_the_journal():
    """The kernel may have dropped the bytes that it could not write, but every answered batch was journaled."""
    broker = Broker()
    broker.append(b"a")
    ids = broker.ids()
    path = f"flights-0/{0:020d}.log"
    broker.storage.failing_syncs.add(path)
    broker.manager.syncs.start_round()
    for sync in broker.manager.take_syncs():
        if isinstance(sync, SyncLog) and sync.log.partition == 0:
            with pytest.raises(Exception, match="Input/output"):
                sync.run()
            broker.manager.sync_failed(sync, OSError("Input/output error"))
    broker.manager.close()
    broker.storage.failing_syncs.clear()
    put(broker.storage, path, b"")
    assert Broker(broker.storage).ids() == ids


def test_a_round_that_follows_one_that_was_not_written_does_not_count_before_the_log_is_synced_up_to_it():
    """A start would restore nothing past a gap in the journal."""
    broker = Broker()
    append(broker.log(), b"a", worker=broker.worker)
    (sync,) = broker.manager.take_syncs()
    broker.storage.free_bytes = 0
    with pytest.raises(ApiError, match="No space"):
        append(broker.log(1), b"z", worker=broker.worker)
    with pytest.raises(Exception, match="No space") as caught:
        sync.run()
    broker.storage.free_bytes = None
    broker.manager.sync_failed(sync, caught.value)
    append(broker.log(), b"b", worker=broker.worker)
    syncs = broker.manager.take_syncs()
    for sync in syncs:
        if isinstance(sync, SyncJournal):
            sync.run()
            broker.manager.synced(sync)
    assert broker.log().durability.end_offset == 0
    for sync in (*syncs, *broker.manager.take_syncs()):
        if isinstance(sync, SyncLog):
            sync.run()
            broker.manager.synced(sync)
    assert broker.log().durability.end_offset == 2


def test_a_log_is_synced_by_itself_when_it_fills_a_quarter_of_the_journal():
    """Otherwise the journal is full before its files may be deleted, and each answer waits for a sync of its log."""
    broker = Broker(journal_max_bytes=1 << 18)
    for _ in range(6):
        broker.append(bytes(10_000))
    assert broker.manager.take_syncs() == []
    append(broker.log(), bytes(10_000), worker=broker.worker)
    broker.manager.appended(broker.log())
    assert sorted(type(sync).__name__ for sync in broker.manager.take_syncs()) == ["SyncJournal", "SyncLog"]


def test_the_journal_is_bounded_and_of_use_again_when_segments_are_synced():
    """The limit is flakelog.journal.max.bytes."""
    broker = Broker(journal_max_bytes=1 << 16)
    out = []
    for _ in range(20):
        append(broker.log(), bytes(10_000), worker=broker.worker)
        for sync in broker.manager.take_syncs():
            if isinstance(sync, SyncLog):
                out.append(sync)  # the segment's disk is slow
            else:
                sync.run()
                broker.manager.synced(sync)
    assert 40_000 < journal_bytes(broker) <= 1 << 16
    for sync in out:
        sync.run()
        broker.manager.synced(sync)
    broker.all_done()
    assert broker.log().durability.end_offset == 20
    remaining_bytes = journal_bytes(broker)
    assert remaining_bytes < 1 << 15, "what is in the file that is written to"
    broker.append(b"again")
    assert entries(broker.storage)[-1].header.base_offset == 20


def test_a_partition_that_was_synced_before_its_file_was_closed_does_not_keep_it():
    broker = Broker()
    broker.append(b"a", partition=1)
    broker.log(1).ask_sync(soon=True)
    broker.all_done()
    broker.append(b"a", partition=0)
    broker.manager.syncs.start_round()
    broker.all_done()
    assert journal_bytes(broker) == 0


def test_a_file_is_not_removed_while_its_round_is_written():
    """Threads run the jobs in any order: the round would make the file anew, and no process would remove it."""
    broker = Broker(partitions=1)
    append(broker.log(), b"a", worker=broker.worker)
    (journal_round,) = broker.manager.take_syncs()
    broker.log().ask_sync(soon=True)
    broker.run(SyncLog)
    broker.manager.syncs.start_round()
    broker.run(CutJournal)
    journal_round.run()
    broker.manager.synced(journal_round)
    broker.all_done()
    assert journal_bytes(broker) == 0


def test_a_topic_that_is_deleted_lets_its_journal_go():
    broker = Broker(partitions=1)
    broker.append(b"a")
    broker.manager.delete({"flights": [0]}).run()
    broker.manager.syncs.start_round()
    broker.all_done()
    assert journal_bytes(broker) == 0


def test_a_length_that_a_torn_write_left_takes_no_room(tmp_path):
    storage = OsStorage(str(tmp_path))
    storage.replace(JOURNAL, header_of(VERSION) + b"\xff" * 8)
    tracemalloc.start()
    try:
        assert FoundJournal(storage).next_number == 2
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_was_removed_does_not_come_back_after_a_power_cut():
    """The next process may number its files from 1 again, and the older file would be taken for the newer one."""
    storage, name = MemoryStorage(), f"{3:020d}{SUFFIX}"
    storage.replace(name, header_of(1))
    CutJournal(storage, (name,)).run()
    assert not storage.power_cut(lambda number: number - 1).exists(name)
