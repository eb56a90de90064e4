"""Reading a range to its end by position: which batches of a fetch belong to it, and whether anything is missing.

A reader that counts records cannot know it has them all: control batches take offsets, compaction takes records. The
position can: it is the next offset wanted, moved only by whole, verified batches, from the range's start to its end.
Where the log is not compacted each batch begins where the last one ended and has a record for each of its offsets;
anything else is data lost, and an error that names the offsets.
"""

from broker.record.batch import CorruptBatch, verify, walk
from broker.wire.primitives import Buffer
from spark_bridge.arrow_decode import PlacedBatch
from spark_bridge.offset_range import OffsetRange


class DataLoss(Exception):
    """The log no longer has, or never had, all of the range; the message names what is missing."""


class RangeCursor:
    """Where a reader of `within` stands. `compacted` allows offsets to be missing, as compaction leaves them."""

    def __init__(self, within: OffsetRange, *, compacted: bool = False) -> None:
        self.within = within
        self.position = within.start
        """The next offset wanted; `within.end` when all was seen."""
        self._compacted = compacted

    @property
    def done(self) -> bool:
        return self.position >= self.within.end

    def accept(self, data: Buffer) -> list[PlacedBatch]:
        """The batches to decode from one fetch at `position`, each verified; control batches are passed over.

        Raises CorruptBatch for damage, DataLoss for a gap. `data` may end in a batch that is cut short, but a first
        batch that is cut is an error: Kafka sends it whole, whatever its size (KIP-74).
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
                continue  # a broker may begin earlier, never later
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
