"""What a broker's result of a fetch means for the coordinator."""

from broker.record.records import Record, encode_batch
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedPartition
from partition_manager.fetcher import answer_of
from partition_manager.ports import Fetched, OutOfRange


def result(records=b"", diverging=None, log_start=0):
    return FetchedPartition("flights", 0, 0, 20, 15, log_start, records=records, diverging=diverging)


def batch(base_offset, epoch):
    made = encode_batch([Record(0, 0, None, b"v"), Record(1, 0, None, b"w")], base_timestamp_ms=1)
    made[:8], made[12:16] = base_offset.to_bytes(8, "big"), epoch.to_bytes(4, "big")
    return bytes(made)


def test_records_come_with_the_next_offset_the_end_and_the_epoch_of_the_last_batch():
    answer = answer_of(result(batch(10, 3) + batch(12, 4)), 10, READ_UNCOMMITTED)
    assert [record.value for record in answer.records] == [b"v", b"w"] * 2
    assert (answer.next_offset, answer.high_watermark, answer.leader_epoch) == (14, 20, 4)


def test_at_read_committed_the_last_stable_offset_is_the_end():
    assert answer_of(result(), 15, READ_COMMITTED) == Fetched([], 15, 15)


def test_a_log_that_lost_what_was_read_last_is_out_of_range_at_the_end_of_what_is_left():
    assert answer_of(result(diverging=(3, 7)), 10, READ_UNCOMMITTED) == OutOfRange(0, 7)


def test_a_log_that_begins_after_what_is_left_is_read_from_its_start():
    assert answer_of(result(diverging=(3, 7), log_start=9), 10, READ_UNCOMMITTED) == OutOfRange(9, 9)
