"""The partitions of a consumer: positions, records fetched ahead, what is handed out and committed."""

import sys
import tracemalloc
from threading import Thread

import pytest

from broker.client.consumer_config import ConsumerConfig
from broker.client.consumer_core import RETRY_MS, ConsumerCore
from broker.client.errors import BrokerError, MissingId, TopicRecreated, Unreachable
from broker.client.fetch_session import PartitionAsk
from broker.client.group_requests import CommittedOffset
from broker.record.batch import CorruptBatch
from broker.record.compression import DECOMPRESSED_BYTES_MAX, Codec
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition, IdRegion

A, B = ("orders", 0), ("orders", 1)
LIMIT = 1 << 20
CONFIG = ConsumerConfig()


def core_of(*keys, config=CONFIG, offset=0):
    core = ConsumerCore(config, 1 << 20)
    core.assigned(keys)
    for key in keys:
        core.set_position(key, offset)
    return core


def answer(key, first, number, end=100, diverging=None):
    records = [BatchRecord(at, 0, None, b"%d" % (first + at)) for at in range(number)]
    batch = bytes(encode_batch(records, base_timestamp_ms=0, base_offset=first)) if records else b""
    return FetchedPartition(*key, 0, end, end, 0, records=batch, diverging=diverging)


def fetch(core, now_ms=0, **answers):
    """Answer the asks of both partitions: a=(first, number), b=..."""
    by_key = {A: answers.get("a"), B: answers.get("b")}
    asks = core.asks(now_ms)
    for ask in asks:
        if by_key[ask.key] is not None:
            core.answered(ask, answer(ask.key, *by_key[ask.key]), now_ms)
    return asks


def taken(core, number=500):
    core.prepare(number)
    return [(record.partition, record.offset) for record in core.hand_all(number)]


def offsets(core):
    return {key[1]: committed.offset for key, committed in core.to_commit().items()}


def test_a_new_partition_waits_for_its_position():
    core = ConsumerCore(CONFIG, 1 << 20)
    core.assigned([A])
    assert core.unplaced() == ([A], []) and core.asks(0) == []
    core.set_position(A, 7, epoch=3)
    assert core.unplaced() == ([], [])
    assert core.asks(0) == [PartitionAsk("orders", 0, 7, LIMIT, last_epoch=3)]


def test_a_partition_has_one_ask_at_a_time_and_goes_on_behind_the_answer():
    core = core_of(A)
    fetch(core, a=(0, 3))
    assert [ask.offset for ask in core.asks(0)] == [3]
    assert core.asks(0) == []


def test_partitions_take_turns_when_their_unpacked_batch_is_handed_out():
    """As in Kafka's Java consumer: a second partition would keep a second unpacked batch in memory."""
    core = core_of(A, B)
    fetch(core, a=(0, 3), b=(0, 3))
    assert taken(core, 2) == [(0, 0), (0, 1)]
    fetch(core, a=(3, 3))
    assert taken(core, 2) == [(0, 2), (0, 3)]
    assert taken(core, 3) == [(0, 4), (0, 5), (1, 0)]
    assert taken(core) == [(1, 1), (1, 2)]


def bombs(key, number, size):
    """Return the answer to a fetch of `number` batches, each of a few bytes that unpack to five records of `size`."""
    value = bytes(size)
    batches = b"".join(
        bytes(
            encode_batch(
                [BatchRecord(delta, 0, None, value) for delta in range(5)],
                base_timestamp_ms=0,
                base_offset=5 * batch,
                codec=Codec.ZSTD,
            )
        )
        for batch in range(number)
    )
    return FetchedPartition(*key, 0, 5 * number, 5 * number, 0, records=batches)


def test_batches_are_unpacked_one_after_the_other_whatever_the_number_of_partitions():
    keys = [("orders", partition) for partition in range(10)]
    core = ConsumerCore(CONFIG, DECOMPRESSED_BYTES_MAX)
    core.assigned(keys)
    for key in keys:
        core.set_position(key, 0)
    size = 1 << 20
    for ask in core.asks(0):
        core.answered(ask, bombs(ask.key, 3, size), 0)
    seen = 0
    tracemalloc.start()
    try:
        while core.prepare(7):
            seen += len(core.hand_all(7))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == 10 * 3 * 5
    batches = 4  # two are in hand, of the last list and of this one; one has two forms while it is decoded
    assert peak < batches * 5 * size + (1 << 20), f"{peak / size:.0f} MB of 150"


def test_unpacked_bytes_count_as_fetched_ahead_until_they_are_handed_out():
    core = core_of(A, B, config=ConsumerConfig(consumer_prefetch_bytes=1 << 19))
    ask, other = core.asks(0)
    core.answered(ask, bombs(ask.key, 1, 1 << 17), 0)
    assert [next_ask.key for next_ask in core.asks(0)] == [A], "a few packed bytes are no reason to stop"
    core.answered(other, answer(B, 0, 0), 0)
    assert taken(core, 1) == [(0, 0)]
    assert core.asks(0) == [], "five records of 128 KiB are unpacked, and one is handed out"
    assert len(taken(core)) == 4
    assert [next_ask.key for next_ask in core.asks(0)] == [B]


@pytest.mark.parametrize("forget", [lambda core: core.seek(A, 0), lambda core: core.drop([A])])
def test_unpacked_bytes_that_are_forgotten_count_no_more(forget):
    core = core_of(A, B, config=ConsumerConfig(consumer_prefetch_bytes=1 << 19))
    ask, other = core.asks(0)
    core.answered(ask, bombs(ask.key, 2, 1 << 17), 0)
    core.answered(other, answer(B, 0, 0), 0)
    taken(core, 1)
    assert core.asks(0) == []
    forget(core)
    assert B in [next_ask.key for next_ask in core.asks(0)]


def test_a_position_follows_each_record_that_is_handed_out():
    core = core_of(A)
    fetch(core, a=(0, 3))
    assert core.prepare(500)
    assert (core.hand().offset, core.position(A)) == (0, 1)
    assert (core.hand().offset, offsets(core)) == (1, {0: 2})
    assert core.hand().offset == 2 and core.hand() is None


def test_what_is_committed_already_is_not_committed_again():
    core = core_of(A)
    fetch(core, a=(0, 3))
    taken(core)
    core.committed(core.to_commit())
    assert core.to_commit() == {}


def test_a_position_that_was_committed_needs_no_commit():
    core = ConsumerCore(CONFIG, 1 << 20)
    core.assigned([A])
    core.set_position(A, 7, is_committed=True)
    assert core.to_commit() == {}


def test_a_position_passes_offsets_without_records():
    """Control batches and aborted transactions take offsets, and give no records."""
    core = core_of(A)
    records = [BatchRecord(0, 0, b"\0\0\0\0", b"")]
    marker = bytes(encode_batch(records, base_timestamp_ms=0, base_offset=3, control=True))
    fetched = answer(A, 0, 3)
    fetched.records += marker
    core.answered(core.asks(0)[0], fetched, 0)
    assert taken(core) == [(0, 0), (0, 1), (0, 2)]
    assert core.position(A) == 4


def test_a_seek_drops_what_was_fetched_ahead_and_ignores_the_answer_under_way():
    core = core_of(A, B)
    fetch(core, a=(0, 3), b=(0, 3))
    (under_way, _) = core.asks(0)
    core.prepare(2)
    core.seek(A, 50)
    core.answered(under_way, answer(A, 3, 2), 0)
    assert taken(core) == [(1, 0), (1, 1), (1, 2)]
    assert [ask.offset for ask in core.asks(0) if ask.key == A] == [50]
    assert offsets(core)[0] == 50


def test_a_dropped_partition_hands_out_nothing_more():
    core = core_of(A, B)
    fetch(core, a=(0, 3), b=(0, 3))
    core.prepare(500)
    core.hand()
    core.drop([A])
    assert taken(core) == [(1, 0), (1, 1), (1, 2)]
    assert core.owned == {B} and offsets(core) == {1: 3}


def test_paused_records_come_after_the_pause():
    core = core_of(A)
    fetch(core, a=(0, 3))
    core.prepare(500)
    core.hand()
    core.pause([A])
    assert taken(core) == [] and core.asks(0) == []
    core.resume([A])
    assert fetch(core, a=(1, 2))[0].offset == 1
    assert taken(core) == [(0, 1), (0, 2)]


def test_nothing_is_fetched_while_enough_waits_for_the_program():
    core = core_of(A, B, config=ConsumerConfig(consumer_prefetch_bytes=100))
    fetch(core, a=(0, 9), b=(0, 9))
    assert core.asks(0) == []
    taken(core)
    assert [ask.offset for ask in core.asks(0)] == [9, 9]


POSITION_ERRORS = BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, "orders-0"), TopicRecreated("orders", None)


@pytest.mark.parametrize("error", POSITION_ERRORS)
def test_a_position_that_is_gone_is_looked_up_again(error):
    core = core_of(A, offset=7)
    core.answered(core.asks(0)[0], error, 0)
    assert core.unplaced() == ([], [A]) and core.figures.resets == 1
    assert "orders-0: position 7 is gone" in core.take_notes()[0]
    key, offset, reason = core.take_reset()
    assert (key, offset) == (A, 7) and reason and core.take_reset() is None
    core.set_position(A, 20)
    assert [ask.offset for ask in core.asks(0)] == [20]


def test_a_commit_from_before_a_topic_was_made_again_is_known_by_the_number_of_resets():
    core = core_of(A, offset=7)
    before = core.resets_of(A)
    core.seek(A, 3)
    assert core.resets_of(A) == before
    core.answered(core.asks(0)[0], TopicRecreated("orders", None), 0)
    assert core.resets_of(A) != before and core.resets_of(B) == 0


def test_a_position_is_lost_with_the_records_fetched_ahead_of_it():
    core = core_of(A)
    fetch(core, a=(0, 10))
    core.prepare(3)
    assert [record.offset for record in core.hand_all(3)] == [0, 1, 2]
    core.answered(core.asks(0)[0], TopicRecreated("orders", None), 0)
    assert core.take_reset().offset == 3


@pytest.mark.parametrize("error", POSITION_ERRORS)
def test_the_same_position_is_committed_again_in_a_topic_that_was_made_again(error):
    core = core_of(A, offset=7)
    core.committed({A: CommittedOffset(10)})
    core.answered(core.asks(0)[0], error, 0)
    core.set_position(A, 0)
    fetch(core, a=(0, 10))
    taken(core)
    assert core.position(A) == 10 and core.to_commit() == {A: CommittedOffset(10)}
    assert core.partition_figures()[A].committed is None


def test_a_failure_that_passes_is_logged_once_and_tried_again_later():
    core = core_of(A)
    core.answered(core.asks(0)[0], Unreachable("localhost:1", "refused"), 0)
    assert core.asks(RETRY_MS - 1) == [] and core.next_ask_ms() == RETRY_MS
    core.answered(core.asks(RETRY_MS)[0], Unreachable("localhost:1", "refused"), RETRY_MS)
    assert core.next_ask_ms() == RETRY_MS + 2 * RETRY_MS
    assert len(core.take_notes()) == 1


def test_a_partition_that_failed_is_due_only_while_it_may_be_asked_for():
    """Otherwise a loop that waits until then would turn all the time."""
    core = core_of(A, B, config=ConsumerConfig(consumer_prefetch_bytes=100))
    core.answered(core.asks(0)[0], Unreachable("localhost:1", "refused"), 0)
    core.pause([A])
    assert core.next_ask_ms() is None
    core.resume([A])
    assert core.next_ask_ms() == RETRY_MS
    core.answered(PartitionAsk(*B, 0, LIMIT, last_epoch=-1), answer(B, 0, 50), 0)
    assert core.next_ask_ms() is None, "there is no room for more records"
    taken(core)
    assert core.next_ask_ms() == RETRY_MS


def test_a_partition_that_is_gone_is_not_due():
    core = core_of(A)
    core.answered(core.asks(0)[0], Unreachable("localhost:1", "refused"), 0)
    core.answered(core.asks(RETRY_MS)[0], BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, "orders-0"), RETRY_MS)
    assert core.unplaced() == ([], [A]) and core.next_ask_ms() is None


def test_an_error_that_no_retry_mends_is_raised_after_the_records_before_it():
    core = core_of(A)
    fetch(core, a=(0, 1))
    core.answered(core.asks(0)[0], BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "orders-0"), 0)
    assert taken(core) == [(0, 0)]
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        core.prepare(500)
    assert [ask.offset for ask in core.asks(0)] == [1]


def test_a_batch_with_a_wrong_crc_is_an_error():
    core = core_of(A)
    fetched = answer(A, 0, 3)
    fetched.records = fetched.records[:-1] + b"?"
    core.answered(core.asks(0)[0], fetched, 0)
    with pytest.raises(CorruptBatch):
        core.prepare(500)


def test_after_a_log_was_cut_the_consumer_goes_back_to_the_common_end():
    """KIP-320: the log lost offsets that the consumer has read."""
    core = core_of(A, offset=9)
    core.answered(core.asks(0)[0], answer(A, 0, 0, diverging=(2, 5)), 0)
    assert [(ask.offset, ask.last_epoch) for ask in core.asks(0)] == [(5, 2)]
    assert "its log was cut at offset 5; the consumer goes back from 9" in core.take_notes()[0]


def test_the_lag_in_bytes_follows_the_mean_size_of_records():
    core = core_of(A)
    core.answered(core.asks(0)[0], answer(A, 0, 4, end=10), 0)
    taken(core)
    figures = core.partition_figures()[A]
    assert (figures.position, figures.end, figures.lag) == (4, 10, 6)
    assert figures.lag_bytes == round(6 * figures.bytes / 4)


def test_the_end_of_the_log_is_asked_for_after_what_was_fetched_before_it_went():
    """Retention took the offset that is fetched next, not the records that wait for the program."""
    core = core_of(A)
    fetch(core, a=(0, 3))
    core.answered(core.asks(0)[0], POSITION_ERRORS[0], 0)
    assert taken(core) == [(0, 0), (0, 1), (0, 2)]
    core.answered(core.asks(RETRY_MS)[0], POSITION_ERRORS[0], RETRY_MS)
    assert core.unplaced() == ([], [A])


def test_records_are_decoded_when_the_program_wants_them():
    """Decoded records take many times the memory of their batch, so a slow program would fill the memory."""
    core = core_of(A, B)
    fetch(core, a=(0, 3), b=(0, 3))
    assert core.figures.records == 0
    assert taken(core, 2) == [(0, 0), (0, 1)]
    assert core.figures.records == 3


def test_an_answer_without_an_id_is_an_error_after_the_records_before_it_and_is_asked_for_again():
    core = core_of(A)
    fetch(core, a=(0, 3))
    damaged = answer(A, 3, 2)
    damaged.ids = IdRegion(3, b"")
    core.answered(core.asks(0)[0], damaged, 0)
    fetch(core, a=(5, 2))
    assert taken(core) == [(0, 0), (0, 1), (0, 2)]
    with pytest.raises(MissingId, match="has no id for offset 3"):
        core.prepare(500)
    assert [ask.offset for ask in core.asks(0)] == [3]


# --- records that the program did not process ----------------------------------------------------------------------


def test_a_record_that_the_program_failed_on_is_not_committed():
    core = core_of(A)
    fetch(core, a=(0, 3))
    core.prepare(500)
    core.hand()
    core.hand()
    core.give_back()
    assert offsets(core) == {0: 1}


def test_records_of_several_partitions_that_the_program_failed_on_are_not_committed():
    core = core_of(A, B)
    fetch(core, a=(0, 3), b=(0, 3))
    taken(core, 4)
    taken(core)
    core.give_back()
    assert offsets(core) == {0: 3, 1: 1}


def test_records_are_processed_when_more_is_asked_for():
    core = core_of(A)
    fetch(core, a=(0, 3))
    taken(core)
    core.processed()
    core.give_back()
    assert offsets(core) == {0: 3}


def test_what_is_committed_is_not_given_back():
    core = core_of(A)
    fetch(core, a=(0, 3))
    taken(core)
    core.committed({A: CommittedOffset(2)})
    core.give_back()
    assert offsets(core) == {} and core.position(A) == 2


def test_a_seek_of_the_program_counts_more_than_what_it_failed_on():
    core = core_of(A)
    fetch(core, a=(0, 3))
    taken(core)
    core.seek(A, 50)
    core.give_back()
    assert offsets(core) == {0: 50}


def test_positions_are_found_while_another_thread_hands_out_records(switching):
    core = core_of(A)
    late = [("orders", number) for number in range(2, 3_000)]
    core.assigned(late)
    fetch(core, a=(0, 20_000))
    core.prepare(20_000)
    records = []
    thread = Thread(target=lambda: records.extend(iter(core.hand, None)))
    thread.start()
    for key in late:
        core.set_position(key, 0)
    thread.join()
    assert [record.offset for record in records] == list(range(20_000))


@pytest.fixture
def switching():
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
