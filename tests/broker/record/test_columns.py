"""broker.record.columns reads what record by record decoding reads, or leaves the batch to it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.record.batch import CorruptBatch, read_header
from broker.record.columns import columns_of
from broker.record.records import Record, encode_batch
from broker.record.retained import retain, retain_columns, spans_in, unpacked

START_MS = 1_700_000_000_000


def opened(batch):
    header = read_header(batch)
    data = unpacked(bytes(batch), header)
    return header, data, columns_of(data, header)


def made(*records, **fields):
    return bytes(encode_batch(records, base_timestamp_ms=START_MS, **fields))


def agree(batch, wanted=None):
    """Hold the columns of a batch to its spans. Return True if it has columns."""
    header, data, columns = opened(batch)
    if columns is None:
        return False
    spans = spans_in(data, header).spans
    assert columns.keys == [span.key for span in spans]
    assert list(columns.deltas) == [span.offset_delta for span in spans]
    assert list(columns.starts) == [span.start for span in spans]
    assert not any(span.is_tombstone for span in spans)
    wanted = bytes(wanted or [1] * len(spans))
    kept = [span for span, want in zip(spans, wanted, strict=True) if want]
    assert retain_columns(batch, header, columns, wanted) == retain(batch, header, spans_in(data, header), kept, 0)
    return True


KEYS = st.binary(max_size=70)
VALUES = st.one_of(st.binary(max_size=200), st.just(b"v" * 100), st.just(b"w" * 9000))
TIMES = st.one_of(st.integers(0, 100), st.integers(-20_000, 3_000_000))


@st.composite
def batches(draw):
    """Draw a batch whose records resemble each other, with gaps between some of the offsets."""
    keys = draw(st.lists(KEYS, min_size=1, max_size=3))
    values = draw(st.lists(VALUES, min_size=1, max_size=3))
    times = draw(st.lists(TIMES, min_size=1, max_size=3))
    chance = draw(st.randoms(use_true_random=False))
    stays = draw(st.integers(1, 40))
    gaps = draw(st.sampled_from([(1,), (1, 1, 1, 5), (1, 700)]))
    delta, records = draw(st.sampled_from([0, 0, 50, 8000])), []
    for number in range(draw(st.integers(1, 120))):
        if number % stays == 0:
            key, value, time = chance.choice(keys), chance.choice(values), chance.choice(times)
        records.append(Record(delta, time, key, value))
        delta += chance.choice(gaps)
    return made(*records), bytes(chance.randrange(2) for _ in records), chance


@settings(max_examples=40)
@given(batches())
def test_columns_are_what_decoding_record_by_record_reads(drawn):
    batch, wanted, _ = drawn
    agree(batch, wanted)


@settings(max_examples=80)
@given(batches())
def test_columns_of_a_damaged_batch_are_what_decoding_reads_or_there_are_none(drawn):
    """A batch that cannot be decoded has no columns, so the cleaner keeps it as it is."""
    batch, _, chance = drawn
    damaged = bytearray(batch)
    for _ in range(chance.randrange(1, 4)):
        damaged[chance.randrange(61, len(damaged))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    header, data, columns = opened(damaged)
    if columns is not None:
        try:
            spans = spans_in(data, header).spans
        except CorruptBatch as error:
            pytest.fail(f"columns of records that cannot be decoded: {error}")
        assert columns.keys == [span.key for span in spans]
        assert list(columns.deltas) == [span.offset_delta for span in spans]


@pytest.mark.parametrize("sizes", [(100, 100), (20, 400), (0, 3)])
@pytest.mark.parametrize("steps", [(1,), (1, 1, 4)])
def test_usual_batches_have_columns(sizes, steps):
    """Records of one size and of mixed sizes, as they were sent and with gaps that compaction left."""
    chance = random.Random(1)
    delta, time, records = 0, 0, []
    for _ in range(10_000):
        records.append(Record(delta, time, b"%08d" % chance.randrange(10**8), chance.randbytes(chance.randint(*sizes))))
        delta += chance.choice(steps)
        time += chance.random() < 0.05
    assert agree(made(*records), [chance.randrange(2) for _ in records])


def test_header_fields_and_null_keys_and_tombstones_have_none():
    usual = [Record(number, 0, b"key", b"value") for number in range(50)]
    assert agree(made(*usual))
    for odd in (Record(50, 0, None, b"v"), Record(50, 0, b"k", None), Record(50, 0, b"k", b"v", (("n", b"v"),))):
        assert not agree(made(*usual, odd))
        assert not agree(made(odd._replace(offset_delta=0)))


def test_records_that_do_not_fill_the_bytes_have_none():
    batch = made(*[Record(number, 0, b"key", b"value") for number in range(50)])
    header, data, columns = opened(batch)
    assert columns is not None
    for count in (0, 1, 49, 51, 1 << 30):
        assert columns_of(data, header._replace(record_count=count)) is None
    assert columns_of(data, header._replace(last_offset_delta=48)) is None
    assert columns_of(b"", header) is None
