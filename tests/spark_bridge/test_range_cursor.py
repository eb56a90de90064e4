"""Reading a range to its end by position: completely, or with an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.record.batch import CorruptBatch
from broker.record.records import BatchRecord, encode_batch
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import DataLoss, RangeCursor


def batch(base, count, *, control=False, deltas=None):
    records = [BatchRecord(delta, 0, b"k", b"v") for delta in deltas or range(count)]
    return encode_batch(records, base_timestamp_ms=0, base_offset=base, control=control)


def cursor(start, end, **options):
    return RangeCursor(OffsetRange("t", 0, start, end), **options)


def bases(batches):
    return [batch.header.base_offset for batch in batches]


def test_batches_move_the_position_to_the_end_of_the_range():
    reader = cursor(0, 10)
    assert bases(reader.accept(batch(0, 4) + batch(4, 4))) == [0, 4]
    assert (reader.position, reader.done) == (8, False)
    assert bases(reader.accept(batch(8, 4) + batch(12, 4))) == [8]
    assert (reader.position, reader.done) == (10, True)


def test_a_range_may_begin_and_end_inside_batches():
    reader = cursor(2, 5)
    assert bases(reader.accept(batch(0, 4) + batch(4, 4))) == [0, 4]
    assert reader.done


def test_a_broker_may_begin_earlier_than_asked():
    reader = cursor(5, 8)
    assert bases(reader.accept(batch(0, 4) + batch(4, 4))) == [4]


def test_an_empty_range_is_done_immediately():
    assert cursor(3, 3).done


def test_control_batches_take_offsets_and_give_no_rows():
    """The position passes commit and abort markers (KIP-98); a count of rows would never reach the end."""
    reader = cursor(0, 4)
    assert bases(reader.accept(batch(0, 2) + batch(2, 1, control=True) + batch(3, 1))) == [0, 3]
    assert reader.done


@given(cut=st.integers(0, 400))
def test_a_last_batch_that_is_cut_short_is_fetched_again(cut):
    """An incomplete last batch is fetched again, because Kafka cuts a fetch at its size, even inside a batch."""
    data = batch(0, 2) + batch(2, 2) + batch(4, 2)
    first = len(batch(0, 2))
    reader = cursor(0, 6)
    keep = max(first, len(data) - cut)
    whole = keep // first
    assert bases(reader.accept(data[:keep])) == [0, 2, 4][:whole]
    assert reader.position == 2 * whole


@pytest.mark.parametrize("size", [1, 60, 61, 70])
def test_a_first_batch_that_is_cut_short_is_an_error(size):
    """An incomplete first batch is an error: it must come whole (KIP-74), or the reader would request it for ever."""
    with pytest.raises(CorruptBatch, match=r"t-0 at offset 0: \d+ bytes came, no whole batch"):
        cursor(0, 4).accept(batch(0, 4)[:size])


def test_nothing_fetched_is_no_progress_and_no_error():
    reader = cursor(0, 4)
    assert reader.accept(b"") == []
    assert reader.position == 0


def test_a_wrong_crc_is_an_error_that_names_partition_and_offset():
    data = batch(0, 4) + batch(4, 4)
    data[-3] ^= 1
    reader = cursor(0, 8)
    with pytest.raises(CorruptBatch, match="t-0 at offset 4: CRC"):
        reader.accept(data)


def test_damage_past_the_range_is_not_looked_at():
    data = batch(0, 4) + batch(4, 4)
    data[-3] ^= 1
    reader = cursor(0, 4)
    assert bases(reader.accept(data)) == [0]


def test_offsets_missing_between_batches_are_data_lost():
    reader = cursor(0, 8)
    with pytest.raises(DataLoss, match=r"t-0 has no offsets 4 to 5 of t-0\[0, 8\)"):
        reader.accept(batch(0, 4) + batch(6, 2))


def test_offsets_missing_inside_a_batch_are_data_lost():
    with pytest.raises(DataLoss, match="the batch of offsets 0 to 3 has 3 records"):
        cursor(0, 4).accept(batch(0, 3, deltas=[0, 2, 3]))


def test_a_compacted_log_may_leave_offsets_out():
    """With compacted=True offsets may be missing; it is an option because nothing in the log shows compaction."""
    reader = cursor(0, 20, compacted=True)
    assert bases(reader.accept(batch(3, 2, deltas=[0, 5]) + batch(12, 1) + batch(30, 1))) == [3, 12]
    assert reader.done


def test_with_on_lost_missing_offsets_are_reported_and_passed():
    lost = []
    reader = cursor(1, 20, on_lost=lambda within, reason: lost.append((within.start, within.end)))
    data = batch(3, 3, deltas=[0, 2, 5]) + batch(12, 1) + batch(18, 4, deltas=[0, 1, 6, 7])
    assert bases(reader.accept(data)) == [3, 12, 18]
    assert reader.done
    assert lost == [(1, 3), (4, 5), (6, 8), (9, 12), (13, 18)]


def test_aborted_transactions_only_move_the_position():
    data = encode_batch([BatchRecord(0, 0, b"k", b"v")], base_timestamp_ms=0, producer_id=7, transactional=True)
    reader = cursor(0, 3)
    assert bases(reader.accept(data + batch(1, 2), [(7, 0)])) == [1]
    assert reader.done


def test_the_cursor_knows_the_bytes_that_it_passed():
    data = batch(0, 4) + batch(4, 40)
    reader = cursor(3, 100)
    reader.accept(data)
    assert reader.left == 56
    seen = reader.passed_offsets, reader.passed_bytes, reader.largest_batch_bytes
    assert seen == (44, len(data), len(batch(4, 40)))


def test_neither_lost_offsets_nor_a_start_inside_a_batch_change_the_size_of_a_record():
    """Bytes for each offset of the range were far too many after a start at the end of a large batch."""
    reader = cursor(95, 2_000, on_lost=lambda within, reason: None)
    reader.accept(batch(0, 100) + batch(1_000, 100))
    assert (reader.passed_offsets, reader.passed_bytes) == (200, 2 * len(batch(0, 100)))
