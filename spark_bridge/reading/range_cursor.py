"""A cursor that reads a range by position: it selects the batches of a fetch and detects missing data.

A count of records cannot prove that a read is complete, because control batches use up offsets and compaction removes
records. The position can. It is the next wanted offset, and only complete, verified batches move it from the range's
start to its end. In a log without compaction, each batch begins where the previous one ended and has a record for each
of its offsets. Anything else is data loss, an error that names the offsets.
"""

from broker.record.batch import CorruptBatch, verify, walk
from broker.wire.primitives import Buffer
from spark_bridge.reading.arrow_decode import PlacedBatch
from spark_bridge.reading.offset_range import OffsetRange


class DataLoss(Exception):
    """The log does not have the whole range, or never had it; the message names the missing offsets."""


class RangeCursor:
    """The position of a reader in `within`. `compacted` allows missing offsets, as after compaction."""

    def __init__(self, within: OffsetRange, *, compacted: bool = False) -> None:
        self.within = within
        self.position = within.start
        """The next wanted offset; `within.end` at the end of the range."""
        self._compacted = compacted

    @property
    def done(self) -> bool:
        return self.position >= self.within.end

    def accept(self, data: Buffer) -> list[PlacedBatch]:
        """Return the verified batches to decode from one fetch at `position`, without control batches.

        Raise CorruptBatch for damage, DataLoss for a gap. `data` may end in an incomplete batch. An incomplete first
        batch is an error, because Kafka sends it whole, whatever its size (KIP-74).
        """
        batches = []
        before = self.position
        for position, header in walk(data):
            if self.done:
                break
            try:
                verify(data, header, position)
            except CorruptBatch as error:
                raise CorruptBatch(f"{self.within.name} at offset {self.position}: {error}") from None
            if header.last_offset < self.position:
                continue  # a broker may send earlier offsets, but never start later
            self._check_continuity(header.base_offset, header.last_offset, header.record_count)
            if not header.is_control and header.base_offset < self.within.end:
                batches.append(PlacedBatch(data, position, header))
            self.position = min(header.last_offset + 1, self.within.end)
        if self.position == before and len(data):
            raise CorruptBatch(
                f"{self.within.name} at offset {before}: {len(data)} bytes came, no whole batch that has this offset"
            )
        return batches

    def _check_continuity(self, first: int, last: int, records: int) -> None:
        if self._compacted:
            return
        if first > self.position:
            raise DataLoss(
                f"{self.within.name} has no offsets {self.position} to {first - 1} of {self.within}; "
                "for a compacted topic, read it with compacted=true"
            )
        if records != last - first + 1:
            raise DataLoss(
                f"{self.within.name}: the batch of offsets {first} to {last} has {records} records; "
                "for a compacted topic, read it with compacted=true"
            )
