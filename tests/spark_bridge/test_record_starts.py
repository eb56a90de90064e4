"""Where records start: many chains at once give what a walk from record to record gives, or the same error."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.record.batch import CorruptBatch, read_header
from broker.record.records import BatchRecord, encode_batch, records_data
from spark_bridge.reading import record_starts as module
from spark_bridge.reading.record_starts import PADDING_BYTES, record_starts

T0 = 1_700_000_000_000


@pytest.fixture(autouse=True)
def chains_for_few_records_too(monkeypatch):
    monkeypatch.setattr(module, "_CHAINED_RECORDS_MIN", 1)
    monkeypatch.setattr(module, "_RECORD_BYTES_MAX", 100_000)


def records_of(values):
    """Return the bytes of records with these values, and their number."""
    rows = [BatchRecord(n, 7 * n, b"key" if n % 3 else None, value) for n, value in enumerate(values)]
    batch = encode_batch(rows, base_timestamp_ms=T0)
    return bytes(records_data(batch, read_header(batch), 0, 1 << 30)), len(rows)


def walked(parts, counts):
    starts, base, plain = [], 0, b"".join(parts) + bytes(PADDING_BYTES)
    for part, count in zip(parts, counts, strict=True):
        module._walk(plain, base, base + len(part), count, starts)
        base += len(part)
    return starts


def chained(parts, counts):
    return record_starts(b"".join(parts) + bytes(PADDING_BYTES), [len(part) for part in parts], counts).tolist()


contents = st.sampled_from([b"\0", b"a", b"\x20\0\0\0", b"\xff", b"\x10\0\0\x02\x01\x06abc\0", b"\xc8\x01\0"])
run = st.tuples(contents, st.integers(0, 300), st.integers(1, 60))  # records of one length, then of another
batch = st.lists(run, min_size=1, max_size=6).map(
    lambda runs: [(content * length)[:length] for content, length, times in runs for _ in range(times)]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(batch, min_size=1, max_size=5))
def test_runs_of_equal_lengths_and_changes_between_them(batches):
    parts, counts = zip(*map(records_of, batches), strict=True)
    assert chained(parts, counts) == walked(parts, counts)


@settings(max_examples=100, deadline=None)
@given(batch, st.integers(0, 10**6), st.integers(0, 255), st.integers(-1, 1))
def test_lengths_that_lie_give_the_same_error_or_the_same_records(values, position, byte, more):
    part, count = records_of(values)
    damaged = bytearray(part)
    damaged[position % len(part)] = byte
    parts, counts = [part, bytes(damaged), part], [count, count + more, count]
    try:
        expected = walked(parts, counts)
    except (CorruptBatch, IndexError):
        with pytest.raises(CorruptBatch):
            chained(parts, counts)
    else:
        assert chained(parts, counts) == expected


@pytest.mark.parametrize("records", [10, 1_000, 10_000])
@pytest.mark.parametrize("sizes", [(100, 100), (60, 140), (0, 400)])
def test_usual_records_need_no_walk(records, sizes):
    """Random bytes hold many places that look like records; steps from a wrong place soon meet the right ones."""
    chance = random.Random(records)
    batches = [[chance.randbytes(chance.randint(*sizes)) for _ in range(records)] for _ in range(10_000 // records)]
    parts, counts = zip(*map(records_of, batches), strict=True)
    at = np.frombuffer(b"".join(parts) + bytes(PADDING_BYTES), np.uint8)
    starts = module._by_chains(at, np.array([len(part) for part in parts]), np.array(counts))
    assert starts is not None and starts.tolist() == walked(parts, counts)


def test_records_inside_of_records_are_not_taken_for_theirs():
    """A dead letter may hold whole batches: the chains through them do not fit, and the walk decides."""
    inner, _ = records_of([b"x" * 80] * 200)
    part, count = records_of([inner, b"y"] * 40)
    assert chained([part], [count]) == walked([part], [count])


def test_no_records_have_no_starts():
    assert chained([b"", b""], [0, 0]) == []
    part, count = records_of([b"a"] * 50)
    assert chained([b"", part, b""], [0, count, 0]) == walked([part], [count])
