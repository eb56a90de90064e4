"""The log of one partition: offsets rise by one a record, ids rise strictly, and a read returns the batches as sent."""

import pytest

from broker.log import log_appender, log_reader
from broker.log.validation.batch import validate
from broker.now import Now
from broker.record.batch import read_header, walk
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.id_entries import ENTRY_BYTES, read_entries

from .conftest import BROKER, NOW, START_MS, append, batch_of, mend, new_worker, reopen, validated


def read(log, offset, max_bytes=1 << 20, **options):
    result = log_reader.read(log, offset, max_bytes, True, **options)
    return result.records and result.records.file.read(result.records.position, result.records.length)


def test_offsets_are_dense_and_ids_rise_with_them(log, worker):
    first = append(log, b"a", b"b", worker=worker)
    second = append(log, b"c", worker=worker)
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)
    assert log_reader.ids_of(log, 0, 3) == (*map(tuple, first.runs), *map(tuple, second.runs))
    assert first.runs[0][0] + 1 < second.runs[0][0] + 1 <= log.last_id + 1


def test_a_batch_stays_as_it_was_sent_but_for_its_place(log, worker):
    sent = batch_of(b"a", b"b")
    append(log, b"a", b"b", worker=worker)
    assert read(log, 0)[12:16] == b"\0\0\0\0", "the leader epoch"
    assert read(log, 0)[16:] == bytes(sent)[16:]


def test_a_read_begins_at_the_batch_that_holds_the_offset(log, worker):
    for n in range(200):
        append(log, b"x" * 100, b"y" * 100, worker=worker)
    for offset in (0, 1, 133, 398, 399):
        (_, header), *_ = walk(read(log, offset))
        assert header.base_offset <= offset <= header.last_offset


def test_a_first_batch_larger_than_the_limit_is_returned_whole(log, worker):
    """The first batch is returned whole (KIP-74)."""
    append(log, b"x" * 5000, worker=worker)
    append(log, b"y", worker=worker)
    assert len(list(walk(read(log, 0, max_bytes=100)))) == 1
    assert not log_reader.read(log, 0, 100, at_least_one=False).records


def cut(log, offset, max_bytes):
    """Return the base offsets of the whole batches that are read, and the number of bytes after them."""
    records = log_reader.whole_batches(log, offset, log_reader.read(log, offset, max_bytes, True).records)
    data = records.file.read(records.position, records.length)
    batches = list(walk(data))
    return [header.base_offset for _, header in batches], len(data) - sum(header.size for _, header in batches)


LARGE = b"x" * 60_000


@pytest.mark.parametrize("segment_bytes", [1 << 30, 400_000], ids=["newest", "older"])
def test_of_large_batches_only_whole_ones_are_read(storage, worker, segment_bytes):
    log, _ = reopen(storage, config=TopicConfig(segment_bytes=segment_bytes))
    for _ in range(8):
        append(log, LARGE, worker=worker)
    size = log_reader.read(log, 0, 1, True).records.length
    assert cut(log, 0, 3 * size - 1) == ([0, 1], 0)
    assert cut(log, 0, 3 * size) == ([0, 1, 2], 0)
    assert cut(log, 2, 3 * size + 5_000) == ([2, 3, 4], 0)
    assert cut(log, 0, 2 * size - 1) == ([0], size - 1), "so little is not worth a look"


def test_of_small_batches_the_last_may_be_cut_or_a_few_are_left_for_the_next_read(log, worker):
    for _ in range(2_000):
        append(log, b"x" * 100, worker=worker)
    size = log_reader.read(log, 0, 1, True).records.length
    for more in range(0, 4_096, 300):
        limit = 1_000 * size + more
        offsets, cut_bytes = cut(log, 0, limit)
        assert len(offsets) == limit // size or (cut_bytes == 0 and limit // size - len(offsets) <= 4_096 / size)


def test_with_few_entries_in_the_index_small_batches_are_not_left_for_the_next_read(storage, worker):
    log, _ = reopen(storage, config=TopicConfig(index_interval_bytes=200_000))
    for _ in range(2_500):
        append(log, b"x" * 100, worker=worker)
    size = log_reader.read(log, 0, 1, True).records.length
    for offset in range(0, 1_500, 37):
        assert len(cut(log, offset, 150_000)[0]) == 150_000 // size


def test_what_is_on_the_disk_is_read_to_its_end_wherever_the_index_has_its_last_entry(storage, worker):
    """The caller waits for `fetch.min.bytes` and found enough bytes in the whole read; fewer might not be enough."""
    log, _ = reopen(storage, config=TopicConfig(visible_after_flush=True))
    for n in range(1_500):
        append(log, b"x" * 100, worker=worker)
        if n >= 1_440:
            log.synced(log.position())
            append(log, b"not yet", worker=worker)
            assert cut(log, 0, 1 << 20) == ([*range(log.high_watermark)], 0)


def test_a_file_that_cannot_be_opened_again_leaves_what_was_read_as_it_is(storage, worker):
    log, _ = reopen(storage, config=TopicConfig(segment_bytes=400_000))
    for _ in range(8):
        append(log, LARGE, worker=worker)
    log.synced(log.position())
    older = log.segments.all[0]
    records = log_reader.read(log, 0, 3 * len(LARGE), True).records
    older.close_files()  # other segments were read meanwhile
    storage.failing_opens.add(records.file.path)
    assert log_reader.whole_batches(log, 0, records) == records


def test_nor_is_the_index_of_the_newest_segment_waited_for_after_a_start(storage, worker):
    log, _ = reopen(storage)
    for _ in range(8):
        append(log, LARGE, worker=worker)
    log, _ = reopen(storage)
    records = log_reader.read(log, 0, 3 * len(LARGE), True).records
    index = log.segments.active.offsets.file.path
    storage.not_in_memory.add(index)
    assert log_reader.whole_batches(log, 0, records) == records
    assert index in storage.not_in_memory


def test_what_ends_with_the_log_and_one_batch_that_is_too_large_are_read_as_they_are(log, worker):
    append(log, LARGE * 4, worker=worker)
    append(log, LARGE, worker=worker)
    assert cut(log, 0, 1 << 20) == ([0, 1], 0)
    assert cut(log, 0, 200_000) == ([0], 0)


def test_where_the_disk_would_be_waited_for_nothing_is_looked_for(storage, worker):
    log, _ = reopen(storage, config=TopicConfig(segment_bytes=400_000))
    for _ in range(8):
        append(log, LARGE, worker=worker)
    size = log_reader.read(log, 0, 1, True).records.length
    records = log_reader.read(log, 0, 3 * size - 1, True).records
    storage.not_in_memory.add(log.segments.all[0].offsets.file.path)
    assert log_reader.whole_batches(log, 0, records) == records


def test_offsets_outside_the_log_are_out_of_range_and_its_end_is_empty(log, worker):
    append(log, b"a", worker=worker)
    assert not log_reader.read(log, 1, 100, True).records
    for offset in (-1, 2):
        with pytest.raises(ApiError, match="it holds 0 to 1") as caught:
            log_reader.read(log, offset, 100, True)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_roll_keeps_reads_and_ids_together(storage, worker):
    log, _ = reopen(storage, config=TopicConfig(segment_bytes=2048))
    for _ in range(100):
        append(log, b"x" * 200, worker=worker)
    assert len(log.segments.all) > 5
    values = [r.value for o in range(100) for r in decode_records(read(log, o, 1)) if r.offset == o]
    assert values == [b"x" * 200] * 100
    ids = [first + i for first, length in log_reader.ids_of(log, 0, 100) for i in range(length)]
    assert len(ids) == 100 and ids == sorted(set(ids))
    assert [log_reader.offset_of_id(log, id) for id in ids] == list(range(100))
    assert log_reader.offset_of_id(log, ids[-1] + 1) == 100
    result = log_reader.read(log, 30, 500, True, with_ids=True)
    assert result.ids.base_offset <= 30


def test_an_id_is_found_in_a_million_by_a_few_entries_of_the_id_index(storage, worker):
    """The search halves the segments and then the entries of one segment; it reads no message."""
    log, _ = reopen(storage, config=TopicConfig(segment_bytes=1 << 20))
    batch, count = bytes(batch_of(*[b""] * 4_000)), 250
    for number in range(count):
        sent = memoryview(bytearray(batch))
        now = Now(ms=number, wall_ms=START_MS + number)
        log_appender.append(log, sent, validate(sent, log.config, BROKER), worker, now)
    assert (log.high_watermark, len(log.segments.all) > 5) == (1_000_000, True)
    for offset in (0, 3_999, 777_777, 999_999):
        ((id, _),) = log_reader.ids_of(log, offset, offset + 1)
        storage.bytes_read.clear()
        assert log_reader.offset_of_id(log, id) == offset
        assert all(path.endswith(".idindex") for path in storage.bytes_read)
        assert sum(storage.bytes_read.values()) < 20 * ENTRY_BYTES


def test_a_time_finds_the_first_record_not_older(log, worker):
    """The search uses the largest timestamps of batches, then the records of one batch (KIP-33)."""
    for n in range(50):
        append(log, b"x" * 300, worker=worker, timestamp_ms=START_MS + n * 10)
    assert log_reader.offset_of_time(log, START_MS + 245) == (25, START_MS + 250)
    assert log_reader.offset_of_time(log, START_MS) == (0, START_MS)
    assert log_reader.offset_of_time(log, START_MS + 491) is None


def times(log, worker, *times_ms):
    """Append a batch of one record for each time."""
    for time_ms in times_ms:
        append(log, b"x", worker=worker, timestamp_ms=START_MS + time_ms)


def newest(log):
    newest_record = log_reader.offset_of_newest(log)
    return newest_record and (newest_record[0], newest_record[1] - START_MS)


def test_the_newest_record_is_the_first_of_those_with_the_largest_time(log, worker):
    assert newest(log) is None
    times(log, worker, 3, 9, 5, 9)
    assert newest(log) == (1, 9)
    log.roll()
    assert newest(log) == (1, 9)
    times(log, worker, 9, 10)
    assert newest(log) == (5, 10)


def test_the_newest_record_is_one_of_those_that_are_left(log, worker):
    """DeleteRecords may end inside a segment and past its newest record (KIP-734)."""
    times(log, worker, 3, 9, 5, 2)
    log.advance_start(1)
    assert newest(log) == (1, 9)
    log.advance_start(2)
    assert newest(log) == (2, 5)
    times(log, worker, 4, 6)
    assert newest(log) == (5, 6), "what was appended since counts"
    log.roll()
    times(log, worker, 4)
    assert newest(log) == (5, 6)
    log.advance_start(6)
    assert newest(log) == (6, 4)
    log.advance_start(7)
    assert newest(log) is None


def test_of_a_batch_that_is_deleted_in_part_the_rest_counts(log, worker):
    batch = encode_batch([BatchRecord(0, 9, None, b"a"), BatchRecord(1, 4, None, b"b")], base_timestamp_ms=START_MS)
    log_appender.append(log, memoryview(batch), read_header(batch), worker, NOW)
    assert newest(log) == (0, 9)
    log.advance_start(1)
    assert newest(log) == (1, 4)


def test_a_full_disk_refuses_the_batch_and_leaves_the_log_as_it_was(storage, log, worker):
    append(log, b"a", worker=worker)
    storage.free_bytes = 60
    with pytest.raises(ApiError) as caught:
        append(log, b"b" * 100, worker=worker)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.offline) == (1, None)
    storage.free_bytes = None
    mend(log)
    assert append(log, b"b", worker=worker).base_offset == 1
    reopened, report = reopen(storage)
    assert (reopened.log_end_offset, report.bytes_cut) == (2, 0)


def test_a_repeated_batch_is_answered_with_its_first_offsets_and_ids(log, worker):
    """The producer missed the answer and sent the batch again (KIP-98)."""
    sent = {"producer_id": 7, "producer_epoch": 0}
    first = append(log, b"a", b"b", worker=worker, base_sequence=0, **sent)
    append(log, b"c", worker=worker, base_sequence=2, **sent)
    again = append(log, b"a", b"b", worker=worker, base_sequence=0, **sent)
    assert again.duplicate and again.base_offset == 0 and list(again.runs) == [tuple(r) for r in first.runs]
    assert log.log_end_offset == 3
    with pytest.raises(ApiError) as caught:
        append(log, b"z", worker=worker, base_sequence=9, **sent)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_ids_rise_though_another_worker_with_a_slower_clock_stamps(log, worker):
    before = append(log, b"a", worker=worker).runs[-1]
    slow = new_worker(START_MS - 400, number=0)
    after = append(log, b"b", worker=slow, now=NOW._replace(wall_ms=START_MS - 400)).runs[0]
    assert after[0] > before[0]


# --- errors, ages, the newest segment ----------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 19, 20, 120, 20 + 75 + 7, 20 + 75 + 8 + 11], ids=str)
def test_a_disk_that_runs_full_in_any_of_the_four_files_leaves_them_all_as_they_were(storage, worker, spare):
    log, _ = reopen(storage, config=TopicConfig(index_interval_bytes=0))
    append(log, b"a" * 7, worker=worker)
    before = {path: bytes(content.data) for path, content in storage.files.items()}
    storage.free_bytes = spare
    with pytest.raises(ApiError, match="No space left") as caught:
        append(log, b"b" * (7 if spare != 120 else 500), worker=worker, timestamp_ms=START_MS + 1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert {path: bytes(content.data) for path, content in storage.files.items()} == before
    assert (log.log_end_offset, log.offline, log.unflushed) == (1, None, 1)
    storage.free_bytes = None
    mend(log)
    assert append(log, b"c" * 7, worker=worker).base_offset == 1
    assert [r.value for r in decode_records(read(log, 1))] == [b"c" * 7]


@pytest.mark.parametrize("spare", range(0, 5 * (8 + 12), 10))  # the ids and the log fit, but not all of both indexes
def test_a_disk_that_runs_full_under_several_batches_leaves_all_files_as_they_were(storage, worker, spare):
    log, _ = reopen(storage, config=TopicConfig(index_interval_bytes=0))
    append(log, b"a", worker=worker)
    before = {path: bytes(content.data) for path, content in storage.files.items()}
    batches = [batch_of(b"b", timestamp_ms=START_MS + n) for n in range(1, 6)]
    staged = validated(log, *batches)
    storage.free_bytes = ENTRY_BYTES + 5 * len(batches[0]) + spare
    with pytest.raises(ApiError, match="No space left"):
        log_appender.append_batches(log, staged, worker, NOW)
    assert {path: bytes(content.data) for path, content in storage.files.items()} == before
    assert (log.log_end_offset, log.segments.active.next_offset, log.offline) == (1, 1, None)
    storage.free_bytes = None
    mend(log)
    offsets, _ = log_appender.append_batches(log, staged, worker, NOW)
    assert offsets == [(offset, offset) for offset in range(1, 6)]
    assert log_reader.offset_of_time(log, START_MS + 3) == (3, START_MS + 3)


@pytest.mark.parametrize("suffix", [".log", ".idindex", ".index"])
def test_a_write_that_cannot_be_undone_takes_the_log_offline(storage, worker, suffix):
    log, _ = reopen(storage, config=TopicConfig(index_interval_bytes=0))
    append(log, b"a", worker=worker)
    append(log, b"b", worker=worker)
    storage.free_bytes = 20 + 69 + 8 + 11  # the time index does not fit
    storage.failing_cuts.add(f"flights-0/{0:020d}{suffix}")
    with pytest.raises(ApiError):
        append(log, b"c", worker=worker, timestamp_ms=START_MS + 1)
    assert "could not be undone" in log.offline
    storage.free_bytes = None
    storage.failing_cuts.clear()
    for use in (lambda: append(log, b"d", worker=worker), lambda: log_reader.read(log, 0, 1, True)):
        with pytest.raises(ApiError, match="offline"):
            use()


def test_a_roll_that_fails_leaves_the_log_as_it_was(storage, worker):
    log, _ = reopen(storage, config=TopicConfig(segment_bytes=1024))
    append(log, b"x" * 800, worker=worker)
    for suffix in (".log", ".idindex", ".index", ".timeindex"):
        storage.failing_opens = {f"flights-0/{1:020d}{suffix}"}
        with pytest.raises(ApiError):
            append(log, b"y" * 800, worker=worker)
        assert (len(log.segments.all), log.log_end_offset) == (1, 1)
        assert not [name for name in storage.list("flights-0") if name.startswith(f"{1:020d}")]
    storage.failing_opens = set()
    assert append(log, b"y" * 800, worker=worker).base_offset == 1 and len(log.segments.all) == 2


def test_after_a_refused_batch_the_ids_go_on_above_those_it_was_given(storage, log, worker):
    """The ids of a refused batch are never given to another one."""
    first = append(log, b"a", worker=worker).runs[0].first
    storage.free_bytes = 30
    with pytest.raises(ApiError):
        append(log, b"b" * 50, worker=worker)
    storage.free_bytes = None
    mend(log)
    assert append(log, b"b", worker=worker).runs[0].first > first + 1


def test_messages_of_long_ago_do_not_roll_a_segment_each(storage, worker):
    """Kafka rolls a segment by the messages' own times (LogSegment.timeWaitedForRoll)."""
    log, _ = reopen(storage, config=TopicConfig(segment_ms=1_000))
    for n in range(5):
        append(log, b"x", worker=worker, timestamp_ms=1_357_000_000_000 + n)
    assert len(log.segments.all) == 1
    append(log, b"x", worker=worker, timestamp_ms=1_357_000_001_001)
    assert len(log.segments.all) == 2


def test_a_segment_that_begins_with_older_times_than_the_one_before_is_indexed_by_its_own(storage, worker):
    config = TopicConfig(segment_bytes=1024, index_interval_bytes=0)
    log, _ = reopen(storage, config=config)
    append(log, b"x" * 800, worker=worker, timestamp_ms=START_MS + 1_000)
    append(log, b"x" * 200, worker=worker, timestamp_ms=START_MS)
    checkpointed = log.position()
    assert (checkpointed.max_timestamp_ms, checkpointed.max_timestamp_offset) == (START_MS, 1)
    opened, _ = reopen(storage, checkpointed, config)
    for n in range(3):
        append(opened, b"x" * 100, worker=worker, timestamp_ms=START_MS + n)
    opened.roll()
    assert log_reader.offset_of_time(opened, START_MS + 2) == (0, START_MS + 1_000)
    assert opened.segments.all[1].max_timestamp_ms == START_MS + 2


def test_an_id_is_found_though_the_newest_segment_is_empty(log, worker):
    first = append(log, b"a", worker=worker).runs[0].first
    log.roll()
    assert (log_reader.offset_of_id(log, first), log_reader.offset_of_id(log, first + 1)) == (0, 1)


def test_a_file_that_cannot_be_read_is_an_answer_not_a_fault(storage, worker, log):
    """Only WireError and ApiError cross the engine (rule 3 of CONTRIBUTING.md)."""
    sent = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    append(log, b"a", worker=worker, **sent)
    content = storage.files[f"flights-0/{0:020d}.idindex"]
    content.data[5] ^= 1
    uses = (
        lambda: log_reader.read(log, 0, 1, True, with_ids=True),
        lambda: log_reader.ids_of(log, 0, 1),
        lambda: log_reader.offset_of_id(log, 5),
        lambda: append(log, b"a", worker=worker, **sent),
    )
    for use in uses:
        with pytest.raises(ApiError, match="idindex") as caught:
            use()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_read_with_ids_covers_every_record_it_returns(storage, worker):
    log, _ = reopen(storage, config=TopicConfig(segment_bytes=4096, index_interval_bytes=100))
    for n in range(60):
        append(log, b"x" * 50, b"y" * 50, worker=worker)
    for offset in range(0, 120, 7):
        for max_bytes in (1, 300, 1000, 1 << 20):
            result = log_reader.read(log, offset, max_bytes, True, with_ids=True)
            data = result.records.file.read(result.records.position, result.records.length)
            region = result.ids.entries
            entries = list(read_entries(region.file.read(region.position, region.length), result.ids.base_offset))
            for _, header in walk(data):
                first = [e for e in entries if e.offset <= header.base_offset < e.offset + e.length]
                assert first, "the run of each batch is there"
            last = max(header.last_offset for _, header in walk(data))
            assert entries[0].offset <= offset and entries[-1].offset + entries[-1].length > last
