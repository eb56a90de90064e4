"""A checksum of rows: the same however they are cut, another for any change."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_bridge.output.row_sum import RowSum, combine
from spark_bridge.reading.row import arrow_schema

NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "id")
SCHEMA = arrow_schema(NAMES)
HEADERS = [{"key": "trace", "value": b"1"}, {"key": "none", "value": None}]


def rows(number):
    return [
        dict.fromkeys(NAMES) | {
            "key": b"k" * (n % 3) if n % 2 else None,
            "value": b"%d" % n,
            "topic": "flights",
            "partition": 0,
            "offset": n,
            "timestamp": n,
            "headers": HEADERS if n % 4 == 1 else None,
        }
        for n in range(number)
    ]  # fmt: skip


def sum_of(parts):
    total = RowSum()
    for part in parts:
        total.add(part)
    return total.digest()


def batch(some):
    return pa.RecordBatch.from_pylist(some, SCHEMA)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=4).map(sorted))
def test_it_does_not_depend_on_the_batches(cuts):
    whole = batch(rows(40))
    edges = [0, *cuts, 40]
    parts = [whole.slice(a, b - a) for a, b in zip(edges, edges[1:], strict=False)]
    assert sum_of(parts) == sum_of([whole])


@pytest.mark.parametrize(
    "change",
    [
        lambda some: some[:-1],
        lambda some: some + some[-1:],
        lambda some: [some[1], some[0], *some[2:]],
        lambda some: [some[0] | {"key": b""}, *some[1:]],
        lambda some: [some[0] | {"value": None}, *some[1:]],
        lambda some: [some[0] | {"offset": 99}, *some[1:]],
        lambda some: [some[0] | {"timestamp": None}, *some[1:]],
        lambda some: [some[0] | {"headers": []}, *some[1:]],
        lambda some: [some[0], some[1] | {"headers": HEADERS[:1]}, *some[2:]],
        lambda some: [some[0] | {"value": some[0]["value"] + b"1"}, some[1] | {"value": b""}, *some[2:]],
    ],
)
def test_any_change_gives_another(change):
    assert sum_of([batch(change(rows(9)))]) != sum_of([batch(rows(9))])


def test_bytes_behind_a_null_do_not_count():
    hidden = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(pa.array([0, 1, 3], pa.int32()).buffers()[1]),
                         pa.py_buffer(b"abc")],
    )  # fmt: skip
    plain = pa.array([b"a", None], pa.binary())
    assert hidden.to_pylist() == plain.to_pylist()
    assert sum_of([pa.record_batch({"value": hidden})]) == sum_of([pa.record_batch({"value": plain})])


def test_it_is_the_same_in_every_version():
    """Receipts are kept for years, so the checksum of given rows never changes."""
    assert sum_of([batch(rows(9))]) == "d5d696b3b0640d26952b1cf84003e763"
    assert sum_of([]) == sum_of([batch([])]) == "14b36d7e04c3dc59133b74857a6bc90c"


def test_several_ranges_count_in_their_order():
    assert combine(["a", "b"]) != combine(["b", "a"])
    assert combine([]).startswith("crc32c:")
