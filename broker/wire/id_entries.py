"""Entries of an id index: the ids of a run of offsets. They are stored beside each segment, and sent in the answers to
Fetch requests that ask for ids (broker.wire.tags).

    0                 4                 8                        16        20
    +-----------------+-----------------+------------------------+---------+
    | relative offset | number of       | first id               | check   |
    | u32             | offsets u32     | i64                    | crc-32c |
    +-----------------+-----------------+------------------------+---------+

The relative offset counts from the segment's base offset. The ids of a run are consecutive. The check covers the
sixteen bytes before it and is seeded with the base offset, so that an entry of another segment fails the check.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

ENTRY_BYTES = 20
_FIELDS = struct.Struct(">IIq")
_ENTRY = struct.Struct(">IIqI")
_SEED = struct.Struct(">q")
_entry_of = tuple.__new__  # makes a named tuple at half the price


class IdEntry(NamedTuple):
    """A run of `length` offsets from `offset` (absolute), whose ids count up from `first_id`."""

    offset: int
    length: int
    first_id: int


@lru_cache(maxsize=1_024)  # a follower gets the entries of few segments at a time
def seed_of(base_offset: int) -> int:
    """Return the check's seed, which is the same for all entries of a segment."""
    return crc32c(_SEED.pack(base_offset))


def pack_entry(seed: int, relative_offset: int, count: int, first_id: int) -> bytes:
    check = crc32c(_FIELDS.pack(relative_offset, count, first_id), seed)
    return _ENTRY.pack(relative_offset, count, first_id, check)


def read_entry(data: bytes | bytearray | memoryview, position: int, base_offset: int, seed: int) -> IdEntry | None:
    """Return the entry at `position`, or None if it is cut off, fails its check or counts no offset."""
    if len(data) - position < ENTRY_BYTES:
        return None
    relative_offset, count, first_id, check = _ENTRY.unpack_from(data, position)
    if count == 0 or crc32c(memoryview(data)[position : position + 16], seed) != check:
        return None
    return IdEntry(base_offset + relative_offset, count, first_id)


def read_entries(data: bytes | bytearray | memoryview, base_offset: int) -> Iterator[IdEntry]:
    """Iterate over the entries before the first invalid one."""
    seed, view = seed_of(base_offset), memoryview(data)
    for position in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        relative_offset, count, first_id, check = _ENTRY.unpack_from(data, position)
        if count == 0 or crc32c(view[position : position + 16], seed) != check:
            return
        yield _entry_of(IdEntry, (base_offset + relative_offset, count, first_id))
