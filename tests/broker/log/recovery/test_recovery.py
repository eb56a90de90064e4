"""Recovery of a log: past the checkpoint it ends before the first bad batch or id; below, it must be whole."""

from dataclasses import replace
from uuid import UUID

import pytest

from broker.log import leader_epochs, log_reader
from broker.log.log_manager import LogManager
from broker.log.recovery.recovery import LogDamaged
from broker.log.segment import CLEANED
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.record.batch import walk
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError
from broker.wire.id_entries import ENTRY_BYTES
from tests.broker.log.conftest import BROKER, NOW, START_MS, append, append_batches, new_worker, reopen

LOG, IDS, INDEX, TIMES = (f"flights-0/{0:020d}{s}" for s in (".log", ".idindex", ".index", ".timeindex"))
SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=0)


def later(ms):
    return {"worker": new_worker(START_MS + ms), "now": NOW._replace(wall_ms=START_MS + ms)}


def copy_of(storage):
    """Return a copy of the storage with the same files."""
    other = MemoryStorage()
    other.directories = set(storage.directories)
    for path, content in storage.files.items():
        other.replace(path, bytes(content.data))
    return other


def put(storage, path, data):
    storage.replace(path, bytes(data))


def data_of(storage, path):
    return bytes(storage.files[path].data)


def everything(storage):
    return {path: bytes(content.data) for path, content in storage.files.items()}


def filled(config=TopicConfig(), batches=3, **fields):
    """Return a storage, its log, and the log's position for the checkpoint."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage, config=config)
    for n in range(batches):
        append(log, b"a%d" % n, b"b%d" % n, worker=worker, timestamp_ms=START_MS + n, **fields)
    return storage, log, log.position()


def closed(config=TopicConfig(), batches=3, producers=()):
    """Return a storage whose log was closed cleanly by its manager, and the manager's position of that log.

    `producers` are the ids of the producers of further batches. The sequences of a producer follow each other.
    """
    storage, worker = MemoryStorage(), new_worker()
    manager = LogManager(storage, BROKER, pytest.fail)
    manager.load_checkpoint()
    manager.open("flights", 0, config)
    log = manager.get("flights", 0)
    for n in range(batches):
        append(log, b"x" * 300, worker=worker, timestamp_ms=START_MS + n)
    for number, producer in enumerate(producers):
        sequence = producers[:number].count(producer)
        append(log, b"p", worker=worker, producer_id=producer, producer_epoch=0, base_sequence=sequence)
    manager.close()
    return storage, manager.syncs.positions["flights-0"]


# --- past the checkpoint -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [LOG, IDS])
def test_a_log_cut_at_any_byte_ends_at_the_last_whole_batch_with_its_ids(path):
    """Recovery ends the log where either file ends."""
    whole, log, _ = filled()
    data = data_of(whole, path)
    batches = [position + h.size for position, h in walk(data_of(whole, LOG))]
    ends = batches if path == LOG else [ENTRY_BYTES * n for n in (1, 2, 3)]
    ids = log_reader.ids_of(log, 0, 6)
    for size in range(len(data)):
        storage = copy_of(whole)
        put(storage, path, data[:size])
        opened, report = reopen(storage)
        kept_batches = sum(end <= size for end in ends)
        assert opened.log_end_offset == 2 * kept_batches, size
        assert log_reader.ids_of(opened, 0, 6) == ids[:kept_batches]
        assert opened.last_id == (sum(ids[kept_batches - 1]) - 1 if kept_batches else -1)
        assert data_of(storage, LOG) == data_of(whole, LOG)[: ([0] + batches)[kept_batches]]
        assert data_of(storage, IDS) == data_of(whole, IDS)[: ENTRY_BYTES * kept_batches]
        assert report.cut and LOG in report.reason, size


@pytest.mark.parametrize("path", [LOG, IDS])
def test_batches_that_were_written_together_and_cut_at_any_byte_keep_their_ids_up_to_the_last_whole_one(path):
    """The batches share entries of the id index: each run of ids has one, and here a millisecond ends a run."""
    whole, worker = MemoryStorage(), new_worker()
    log, _ = reopen(whole)
    worker.next_ids(4096 - 5, START_MS)
    append_batches(log, *[[b"a%d" % n, b"b%d" % n] for n in range(4)], worker=worker)
    data, sizes = data_of(whole, path), [position + h.size for position, h in walk(data_of(whole, LOG))]
    ids = log_reader.ids_of(log, 0, 8)
    each_id = [first + n for first, length in ids for n in range(length)]
    assert [length for _, length in ids] == [5, 3] and len(data_of(whole, IDS)) == 2 * ENTRY_BYTES
    for size in range(len(data)):
        storage = copy_of(whole)
        put(storage, path, data[:size])
        opened, _ = reopen(storage)
        whole_batches = sizes if path == LOG else [ENTRY_BYTES] * 2  # the first has the ids of two and a half batches
        kept_batches = sum(end <= size for end in whole_batches)
        kept_records = 2 * kept_batches
        assert opened.log_end_offset == kept_records, size
        assert data_of(storage, LOG) == data_of(whole, LOG)[: ([0] + sizes)[kept_batches]]
        kept_ids = [first + n for first, length in log_reader.ids_of(opened, 0, 8) for n in range(length)]
        assert kept_ids == each_id[:kept_records]
        assert opened.last_id == (each_id[kept_records - 1] if kept_batches else -1)
        append(opened, b"c", **later(10))
        again, report = reopen(storage)
        assert (again.log_end_offset, report.cut) == (kept_records + 1, False), "what was begun of an entry is whole"
        assert log_reader.ids_of(again, 0, 8)[:-1] == log_reader.ids_of(opened, 0, kept_records)


@pytest.mark.parametrize("path", [LOG, IDS])
def test_a_flipped_byte_anywhere_cuts_the_log_before_its_batch(path):
    """Every stored byte is under a check. Only the last byte of the last leader epoch may be that of a later leader."""
    whole, _, _ = filled()
    data = data_of(whole, path)
    starts = [position for position, _ in walk(data_of(whole, LOG))] if path == LOG else [0, 20, 40]
    for at in range(len(data)):
        first = max(start for start in starts if start <= at)
        if path == LOG and at - first == 15 and first == starts[-1]:
            continue
        storage = copy_of(whole)
        put(storage, path, data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        opened, report = reopen(storage)
        assert opened.log_end_offset == 2 * starts.index(first), at
        assert LOG in report.reason


@pytest.mark.parametrize("nonsense", [bytes(500), b"\xff" * 500, bytes(range(256)) * 2])
def test_nonsense_after_the_end_is_cut_off(nonsense):
    """File systems show zeros if the file's size reached the disk and its data did not."""
    storage, _, _ = filled()
    before = everything(storage)
    put(storage, LOG, before[LOG] + nonsense)
    put(storage, IDS, before[IDS] + nonsense)
    opened, report = reopen(storage)
    assert (opened.log_end_offset, report.bytes_cut, report.batches_read) == (6, len(nonsense), 3)
    assert everything(storage)[LOG] == before[LOG] and everything(storage)[IDS] == before[IDS]


def test_what_recovery_cut_off_is_gone_from_the_disk_before_anything_is_written_in_its_place():
    storage, _, _ = filled()
    put(storage, IDS, data_of(storage, IDS)[:ENTRY_BYTES])
    log, _ = reopen(storage)
    assert storage.files[LOG].synced == data_of(storage, LOG), "the cut is synced"
    append(log, b"c", b"d", **later(10))
    for seed in range(200):
        content = storage.files[LOG].after_power_cut(lambda n: seed * 31 % n)  # noqa: B023
        assert b"a1" not in content, "a batch that was cut off does not come back"


def test_a_log_whose_id_index_is_missing_loses_what_was_not_synced():
    storage, _, _ = filled()
    storage.remove(IDS)
    opened, report = reopen(storage)
    assert (opened.log_end_offset, report.reason) == (0, f"{LOG} at byte 0: its ids are not in the id index")


def test_a_batch_whose_offset_does_not_follow_ends_the_log():
    storage, _, _ = filled()
    data = data_of(storage, LOG)
    (_, _), (second, _), (third, _) = walk(data)
    put(storage, LOG, data[:second] + data[third:])
    opened, report = reopen(storage)
    assert opened.log_end_offset == 2 and "its ids are not in the id index" in report.reason


def test_ids_that_do_not_rise_end_the_log():
    """The entries are from an earlier log with the same offsets: their checks hold, but the ids do not rise."""
    old, _, _ = filled()
    storage = MemoryStorage()
    log, _ = reopen(storage)
    append(log, b"a0", b"b0", **later(1000))
    put(storage, LOG, data_of(storage, LOG) + data_of(old, LOG)[len(data_of(storage, LOG)) :])
    put(storage, IDS, data_of(storage, IDS) + data_of(old, IDS)[ENTRY_BYTES:])
    opened, _ = reopen(storage)
    assert opened.log_end_offset == 2


def test_segments_after_a_cut_are_removed_and_appends_go_on_there():
    storage, log, _ = filled(SMALL, batches=50)
    assert len(log.segments.all) > 3
    second = log.segments.all[1]
    put(storage, second.log.path, data_of(storage, second.log.path)[:-1])
    opened, report = reopen(storage, config=SMALL)
    assert report.segments_removed == len(log.segments.all) - 2
    end = opened.log_end_offset
    assert end == log.segments.all[2].base_offset - 2
    assert append(opened, b"again", **later(100)).base_offset == end
    assert reopen(storage, config=SMALL)[0].log_end_offset == end + 1


def test_a_file_without_its_segment_is_removed():
    """Names reach the disk one by one, so a leftover time index must not meet a later segment of its name."""
    storage, _, _ = filled()
    for suffix in ("idindex", "timeindex", "index"):
        put(storage, f"flights-0/{6:020d}.{suffix}", b"left over")
    log, report = reopen(storage)
    assert not [path for path in storage.files if f"{6:020d}" in path]
    assert not report.cut, "nothing of the log was lost"


@pytest.mark.parametrize("content", [b"", b"\0" * 24, b"\xff" * 25, None])
def test_offset_and_time_index_are_rebuilt_past_the_checkpoint(content):
    config = TopicConfig(index_interval_bytes=0)
    storage, log, _ = filled(config, batches=20)
    right = data_of(storage, INDEX), data_of(storage, TIMES)
    for path in (INDEX, TIMES):
        storage.remove(path) if content is None else put(storage, path, content)
    opened, _ = reopen(storage, config=config)
    assert (data_of(storage, INDEX), data_of(storage, TIMES)) == right
    assert log_reader.offset_of_time(opened, START_MS + 7) == (14, START_MS + 7)


# --- below the checkpoint ----------------------------------------------------------------------------------------


def test_after_a_clean_close_no_batch_is_read():
    """After a clean stop by SIGTERM the next start needs no recovery."""
    for config in (TopicConfig(), SMALL):
        storage, checkpointed = closed(config, batches=20)
        before = everything(storage)
        log, report = reopen(storage, checkpointed, config)
        assert (report.batches_read, report.cut, log.log_end_offset) == (0, False, 20)
        assert everything(storage) == before
        assert log_reader.offset_of_time(log, START_MS + 13) == (13, START_MS + 13)


def test_only_what_lies_past_the_checkpoint_is_read():
    storage, checkpointed = closed(batches=5)
    log, _ = reopen(storage, checkpointed)
    append(log, b"new", **later(100))
    again, report = reopen(storage, checkpointed)
    assert (report.batches_read, again.log_end_offset) == (1, 6)


def damaged(storage, checkpointed, config, named):
    before = everything(storage)
    with pytest.raises(LogDamaged) as caught:
        reopen(storage, checkpointed, config)
    assert named in str(caught.value)
    after = everything(storage)
    assert {p: d for p, d in after.items() if p in before} == before, "nothing was changed"


@pytest.mark.parametrize("suffix", [".log", ".idindex"])
def test_a_file_shorter_than_was_synced_is_damage_by_name(suffix):
    """Damage below the checkpoint takes the partition offline by name."""
    storage, checkpointed = closed()
    path = f"flights-0/{0:020d}{suffix}"
    whole = data_of(storage, path)
    for size in range(len(whole)):
        shortened = copy_of(storage)
        put(shortened, path, whole[:size])
        damaged(shortened, checkpointed, TopicConfig(), path)


@pytest.mark.parametrize("suffix", [".log", ".idindex"])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_synced_segment_that_is_damaged_is_named_wherever_it_stands(suffix, number, how):
    storage, checkpointed = closed(SMALL, batches=20)
    bases = sorted(int(p[10:30]) for p in storage.files if p.endswith(".log"))
    path = f"flights-0/{bases[number]:020d}{suffix}"
    if how == "gone":
        storage.remove(path)
    else:
        put(storage, path, data_of(storage, path)[:-1] if how == "cut" else b"")
    named = path if not (how == "gone" and suffix == ".log" and number >= 0) else f"offsets {bases[number]} to"
    damaged(storage, checkpointed, SMALL, named)


def test_a_last_id_other_than_the_one_synced_is_damage():
    storage, checkpointed = closed()
    ids = bytearray(data_of(storage, IDS))
    ids[-1] ^= 1
    put(storage, IDS, ids)
    damaged(storage, checkpointed, TopicConfig(), IDS)


@pytest.mark.parametrize("content, number", [(b"", 0), (b"\0" * 24, 0), (None, 0), (b"", -1), (None, -1)])
def test_damaged_indexes_of_synced_segments_are_written_again(content, number):
    """Indexes are redundant: lookups are right with them and after their loss."""
    storage, checkpointed = closed(SMALL, batches=20)
    bases = sorted(int(p[10:30]) for p in storage.files if p.endswith(".log"))
    for suffix in (".index", ".timeindex"):
        path = f"flights-0/{bases[number]:020d}{suffix}"
        storage.remove(path) if content is None else put(storage, path, content)
    log, report = reopen(storage, checkpointed, SMALL)
    assert (report.batches_read, report.cut) == (0, False)
    assert [log_reader.offset_of_time(log, START_MS + n) for n in range(20)] == [(n, START_MS + n) for n in range(20)]


@pytest.mark.parametrize("number", [0, -1])
def test_an_index_that_is_written_again_takes_its_name_when_all_of_it_is_on_the_disk(number):
    """Entries have no check, so the next start would trust the part of the index that a power cut left."""
    storage, checkpointed = closed(SMALL, batches=20)
    bases = sorted(int(p[10:30]) for p in storage.files if p.endswith(".log"))
    path = f"flights-0/{bases[number]:020d}.index"
    whole = data_of(storage, path)
    put(storage, path, b"")
    storage.failing_syncs = {path, path + CLEANED}
    with pytest.raises(StorageError):
        reopen(storage, checkpointed, SMALL)
    assert data_of(storage, path) == b""
    storage.failing_syncs = set()
    reopen(storage, checkpointed, SMALL)
    assert data_of(storage, path) == storage.files[path].synced == whole
    assert not [path for path in storage.files if path.endswith(CLEANED)]


def test_nonsense_in_an_index_past_what_was_synced_is_never_looked_at():
    """Entries have no check: one with a position inside the log would send a reader into the middle of a batch."""
    config = TopicConfig(index_interval_bytes=0)
    storage, checkpointed = closed(config, batches=10)
    put(storage, INDEX, data_of(storage, INDEX) + (9).to_bytes(4, "big") + (5).to_bytes(4, "big"))
    log, _ = reopen(storage, checkpointed, config)
    positions = dict((h.base_offset, p) for p, h in walk(data_of(storage, LOG)))
    assert log_reader.read(log, 9, 1, True).records.position == positions[9]


def test_without_a_checkpoint_the_whole_log_is_read_and_nothing_is_lost():
    storage, checkpointed = closed(SMALL, batches=20)
    log, report = reopen(storage, None, SMALL)
    assert (log.log_end_offset, report.batches_read, report.cut) == (20, 20, False)
    assert log.last_id == checkpointed.last_id


def test_an_emptied_log_remembers_its_last_id():
    """The checkpoint also keeps the last id."""
    storage, checkpointed = closed()
    empty = checkpointed.__class__(3, 3, checkpointed.last_id, 3, 0, 0, -1, 3, 0)
    log, _ = reopen(MemoryStorage(), empty)
    assert (log.log_start_offset, log.log_end_offset, log.last_id) == (3, 3, checkpointed.last_id)
    assert append(log, b"a", worker=new_worker(START_MS - 100)).runs[0].first > checkpointed.last_id


def test_a_checkpoint_of_a_deleted_log_is_not_held_against_a_new_one_of_its_name():
    """The topic was deleted and created again before a crash, so the checkpoint still describes the old log."""
    storage, checkpointed = closed()
    checkpointed = replace(checkpointed, topic_id=UUID(int=1).hex)
    storage.remove("flights-0")
    log, _ = reopen(storage, checkpointed, topic_id=UUID(int=2))
    assert (log.log_end_offset, log.last_id) == (0, -1), "also where nothing was written to it yet"
    append(log, b"new", **later(5000))
    opened, report = reopen(storage, checkpointed, topic_id=UUID(int=2))
    assert (opened.log_end_offset, report.batches_read) == (1, 1)
    assert opened.position().topic_id == UUID(int=2).hex


def test_an_empty_segment_left_by_a_roll_that_failed_is_no_damage():
    storage, worker = MemoryStorage(), new_worker()
    manager = LogManager(storage, BROKER, pytest.fail)
    manager.open("flights", 0, SMALL)
    log = manager.get("flights", 0)
    append(log, b"x" * 800, worker=worker)
    storage.failing_opens.add(f"flights-0/{1:020d}.idindex")
    with pytest.raises(ApiError):
        append(log, b"y" * 900, worker=worker)
    assert not storage.exists(f"flights-0/{1:020d}.log"), "nothing is left of it"
    put(storage, f"flights-0/{1:020d}.log", b"")  # the removal did not reach the disk
    append(log, b"z", worker=worker)
    storage.failing_opens.clear()
    append(log, b"y" * 900, worker=worker)
    manager.close()
    opened, _ = reopen(storage, manager.syncs.positions["flights-0"], SMALL)
    assert opened.log_end_offset == 3


@pytest.mark.parametrize("is_uncut", [False, True])
def test_after_a_kill_an_undone_write_cannot_come_back_beside_what_is_written_in_its_place(is_uncut):
    """The process may have ended between the cut and its sync, and the sizes of the files do not show that."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage)
    append(log, b"a", worker=worker)
    storage.free_bytes = 40
    with pytest.raises(ApiError):
        append(log, b"b" * 100, worker=worker)
    storage.free_bytes = None
    reopen(storage, is_uncut=is_uncut)
    for path in (LOG, IDS):
        assert bool(storage.files[path].cut) is is_uncut, "the last process has synced it already"


def test_leader_epochs_that_began_past_the_end_are_dropped_and_the_newest_is_not_given_again():
    """An epoch covers the offsets that its leader wrote, and the records of these epochs were cut (KIP-101)."""
    storage, worker = MemoryStorage(), new_worker()
    log, _ = reopen(storage)
    append(log, b"a", b"b", b"c", worker=worker)
    epochs = "flights-0/leader-epoch-checkpoint"
    storage.replace(epochs, leader_epochs.encode([(0, 0), (2, 1), (4, 1250), (5, 1300)]))
    opened, _ = reopen(storage)
    assert (opened.epochs, opened.leader_epoch) == ([(0, 0), (2, 1), (5, 3)], 5)
    assert leader_epochs.decode(data_of(storage, epochs)) == opened.epochs


# --- producers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", ["whole", "missing", "damaged"])
def test_the_state_of_producers_is_loaded_after_a_clean_close(snapshot):
    """They come from the snapshot at the checkpoint, or from the headers of all batches below it."""
    storage, checkpointed = closed(producers=(7, 8))
    path = f"flights-0/{5:020d}.snapshot"
    if snapshot == "missing":
        storage.remove(path)
    elif snapshot == "damaged":
        put(storage, path, data_of(storage, path)[:-1] + b"\x01")
    log, report = reopen(storage, checkpointed)
    assert report.batches_read == 0
    again = append(log, b"p", worker=new_worker(), producer_id=7, producer_epoch=0, base_sequence=0)
    assert again.duplicate and again.base_offset == 3


def test_each_of_the_last_batches_is_a_duplicate_after_a_clean_close():
    """A client with several batches in flight repeats all that the closing broker has not answered."""
    log, report = reopen(*closed(producers=(7, 8, 7, 7)))
    assert report.batches_read == 0
    for sequence, offset in ((0, 3), (1, 5), (2, 6)):
        again = append(log, b"p", worker=new_worker(), producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert again.duplicate and again.base_offset == offset


def test_producers_past_the_checkpoint_are_replayed():
    storage, checkpointed = closed(producers=(7,))
    log, _ = reopen(storage, checkpointed)
    append(log, b"q", **later(100), producer_id=7, producer_epoch=0, base_sequence=1)
    opened, _ = reopen(storage, checkpointed)
    again = append(opened, b"q", worker=new_worker(), producer_id=7, producer_epoch=0, base_sequence=1)
    assert again.duplicate and again.base_offset == 4


def test_snapshots_that_nothing_refers_to_are_removed():
    storage, checkpointed = closed(producers=(7,))
    put(storage, f"flights-0/{2:020d}.snapshot", b"of a sync whose checkpoint was never written")
    reopen(storage, checkpointed)
    assert [p for p in storage.files if p.endswith(".snapshot")] == [f"flights-0/{4:020d}.snapshot"]


def test_the_file_of_a_replacement_that_was_killed_is_removed():
    storage, _, _ = filled()
    put(storage, "flights-0/leader-epoch-checkpoint.tmp", b"half")
    assert reopen(storage)[0].log_end_offset == 6
    assert not storage.exists("flights-0/leader-epoch-checkpoint.tmp")
