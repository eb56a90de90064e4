"""Entries of an id index: twenty bytes each, with a check that binds them to their segment."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.id_entries import ENTRY_BYTES, IdEntry, pack_entry, read_entries, read_entry, seed_of

BASE = 10**12


def entries_of(*entries):
    return b"".join(pack_entry(seed_of(BASE), *entry) for entry in entries)


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**62))
def test_an_entry_comes_back(relative, count, first_id, base):
    data = pack_entry(seed_of(base), relative, count, first_id)
    assert len(data) == ENTRY_BYTES
    assert read_entry(memoryview(b"x" + data), 1, base, seed_of(base)) == IdEntry(base + relative, count, first_id)


def test_the_layout_is_what_the_docstring_draws():
    """The layout is on disks and on the wire, so a change of it is a change of format."""
    fields = struct.pack(">IIq", 3, 2, 99)
    assert pack_entry(seed_of(BASE), 3, 2, 99) == fields + struct.pack(">I", crc32c(struct.pack(">q", BASE) + fields))


def test_any_changed_bit_is_told():
    data = entries_of((5, 3, 2**62))
    for bit in range(8 * ENTRY_BYTES):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert read_entry(changed, 0, BASE, seed_of(BASE)) is None


@pytest.mark.parametrize("data", [b"", bytes(19), bytes(20), b"\xff" * 20])
def test_what_is_no_entry_is_none(data):
    """File systems show zeros for a page that was never written."""
    assert read_entry(data, 0, BASE, seed_of(BASE)) is None
    assert list(read_entries(data, BASE)) == []


def test_an_entry_of_another_segment_is_none():
    assert read_entry(entries_of((0, 1, 5)), 0, BASE + 1, seed_of(BASE + 1)) is None


def test_reading_ends_at_the_first_entry_that_is_not_valid():
    data = bytearray(entries_of((0, 1, 5), (1, 1, 6), (2, 1, 7)))
    data[ENTRY_BYTES] ^= 1
    assert list(read_entries(data, BASE)) == [IdEntry(BASE, 1, 5)]
    assert len(list(read_entries(entries_of((0, 1, 5), (1, 1, 6)) + b"half", BASE))) == 2
