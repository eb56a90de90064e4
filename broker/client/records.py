"""Decoding the answer of a Fetch into records with their Snowflake ids.

A few bytes may unpack to a hundred megabytes, so an AnswerReader unpacks as many batches as its caller needs.

A poison batch has a valid CRC, but its records cannot be decoded. A reader that raised an error would stop there for
ever, because a retry does not help. Therefore the reader returns a PoisonBatch and continues after it.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from broker.client.errors import MissingId
from broker.client.log_record import NO_IDS, Record, RecordIds, usual_records
from broker.record.batch import BatchHeader, CorruptBatch, verify, walk
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.record.id_header import id_of
from broker.record.records import decode_records, records_data
from broker.wire.fetch import FetchedPartition
from broker.wire.frame import FileRegion
from broker.wire.id_entries import IdEntry, read_entries
from broker.wire.primitives import Buffer

if TYPE_CHECKING:
    from broker.client.core import Partition

__all__ = [
    "NO_EPOCH",
    "AnswerReader",
    "OnPoison",
    "PoisonBatch",
    "Read",
    "Record",
    "read_answers",
    "read_records",
    "verify_batches",
]

NO_EPOCH = -1
LISTED_BYTES = 64 << 20
"""Unpacked bytes after which a list of records ends, with its batch. It is the size of the largest usual answers, and a
consumer's prefetch limit."""


@dataclass(frozen=True, slots=True)
class PoisonBatch:
    """A batch with a valid CRC whose records cannot be decoded. `data` is the whole batch as it lies in the log."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    first_id: int | None
    """The id of the base offset; None if the broker gave none."""
    reason: str
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        offsets = f"offsets {self.base_offset} to {self.last_offset}"
        return f"{self.topic}-{self.partition}, batch of {offsets}: {self.reason}"


OnPoison: TypeAlias = Callable[[PoisonBatch], object]


class Read(NamedTuple):
    """The decoded answer of a Fetch."""

    records: list[Record]
    next_offset: int
    """The offset to fetch next, past all records and poison batches."""
    poison: tuple[PoisonBatch, ...]
    leader_epoch: int = NO_EPOCH
    """The leader epoch of the last batch, NO_EPOCH without a batch."""


def verify_batches(fetched: FetchedPartition, from_offset: int) -> tuple[int, int]:
    """Return the offset to fetch next and the leader epoch of the last batch, and decode no record.

    `read_records` returns the same offset and epoch. Raise CorruptBatch if a CRC is wrong.
    """
    data = fetched.records
    assert not isinstance(data, FileRegion), "regions are the broker's; a client has bytes"
    following, epoch = from_offset, NO_EPOCH
    try:
        for position, header in walk(data):
            verify(data, header, position)
            following, epoch = max(following, header.last_offset + 1, header.base_offset + 1), header.leader_epoch
    except CorruptBatch as error:
        raise _named(fetched, following, error) from None
    return following, epoch


class AnswerReader:
    """Read the batches of one partition's answer, as many as the caller asks for at a time.

    A batch that is cut off is left for the next fetch. Records of aborted transactions are skipped if the answer lists
    these transactions, as it does at READ_COMMITTED. A batch that unpacks to more than `max_bytes` is a poison batch.
    Without `check` the CRCs are known to be right (`verify_batches`).
    """

    __slots__ = (
        "next_offset", "leader_epoch", "packed_bytes", "unpacked_bytes", "poison", "is_over",
        "_fetched", "_from_offset", "_max_bytes", "_check", "_batches", "_ids", "_aborted",
    )  # fmt: skip

    def __init__(
        self,
        fetched: FetchedPartition,
        from_offset: int,
        max_bytes: int = DECOMPRESSED_BYTES_MAX,
        *,
        check: bool = True,
    ) -> None:
        assert not isinstance(fetched.records, FileRegion), "regions are the broker's; a client has bytes"
        self.next_offset = from_offset
        """The offset after the batches that were read."""
        self.leader_epoch = NO_EPOCH
        """The leader epoch of the last batch that was read."""
        self.packed_bytes = 0
        """Bytes of the batches that were read, as they came."""
        self.unpacked_bytes = 0
        """Bytes of the batches of the last `read` after decompression."""
        self.poison: list[PoisonBatch] = []
        self.is_over = False
        """True after the last batch."""
        self._fetched = fetched
        self._from_offset = from_offset
        self._max_bytes = max_bytes
        self._check = check
        self._batches = walk(fetched.records)
        self._ids = _ids_of(fetched)
        self._aborted = AbortedTransactions(fetched.aborted or ())

    def read(self, enough_bytes: int, enough_records: int) -> list[Record]:
        """Return the next records, up to the end of the batch with which they are enough.

        Raise CorruptBatch if a CRC is wrong, MissingId if the broker sends ids but not that of a record. `next_offset`
        then tells how far the reads before came, and the rest has to be fetched again.
        """
        data, ids, aborted, from_offset = self._fetched.records, self._ids, self._aborted, self._from_offset
        assert not isinstance(data, FileRegion), "regions are the broker's; a client has bytes"
        topic, partition = str(self._fetched.topic), self._fetched.partition
        decoded: list[Record] = []
        following, epoch, packed, unpacked = self.next_offset, self.leader_epoch, self.packed_bytes, 0
        for position, header in self._batches:
            if self._check:
                try:
                    verify(data, header, position)
                except CorruptBatch as error:
                    raise _named(self._fetched, following, error) from None
            following, epoch = max(following, header.last_offset + 1, header.base_offset + 1), header.leader_epoch
            packed = position + header.size
            if aborted.takes(header) or header.is_control or header.last_offset < from_offset:
                continue
            batch = data[position:packed]
            try:
                records = bytes(records_data(batch, header, 0, self._max_bytes))
                decoded += _decode(records, batch, header, ids, from_offset, self._max_bytes, topic, partition)
            except CorruptBatch as error:
                first_id = ids.find(header.base_offset)
                self.poison.append(_poison(self._fetched, header, first_id, str(error), bytes(batch)))
                continue
            unpacked += len(records)
            if unpacked >= enough_bytes or len(decoded) >= enough_records:
                break
        else:
            self.is_over = True
        self.next_offset, self.leader_epoch = following, epoch
        self.packed_bytes, self.unpacked_bytes = packed, unpacked
        return decoded


def read_records(
    fetched: FetchedPartition,
    from_offset: int,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    *,
    enough_bytes: int = sys.maxsize,
) -> Read:
    """Return the records and the poison batches from `from_offset` on, up to the batch with which they are enough.

    AnswerReader says which batches are left out, and what is raised.
    """
    return _read(AnswerReader(fetched, from_offset, max_bytes), enough_bytes)


def read_answers(
    answers: "Mapping[Partition, FetchedPartition]", offsets: "Mapping[Partition, int]", max_bytes: int
) -> "dict[Partition, Read]":
    """Return the records of several partitions, with LISTED_BYTES and one batch at most.

    Partitions after that come without records and with the offset that was asked for, to be fetched again.
    """
    records, left = {}, LISTED_BYTES
    for key, fetched in answers.items():
        if left > 0:
            reader = AnswerReader(fetched, offsets[key], max_bytes)
            records[key] = _read(reader, left)
            left -= reader.unpacked_bytes
        else:
            records[key] = Read([], offsets[key], ())
    return records


def _read(reader: AnswerReader, enough_bytes: int) -> Read:
    records = reader.read(enough_bytes, sys.maxsize)
    return Read(records, reader.next_offset, tuple(reader.poison), reader.leader_epoch)


def _decode(
    data: bytes,
    batch: Buffer,
    header: BatchHeader,
    ids: "_Ids | _NoIds",
    from_offset: int,
    max_bytes: int,
    topic: str,
    partition: int,
) -> Iterable[Record]:
    """Return a batch's records from `from_offset` on, by the fast decoder or else by the general one.

    `data` are the bytes of the records after decompression.
    """
    records = usual_records(data, header, ids.runs(header.base_offset, header.last_offset), topic, partition)
    if records is None:
        records = [
            Record(record.offset, ids.at(record.offset), *record[1:], header.compression, topic, partition)
            for record in decode_records(batch, max_bytes=max_bytes, check=False)
            if record.offset >= from_offset
        ]
    elif header.base_offset < from_offset:
        records = [record for record in records if record.offset >= from_offset]
    return records if isinstance(ids, _Ids) else _with_header_ids(records)


def _with_header_ids(records: list[Record]) -> list[Record]:
    """Take the ids from the records' headers, because the broker sent none."""
    return [record._replace(id=id_of(record.headers)) if record.headers else record for record in records]


def _named(fetched: FetchedPartition, offset: int, error: CorruptBatch) -> CorruptBatch:
    """Return the error of a damaged batch with the partition and the offset at which it was to begin."""
    return CorruptBatch(f"{fetched.topic}-{fetched.partition} at offset {offset}: {error}")


def _poison(
    fetched: FetchedPartition, header: BatchHeader, first_id: int | None, reason: str, data: bytes
) -> PoisonBatch:
    topic, partition = str(fetched.topic), fetched.partition
    return PoisonBatch(topic, partition, header.base_offset, header.last_offset, first_id, reason, data)


class AbortedTransactions:
    """The aborted transactions in the range of a READ_COMMITTED fetch (KIP-98), given as (producer id, first offset).

    Each ends at its marker.
    """

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        self._to_come = deque(sorted(transactions, key=lambda transaction: transaction[1]))
        self._on: set[int] = set()

    def takes(self, header: BatchHeader) -> bool:
        """Return True if a batch is part of an aborted transaction. Call it for each batch, in order."""
        while self._to_come and self._to_come[0][1] <= header.last_offset:
            self._on.add(self._to_come.popleft()[0])
        of_one = header.is_transactional and header.producer_id in self._on
        if of_one and header.is_control:
            self._on.discard(header.producer_id)
        return of_one


class _Ids:
    """A look-up of ids by offset; the offsets must rise."""

    def __init__(self, partition: str, entries: Iterable[IdEntry]) -> None:
        self._partition = partition
        self._entries = list(entries)
        self._next = 0  # the first entry that does not end before the last offset asked for

    def at(self, offset: int) -> int:
        """Return the id of an offset. Raise MissingId."""
        self._skip_to(offset)
        entry = self._entries[self._next] if self._next < len(self._entries) else None
        if entry is None or entry.offset > offset:
            raise MissingId(self._partition, offset)
        return entry.first_id + offset - entry.offset

    def find(self, offset: int) -> int | None:
        """Return the id of an offset, None if the broker did not send it."""
        try:
            return self.at(offset)
        except MissingId:
            return None

    def runs(self, first: int, last: int) -> Sequence[RecordIds]:
        """Return the ids of a batch's offsets, up to the first offset without one."""
        self._skip_to(first)
        runs: list[RecordIds] = []
        offset = first
        for entry in islice(self._entries, self._next, None):
            if offset > last or entry.offset > offset:
                break
            offset = entry.offset + entry.length
            runs.append(RecordIds(offset - first, entry.first_id + first - entry.offset))
        return runs

    def _skip_to(self, offset: int) -> None:
        entries, at = self._entries, self._next
        while at < len(entries) and entries[at].offset + entries[at].length <= offset:
            at += 1
        self._next = at


class _NoIds:
    """The ids of a broker other than Flakelog."""

    def at(self, offset: int) -> None:
        return None

    find = at

    def runs(self, first: int, last: int) -> Sequence[RecordIds]:
        return NO_IDS


def _ids_of(fetched: FetchedPartition) -> _Ids | _NoIds:
    if fetched.ids is None:
        return _NoIds()
    entries = fetched.ids.entries
    assert not isinstance(entries, FileRegion), "regions are the broker's; a client has bytes"
    return _Ids(f"{fetched.topic}-{fetched.partition}", read_entries(entries, fetched.ids.base_offset))
