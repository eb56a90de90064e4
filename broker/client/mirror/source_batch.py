"""Record batches of a source, and the batches that a mirror produces from them.

Most batches are passed on whole: only the header and the CRC change. A batch is decoded and written anew if

- its records get headers,
- offsets are missing in it, because the log was compacted: a producer's batch has none missing,
- the log set its times (LogAppendTime) or a delete horizon: a producer may not send such a batch,
- the copy begins in the middle of it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

from broker.client.consumer_core import ConsumerCore
from broker.client.log_record import Record, RecordIds
from broker.client.records import AnswerReader
from broker.record.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
    seal,
)
from broker.record.compression import codec_of
from broker.record.records import BatchRecord, StoredRecord, decode_records, encode_batch
from broker.wire.frame import FileRegion

REWRITTEN_BYTES = 512 << 10
"""Keys, values and headers of a batch that is written anew: half of what brokers take by default, so that the overhead
and records that compress worse than before find room."""

RecordEdit = Callable[[StoredRecord, int | None], StoredRecord | None]
"""Returns a record, which has this Snowflake id, as it is copied; None if it is not copied."""


class SourceBatch(NamedTuple):
    """A record batch of the source. `offset` is that of its last record; `first`, that of the first one to copy.

    `ids` are the Snowflake ids of its offsets from the base offset on.
    """

    offset: int
    topic: str
    partition: int
    first: int
    header: BatchHeader
    data: bytes
    ids: Sequence[RecordIds]


class BatchReader(AnswerReader):
    """Reads batches where AnswerReader reads records: a ConsumerCore with it hands out SourceBatches (`handed`)."""

    __slots__ = ()

    def read(self, enough_bytes: int, enough_records: int) -> list[Record]:
        """Return the next batches, without those of aborted transactions and markers."""
        fetched, batches = self._fetched.records, list[SourceBatch]()
        assert not isinstance(fetched, FileRegion), "regions are the broker's; a client has bytes"
        self.unpacked_bytes = 0
        for position, header in self._batches:
            self.next_offset = max(self.next_offset, header.last_offset + 1)
            self.leader_epoch, self.packed_bytes = header.leader_epoch, position + header.size
            if self._aborted.takes(header) or header.is_control or header.last_offset < self._from_offset:
                continue
            if header.record_count == 0:
                continue  # the cleaner leaves the last batch of a producer empty
            data = bytes(fetched[position : self.packed_bytes])
            ids = self._ids.runs(header.base_offset, header.last_offset)
            first = max(header.base_offset, self._from_offset)
            topic, partition = str(self._fetched.topic), self._fetched.partition
            batches.append(SourceBatch(header.last_offset, topic, partition, first, header, data, ids))
            self.unpacked_bytes += len(data)
            if self.unpacked_bytes >= enough_bytes or len(batches) >= enough_records:
                break
        else:
            self.is_over = True
        return cast("list[Record]", batches)  # as far as the core knows: an offset, a topic, a partition


def handed(core: ConsumerCore, batches_max: int) -> list[SourceBatch]:
    """Return the prepared batches of a core that reads with BatchReader."""
    return cast("list[SourceBatch]", core.hand_all(batches_max))


class OutgoingBatch(NamedTuple):
    """A batch for the target. `following` is the offset after its last record at the source."""

    header: BatchHeader
    data: bytes | bytearray
    following: int

    @property
    def record_count(self) -> int:
        return self.header.record_count

    def sealed(self, producer_id: int, epoch: int, sequence: int, transactional: bool = False) -> bytearray:
        """Return the batch as a producer sends it."""
        batch = bytearray(self.data)
        kept = self.header.attributes & COMPRESSION_MASK
        header = self.header._replace(
            base_offset=0,
            leader_epoch=-1,
            attributes=kept | (TRANSACTIONAL_BIT if transactional else 0),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        seal(batch, header)
        return batch


def outgoing(batch: SourceBatch, edit: RecordEdit | None = None) -> list[OutgoingBatch]:
    """Return the batches to produce: one, several if the batch has to be divided, none if nothing of it is copied.

    Raise CorruptBatch if the batch has to be written anew and cannot be decoded.
    """
    if edit is None and _can_be_whole(batch):
        return [OutgoingBatch(batch.header, batch.data, batch.offset + 1)]
    return list(_rewritten(batch, edit))


def _can_be_whole(batch: SourceBatch) -> bool:
    header = batch.header
    is_dense = header.record_count == header.last_offset_delta + 1 and batch.first == header.base_offset
    return is_dense and not header.attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT)


def _rewritten(batch: SourceBatch, edit: RecordEdit | None) -> Iterator[OutgoingBatch]:
    records: list[StoredRecord] = []
    size = 0
    for record in decode_records(batch.data, check=False):
        if record.offset < batch.first:
            continue
        if edit is not None:
            edited = edit(record, _id_at(batch, record.offset))
            if edited is None:
                continue
            record = edited
        record_bytes = _bytes_of(record)
        if records and size + record_bytes > REWRITTEN_BYTES:
            yield _encoded(records, batch)
            records, size = [], 0
        records.append(record)
        size += record_bytes
    if records:
        yield _encoded(records, batch)


def _encoded(records: Sequence[StoredRecord], batch: SourceBatch) -> OutgoingBatch:
    base_ms = records[0].timestamp_ms
    data = encode_batch(
        (
            BatchRecord(index, record.timestamp_ms - base_ms, record.key, record.value, record.headers)
            for index, record in enumerate(records)
        ),
        base_timestamp_ms=base_ms,
        codec=codec_of(batch.header.compression),
    )
    return OutgoingBatch(read_header(data), data, records[-1].offset + 1)


def _bytes_of(record: StoredRecord) -> int:
    """Return about the bytes of a record in a batch."""
    headers = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + HEADER_BYTES // 4


def _id_at(batch: SourceBatch, offset: int) -> int | None:
    """Return the Snowflake id of an offset of the batch, None without one."""
    delta = offset - batch.header.base_offset
    for run in batch.ids:
        if delta < run.end:
            return None if run.first_id is None else run.first_id + delta
    return None
