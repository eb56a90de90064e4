"""The newest write of a log that other brokers copy, in memory until they have it.

Followers are mostly at the log's end, so they fetch the newest batches. From memory the answer costs no read of a file
and no search in an index. The log keeps a small write only, because many partitions may be written to at once.
"""

from broker.log.storage.port import Buffer
from broker.wire.fetch import IdRegion

BYTES_MAX = 2_048


class NewestWrite:
    """The batches of one write as they lie in the log, from `base_offset` on, and their ids."""

    __slots__ = ("base_offset", "records", "ids")

    def __init__(self, base_offset: int, records: Buffer, ids: IdRegion) -> None:
        """`ids` are the entries that the segment's index got for this write."""
        self.base_offset = base_offset
        self.records = bytes(records)
        self.ids = ids
