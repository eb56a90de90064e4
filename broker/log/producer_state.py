"""What a partition knows of its idempotent producers (KIP-98, KIP-360): the last five batches of each.

A batch that repeats one of them is a duplicate, answered with its first offset; one that does not follow the last is
out of order. An unknown producer may begin at any sequence, as its state may have expired. State is kept in snapshots
named by the offset they were taken at, in Kafka's format; what was appended after a snapshot is replayed from headers.
"""

import struct
from collections import OrderedDict, deque
from typing import NamedTuple

from crc32c import crc32c

from broker.record.batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader
from broker.wire.errors import ApiError, ErrorCode

BATCHES_KEPT = 5  # as many as a producer may have in flight (max.in.flight.requests.per.connection)
SUFFIX = ".snapshot"

_SEQUENCES = 2**31
_VERSION = 1
_SNAPSHOT = struct.Struct(">hIi")  # version, crc, number of entries
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_START = 6
_NO_COORDINATOR_EPOCH = -1
_NO_TRANSACTION = -1
NOT_KNOWN = -1


class ProducedBatch(NamedTuple):
    """A batch that was appended: where its sequences and offsets begin and end (both inclusive)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class _Producer:
    __slots__ = ("epoch", "batches", "seen_ms")

    def __init__(self, epoch: int, seen_ms: int) -> None:
        self.epoch = epoch
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCHES_KEPT)
        self.seen_ms = seen_ms


class ProducerState:
    """All producers of one partition, the one heard of least lately first. At most `producers_max` are kept."""

    def __init__(self, producers_max: int) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """None when the batch may be appended, the first one when it is a duplicate; ApiError otherwise."""
        producer = self._producers.get(header.producer_id)
        if header.base_sequence == NO_SEQUENCE or producer is None:
            return None
        first = header.base_sequence
        last = (first + header.last_offset_delta) % _SEQUENCES
        if header.producer_epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} has epoch {header.producer_epoch}, {producer.epoch} has been seen",
            )
        expected = 0
        if header.producer_epoch == producer.epoch:
            for batch in producer.batches:
                if (batch.first_sequence, batch.last_sequence) == (first, last):
                    return batch
            if not producer.batches:
                return None
            expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
        if first != expected:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {first}, {expected} is next",
            )
        return None

    def appended(self, header: BatchHeader, base_offset: int, seen_ms: int = NOT_KNOWN) -> None:
        """Note a batch that now stands at `base_offset`; one without a producer is passed over.

        `seen_ms` is the broker's clock, not the batch's time: who sends old messages is not silent for being late.
        It is not known of a batch that is found again in the log.
        """
        producer_id = header.producer_id
        if producer_id <= NO_PRODUCER_ID:
            return
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(header.producer_epoch, seen_ms)
            if len(self._producers) > self._producers_max:
                self._producers.popitem(last=False)
        elif header.producer_epoch > producer.epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.seen_ms = seen_ms
        self._producers.move_to_end(producer_id)
        if header.base_sequence != NO_SEQUENCE:
            last = (header.base_sequence + header.last_offset_delta) % _SEQUENCES
            last_offset = base_offset + header.last_offset_delta
            producer.batches.append(
                ProducedBatch(header.base_sequence, last, base_offset, last_offset, header.max_timestamp)
            )

    def expire(self, now_ms: int, silence_ms: int) -> None:
        """Forget producers not heard of for `silence_ms` (producer.id.expiration.ms). O(forgotten + replayed)."""
        gone = []
        for producer_id, producer in self._producers.items():
            if producer.seen_ms == NOT_KNOWN:
                producer.seen_ms = now_ms
            elif producer.seen_ms >= now_ms - silence_ms:
                break  # the ones after it were heard of later
            else:
                gone.append(producer_id)
        for producer_id in gone:
            del self._producers[producer_id]

    def snapshot(self) -> bytes:
        """The state in the format of Kafka's `.snapshot` files: the last batch of each producer."""
        entries = []
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1] if producer.batches else None
            sequence, offset, delta = NO_SEQUENCE, -1, 0
            if last is not None:
                sequence, offset, delta = last.last_sequence, last.last_offset, last.last_offset - last.base_offset
            fields = producer_id, producer.epoch, sequence, offset, delta, producer.seen_ms
            entries.append(_ENTRY.pack(*fields, _NO_COORDINATOR_EPOCH, _NO_TRANSACTION))
        body = len(entries).to_bytes(4, "big") + b"".join(entries)
        return _VERSION.to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body

    def load(self, snapshot: bytes) -> None:
        """Take the state of a snapshot; ValueError when it is damaged."""
        if len(snapshot) < _SNAPSHOT.size:
            raise ValueError(f"a producer snapshot has at least {_SNAPSHOT.size} bytes, this one {len(snapshot)}")
        version, crc, number = _SNAPSHOT.unpack_from(snapshot)
        body = snapshot[_CRC_START:]
        if version != _VERSION or crc32c(body) != crc or len(body) != 4 + number * _ENTRY.size:
            raise ValueError(f"producer snapshot of version {version}: its CRC or its length does not hold")
        for fields in _ENTRY.iter_unpack(body[4:]):
            producer_id, epoch, sequence, offset, delta, seen_ms = fields[:6]
            producer = self._producers[producer_id] = _Producer(epoch, seen_ms)
            if sequence != NO_SEQUENCE:
                first = (sequence - delta) % _SEQUENCES
                producer.batches.append(ProducedBatch(first, sequence, offset - delta, offset, seen_ms))
