"""A partition's state of its producers (KIP-98, KIP-360): the last five batches of each, and open transactions.

A batch that repeats one of the five is a duplicate, answered with the first one's offset. A batch that does not follow
the last one is out of order. An unknown producer may begin at any sequence, because its state may have expired. A
transaction begins in the partition with its first batch and ends with a marker. Offsets from the start of the first
open transaction on are not stable.

State is saved in snapshots in Kafka's format, named by the offset at which they were taken. Recovery replays batches
past the snapshot from headers and markers. Kafka saves the last batch of each producer, we save all five: a client may
repeat several batches that were in flight when the broker stopped.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from crc32c import crc32c

from broker.log.index.txn_index import AbortedTransaction
from broker.log.verification import Verification
from broker.record.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader
from broker.record.control import Marker
from broker.wire.errors import ApiError, ErrorCode

BATCHES_KEPT = 5  # a producer has at most this many in flight (max.in.flight.requests.per.connection)
SUFFIX = ".snapshot"

_SEQUENCES = 2**31
_VERSION = 1
_SNAPSHOT = struct.Struct(">hIi")  # version, crc, number of entries
_ENTRY_FORMAT = "qhiqiqiq"
_ENTRY = struct.Struct(f">{_ENTRY_FORMAT}")
_ENTRIES = [struct.Struct(f">{_ENTRY_FORMAT * number}") for number in range(BATCHES_KEPT + 1)]
_CRC_START = 6
_NO_COORDINATOR_EPOCH = -1
_NO_TRANSACTION = -1
NOT_KNOWN = -1


class ProducedBatch(NamedTuple):
    """An appended batch: its first and last sequence and offset, all inclusive."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ActiveProducer(NamedTuple):
    """A producer in a DescribeProducers response; -1 for unknown values."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    first_offset: int


class LastRecords(NamedTuple):
    """What the cleaner must keep, so that the log tells each producer's next sequence, also after a truncation.

    A truncation takes nothing below the high watermark. So the last batch and the last marker below it count.
    """

    offsets: dict[int, int]
    """The last offset of a producer's last batch, by producer id."""
    epochs: dict[int, int]
    """The epoch of a producer whose last marker has ended the epoch of its batches, by producer id."""
    unsettled: set[int]
    """Producers of which no batch or marker below the high watermark is known, only later ones."""


class _Producer:
    __slots__ = ("epoch", "batches", "seen_ms", "coordinator_epoch", "first_offset", "marked_by", "entries")

    def __init__(self, epoch: int, seen_ms: int) -> None:
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)
        self.seen_ms = seen_ms
        self.coordinator_epoch = _NO_COORDINATOR_EPOCH
        self.first_offset = _NO_TRANSACTION
        """First offset of its open transaction."""
        self.marked_by = -1
        """An offset at or past its last marker; a snapshot does not have the marker's own."""
        self.entries: bytes | None = None
        """The producer's packed snapshot entries; None after a change."""

    def pack(self, producer_id: int) -> bytes:
        """Return an entry for each batch, the last batch last, because Kafka takes the last entry of a producer."""
        others = self.seen_ms, self.coordinator_epoch, self.first_offset
        if not self.batches:
            self.entries = _ENTRY.pack(producer_id, self.epoch, NO_SEQUENCE, -1, 0, *others)
            return self.entries
        fields: list[int] = []
        for _, sequence, base_offset, last_offset, _ in self.batches:
            fields += (producer_id, self.epoch, sequence, last_offset, last_offset - base_offset, *others)
        self.entries = _ENTRIES[len(self.batches)].pack(*fields)
        return self.entries

    def at_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerState:
    """All producers of a partition, longest silent first: at most `producers_max`, and those with open transactions."""

    def __init__(self, producers_max: int) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._producers_max = producers_max
        self._open: dict[int, int] = {}
        """First offset of each open transaction by producer id, in order of their first offsets."""
        self._undecided: deque[tuple[int, int]] = deque()
        """(first offset, marker's offset) of ended transactions whose marker may be at or past the high watermark.
        Both offsets rise: a transaction that begins later than one with a later marker is left out."""
        self.verifications: dict[int, Verification] = {}
        """By producer id: the question whether its transaction has this partition, and its answer."""

    def __len__(self) -> int:
        return len(self._producers)

    # --- transactions --------------------------------------------------------------------------------------------

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return where the first transaction without a marker below the high watermark begins, None if all have one."""
        undecided = self._undecided
        if not undecided and not self._open:  # the usual case, and every fetch calls this
            return None
        while undecided and undecided[0][1] < high_watermark:
            undecided.popleft()
        first_open = next(iter(self._open.values()), None)
        if not undecided:
            return first_open
        first = undecided[0][0]
        return first if first_open is None else min(first, first_open)

    def open_transactions(self) -> dict[int, int]:
        """Return the first offset of each open transaction by producer id, in order of these offsets."""
        return dict(self._open)

    def first_open_offset(self, log_end_offset: int) -> int:
        """Return where the first transaction without a marker in the log begins, the log's end if all have one."""
        return next(iter(self._open.values()), log_end_offset)

    def has_open(self, producer_id: int) -> bool:
        return producer_id in self._open

    def first_offset_of(self, producer_id: int) -> int | None:
        """Return the first offset of the producer's open transaction, None if it has none."""
        return self._open.get(producer_id)

    def epoch_of(self, producer_id: int) -> int | None:
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.epoch

    def coordinator_epoch_of(self, producer_id: int) -> int:
        """Return the coordinator epoch of the producer's last marker, -1 if it has none."""
        producer = self._producers.get(producer_id)
        return _NO_COORDINATOR_EPOCH if producer is None else producer.coordinator_epoch

    def check_marker(self, producer_id: int, epoch: int, marker: Marker) -> None:
        """Raise ApiError if a later epoch of the producer, or of the coordinator, has been seen."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return
        if epoch < producer.epoch:
            raise _fenced(producer_id, epoch, producer.epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {marker.coordinator_epoch}, {producer.coordinator_epoch} has been seen",
            )

    def marked(self, header: BatchHeader, base_offset: int, marker: Marker, seen_ms: int = NOT_KNOWN) -> None:
        """Note a marker that was appended at `base_offset`. The producer's next batch is verified again."""
        self.verifications.pop(header.producer_id, None)
        producer = self._seen(header, seen_ms)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.first_offset = _NO_TRANSACTION
        producer.marked_by = base_offset
        first = self._open.pop(header.producer_id, None)
        if first is not None:
            undecided = self._undecided
            while undecided and undecided[-1][0] > first:  # its marker becomes visible first, so it never counts again
                undecided.pop()
            undecided.append((first, base_offset))

    def aborted_at(self, producer_id: int, marker_offset: int) -> AbortedTransaction | None:
        """Return the index entry for an abort marker at this offset, None if the producer has no open transaction.

        Do not change the state.
        """
        return aborted_by(self._open, producer_id, marker_offset)

    def _begins(self, producer_id: int, producer: _Producer, first_offset: int) -> None:
        if producer_id not in self._open:
            self._open[producer_id] = producer.first_offset = first_offset

    # --- batches -------------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """Return None if the batch may be appended, or the earlier batch that it repeats. Raise ApiError otherwise."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if header.producer_epoch < NO_PRODUCER_EPOCH:
                raise _fenced(header.producer_id, header.producer_epoch, NO_PRODUCER_EPOCH)
            return None
        if header.producer_epoch < producer.epoch:
            raise _fenced(header.producer_id, header.producer_epoch, producer.epoch)
        duplicate = None if header.base_sequence == NO_SEQUENCE else self._check_sequence(producer, header)
        if duplicate is None and producer.first_offset != _NO_TRANSACTION and not header.is_transactional:
            reason = f"producer {header.producer_id} has a transaction open from offset {producer.first_offset} on"
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{reason}; this batch is in none")
        return duplicate

    @staticmethod
    def _check_sequence(producer: _Producer, header: BatchHeader) -> ProducedBatch | None:
        first = header.base_sequence
        last = (first + header.last_offset_delta) % _SEQUENCES
        expected = 0
        if header.producer_epoch == producer.epoch and producer.batches:
            for batch in reversed(producer.batches):  # sequences may repeat, if a leader did not know the producer
                if (batch.first_sequence, batch.last_sequence) == (first, last):
                    return batch
            expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
        if first != expected:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first}, {expected} is next",
            )
        return None

    @staticmethod
    def follows(before: BatchHeader, header: BatchHeader) -> bool:
        """Return True if a batch continues `before`, a batch of the same producer that is about to be appended."""
        return (
            header.producer_epoch == before.producer_epoch
            and header.base_sequence == (before.base_sequence + before.last_offset_delta + 1) % _SEQUENCES
            and before.base_sequence != NO_SEQUENCE
            and header.is_transactional == before.is_transactional
        )

    def appended(self, header: BatchHeader, base_offset: int, seen_ms: int = NOT_KNOWN) -> None:
        """Note a batch that was appended at `base_offset`. Ignore markers and batches without a producer.

        A marker that the cleaner has emptied still tells the producer's epoch.
        `seen_ms` is the broker's clock, not the batch's time, because a producer that sends old messages is not silent.
        It is unknown for a batch that recovery reads from the log.
        """
        if header.producer_id <= NO_PRODUCER_ID or header.is_control and header.record_count:
            return
        producer = self._seen(header, seen_ms)
        if header.is_control:
            producer.marked_by = base_offset
            return
        if header.is_transactional:
            self._begins(header.producer_id, producer, base_offset)
        if header.base_sequence != NO_SEQUENCE:
            last = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
            last_offset = base_offset + header.last_offset_delta
            producer.batches.append(
                ProducedBatch(header.base_sequence, last, base_offset, last_offset, header.max_timestamp)
            )

    def _seen(self, header: BatchHeader, seen_ms: int) -> _Producer:
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if len(self._producers) >= self._producers_max:
                self._forget_one()
            producer = self._producers[header.producer_id] = _Producer(header.producer_epoch, seen_ms)
        else:
            producer.at_epoch(header.producer_epoch)
        producer.seen_ms = seen_ms
        producer.entries = None
        self._producers.move_to_end(header.producer_id)
        return producer

    def _forget_one(self) -> None:
        """Forget the longest silent producer. Keep those with an open transaction, which would never end otherwise."""
        silent_id = next((producer_id for producer_id in self._producers if producer_id not in self._open), None)
        if silent_id is not None:
            del self._producers[silent_id]

    def expire(self, now_ms: int, silence_ms: int) -> None:
        """Forget producers that were silent for `silence_ms` (producer.id.expiration.ms) and have no open transaction.

        O(forgotten + replayed + open).
        """
        expired_ids = []
        for producer_id, producer in self._producers.items():
            if producer.seen_ms == NOT_KNOWN:
                producer.seen_ms, producer.entries = now_ms, None
            elif producer.seen_ms >= now_ms - silence_ms:
                break  # the ones after it were heard of later
            elif producer_id not in self._open:
                expired_ids.append(producer_id)
        for producer_id in expired_ids:
            del self._producers[producer_id]

    def active(self) -> Iterator[ActiveProducer]:
        """Yield all known producers, for DescribeProducers."""
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1] if producer.batches else None
            sequence, time_ms = (NO_SEQUENCE, producer.seen_ms) if last is None else (last.last_sequence, last[-1])
            epochs = producer.coordinator_epoch, producer.first_offset
            yield ActiveProducer(producer_id, producer.epoch, sequence, time_ms, *epochs)

    def last_records(self, high_watermark: int) -> LastRecords:
        """Return what the cleaner must keep of the log below the high watermark."""
        last = LastRecords({}, {}, set())
        for producer_id, producer in self._producers.items():
            for batch in reversed(producer.batches):
                if batch.last_offset < high_watermark:  # nearly always the first one
                    last.offsets[producer_id] = batch.last_offset
                    break
            else:
                if producer.batches or producer.marked_by >= high_watermark:
                    last.unsettled.add(producer_id)
                else:
                    last.epochs[producer_id] = producer.epoch
        return last

    # --- snapshots -----------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the state in the format of Kafka's `.snapshot` files, with an entry for each kept batch.

        Only producers that changed since the last snapshot are packed again, because there may be a hundred thousand.
        """
        entries = b"".join(
            producer.entries or producer.pack(producer_id) for producer_id, producer in self._producers.items()
        )
        body = (len(entries) // _ENTRY.size).to_bytes(4, "big") + entries
        return _VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body

    def load(self, snapshot: bytes, end_offset: int) -> None:
        """Load the state from a snapshot, taken when the log ended at `end_offset`. Raise ValueError if it is damaged.

        Earlier versions of Flakelog wrote one entry for each producer.
        """
        if len(snapshot) < _SNAPSHOT.size:
            raise ValueError(f"a producer snapshot has at least {_SNAPSHOT.size} bytes, this one {len(snapshot)}")
        version, crc, number = _SNAPSHOT.unpack_from(snapshot)
        body = snapshot[_CRC_START:]
        if version != _VERSION or crc32c(body) != crc or len(body) != 4 + number * _ENTRY.size:
            raise ValueError(f"producer snapshot of version {version}: its CRC or its length does not hold")
        for fields in _ENTRY.iter_unpack(body[4:]):
            producer_id, epoch, sequence, offset, delta, seen_ms, coordinator_epoch, first_offset = fields
            producer = self._producers.get(producer_id)
            if producer is None:
                producer = self._producers[producer_id] = _Producer(epoch, seen_ms)
            producer.coordinator_epoch, producer.first_offset = coordinator_epoch, first_offset
            producer.marked_by = end_offset - 1
            if sequence != NO_SEQUENCE:
                first = (sequence - delta) % _SEQUENCES
                producer.batches.append(ProducedBatch(first, sequence, offset - delta, offset, seen_ms))
        began = sorted((state.first_offset, id) for id, state in self._producers.items() if state.first_offset >= 0)
        self._open = {producer_id: first_offset for first_offset, producer_id in began}


def aborted_by(
    first_offsets: Mapping[int, int], producer_id: int, marker_offset: int
) -> AbortedTransaction | None:
    """Return what `ProducerState.aborted_at` does, given the `open_transactions` before the marker."""
    first = first_offsets.get(producer_id)
    if first is None:
        return None
    others = (offset for open_id, offset in first_offsets.items() if open_id != producer_id)
    return AbortedTransaction(producer_id, first, marker_offset, next(others, marker_offset + 1))


def _fenced(producer_id: int, epoch: int, seen: int) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} has epoch {epoch}, {seen} has been seen"
    )
