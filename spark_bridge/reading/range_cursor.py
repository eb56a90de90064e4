"""A cursor that reads a range by position: it selects the batches of a fetch and detects missing data.

A count of records cannot prove that a read is complete, because control batches use up offsets and compaction removes
records. The position can. It is the next wanted offset, and only complete, verified batches move it from the range's
start to its end. In a log without compaction, each batch begins where the previous one ended and has a record for each
of its offsets. Anything else is data loss: an error or a report that names the offsets.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from broker.client.records import AbortedTransactions
from broker.record.batch import BatchHeader, CorruptBatch, verify, walk
from broker.record.records import decode_records
from broker.wire.primitives import Buffer
from coordination.errors import FlakelogError
from spark_bridge.reading.arrow_decode import PlacedBatch
from spark_bridge.reading.offset_range import OffsetRange

Aborted: TypeAlias = Iterable[tuple[int, int]]
"""Aborted transactions of a fetch, each as (producer id, first offset)."""

OnLost: TypeAlias = Callable[[OffsetRange, str], object]
"""Gets a range of missing offsets, and the reason."""


_COMPACTED = "if the topic was compacted once, read it with compacted=true, or --compacted"


class DataLoss(FlakelogError):
    """The log does not have the whole range, or never had it; the message names the missing offsets."""


class RangeCursor:
    """The position of a reader in `within`. `compacted` allows missing offsets, as after compaction.

    Missing offsets raise DataLoss. With `on_lost`, the cursor passes them to it instead, each once.
    """

    def __init__(self, within: OffsetRange, *, compacted: bool = False, on_lost: OnLost | None = None) -> None:
        self.within = within
        self.position = within.start
        """The next wanted offset; `within.end` at the end of the range."""
        self.passed_offsets = self.passed_bytes = 0
        """Offsets and bytes of the batches that moved the position, also where they lie outside the range."""
        self.largest_batch_bytes = 0
        self._compacted = compacted
        self._on_lost = on_lost

    @property
    def done(self) -> bool:
        return self.position >= self.within.end

    @property
    def left(self) -> int:
        """Return the number of offsets that are still wanted."""
        return self.within.end - self.position

    def accept(self, data: Buffer, aborted: Aborted = ()) -> list[PlacedBatch]:
        """Return the verified batches to decode from one fetch at `position`.

        Control batches and those of `aborted` transactions only move the position. Raise CorruptBatch for damage,
        DataLoss for a gap. `data` may end in an incomplete batch. An incomplete first batch is an error, because Kafka
        sends it whole, whatever its size (KIP-74).
        """
        batches = []
        before = self.position
        transactions = AbortedTransactions(aborted)
        for position, header in walk(data):
            if self.done:
                break
            try:
                verify(data, header, position)
            except CorruptBatch as error:
                raise CorruptBatch(f"{self.within.name} at offset {self.position}: {error}") from None
            is_aborted = transactions.takes(header)
            if header.last_offset < self.position:
                continue  # a broker may send earlier offsets, but never start later
            self._check_continuity(data, position, header)
            if not (header.is_control or is_aborted) and header.base_offset < self.within.end:
                batches.append(PlacedBatch(data, position, header))
            self.position = min(header.last_offset + 1, self.within.end)
            self.passed_offsets += header.last_offset - header.base_offset + 1
            self.passed_bytes += header.size
            self.largest_batch_bytes = max(self.largest_batch_bytes, header.size)
        if self.position == before and len(data):
            raise CorruptBatch(
                f"{self.within.name} at offset {before}: {len(data)} bytes came, no whole batch that has this offset"
            )
        return batches

    def skip_rest(self) -> None:
        """Move the position to the range's end; only in a log that may lack the rest of the offsets."""
        assert self._compacted, "missing offsets are data loss"
        self.position = self.within.end

    def lose(self, until: int, reason: str) -> None:
        """Move the position to `until`, or to the range's end, past offsets that the log does not have.

        Raise DataLoss with the reason, unless `on_lost` takes the report.
        """
        until = min(until, self.within.end)
        self._report(self.position, until, reason)
        self.position = until

    def _report(self, first: int, until: int, reason: str) -> None:
        if self._on_lost is None:
            raise DataLoss(reason)
        if first < until:
            self._on_lost(OffsetRange(self.within.topic, self.within.partition, first, until), reason)

    def _check_continuity(self, data: Buffer, position: int, header: BatchHeader) -> None:
        if self._compacted:
            return
        first, last = header.base_offset, header.last_offset
        if first > self.position:
            self.lose(
                first,
                f"{self.within.name} has no offsets {self.position} to {first - 1} of {self.within}; {_COMPACTED}",
            )
        if header.record_count != last - first + 1:
            count = f"the batch of offsets {first} to {last} has {header.record_count} records"
            reason = f"{self.within.name}: {count}; {_COMPACTED}"
            for missing, until in _gaps(data, position, header) if self._on_lost else [(first, last + 1)]:
                self._report(max(missing, self.position), min(until, self.within.end), reason)


def _gaps(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield each run of offsets without a record as (first, end). A batch that cannot be decoded yields none."""
    try:
        offsets: Sequence[int] = [record.offset for record in decode_records(data, position, check=False)]
    except CorruptBatch:
        return  # the reader's onPoison decides
    expected = header.base_offset
    for offset in [*offsets, header.last_offset + 1]:
        if expected < offset:
            yield expected, offset
        expected = offset + 1
