"""The newest write of a log that other brokers copy, in memory until they have it.

Followers are mostly at the log's end, so they fetch the newest batches. From memory the answer costs no read of a file
and no search in an index. The log keeps a small write only, because many partitions may be written to at once.
"""

from collections.abc import Sequence

from broker.log.storage.port import Buffer
from broker.wire.fetch import IdRegion
from broker.wire.id_entries import pack_entry, seed_of

BYTES_MAX = 2_048


class NewestWrite:
    """The batches of one write as they lie in the log, from `base_offset` on, and their ids."""

    __slots__ = ("base_offset", "records", "ids")

    def __init__(self, base_offset: int, records: Buffer, runs: Sequence[tuple[int, int]]) -> None:
        """`runs` are the ids of all offsets, each as its first id and their number."""
        self.base_offset = base_offset
        self.records = bytes(records)
        seed, at, entries = seed_of(base_offset), 0, b""
        for first_id, length in runs:
            entries += pack_entry(seed, at, length, first_id)
            at += length
        self.ids = IdRegion(base_offset, entries)
