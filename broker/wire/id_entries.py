"""Entries of an id index: which ids a run of offsets has. On disk beside each segment, and in the Fetch answers of
those who ask (broker.wire.tags).

    0                 4                 8                        16        20
    +-----------------+-----------------+------------------------+---------+
    | relative offset | number of       | first id               | check   |
    | u32             | offsets u32     | i64                    | crc-32c |
    +-----------------+-----------------+------------------------+---------+

The relative offset counts from the segment's base offset. The ids of a run are consecutive. The check covers the
sixteen bytes before it and is seeded with the base offset, so an entry that strayed in from another segment fails.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

ENTRY_BYTES = 20
_FIELDS = struct.Struct(">IIq")
_ENTRY = struct.Struct(">IIqI")
_SEED = struct.Struct(">q")


class IdEntry(NamedTuple):
    """`length` offsets from `offset` (absolute) on have the ids from `first_id` on."""

    offset: int
    length: int
    first_id: int


def seed_of(base_offset: int) -> int:
    """The check's seed; worth keeping, it is the same for all entries of a segment."""
    return crc32c(_SEED.pack(base_offset))


def pack_entry(seed: int, relative_offset: int, count: int, first_id: int) -> bytes:
    check = crc32c(_FIELDS.pack(relative_offset, count, first_id), seed)
    return _ENTRY.pack(relative_offset, count, first_id, check)


def read_entry(data: bytes | bytearray | memoryview, position: int, base_offset: int, seed: int) -> IdEntry | None:
    """The entry at `position`, or None where its check does not hold or it counts no offset."""
    if len(data) - position < ENTRY_BYTES:
        return None
    relative_offset, count, first_id, check = _ENTRY.unpack_from(data, position)
    if count == 0 or crc32c(memoryview(data)[position : position + 16], seed) != check:
        return None
    return IdEntry(base_offset + relative_offset, count, first_id)


def read_entries(data: bytes | bytearray | memoryview, base_offset: int) -> Iterator[IdEntry]:
    """All entries up to the first that is not valid."""
    seed = seed_of(base_offset)
    for position in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        entry = read_entry(data, position, base_offset, seed)
        if entry is None:
            return
        yield entry
