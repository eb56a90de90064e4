"""Control records: the markers that end a transaction in a partition (KIP-98, ControlRecordType of Kafka).

A marker is a control batch with one record, under the id of the producer whose transaction it ends:

    key    version i16 = 0 | type i16: 0 abort, 1 commit; other types do not end transactions
    value  version i16 = 0 | epoch of the deciding coordinator i32
"""

import struct
from typing import NamedTuple

from broker.record.batch import CorruptBatch
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.wire.primitives import Buffer

ABORT, COMMIT = 0, 1

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """The end of a transaction (commit or abort), and the epoch of the coordinator that decided it."""

    commit: bool
    coordinator_epoch: int


def encode_marker(producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int) -> bytearray:
    """Return the control batch that a transaction coordinator writes."""
    key = _KEY.pack(0, COMMIT if marker.commit else ABORT)
    return encode_batch(
        [BatchRecord(0, 0, key, _VALUE.pack(0, marker.coordinator_epoch))],
        base_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(batch: Buffer, position: int = 0) -> Marker | None:
    """Return the marker in the control batch at `position`; None if compaction emptied it or it is of another type.

    Raise CorruptBatch if the record is too short for a marker.
    """
    records = decode_records(batch, position, check=False)
    if not records:
        return None
    key, value = records[0].key or b"", records[0].value or b""
    try:
        version, kind = _KEY.unpack_from(key)
        if version < 0 or kind not in (ABORT, COMMIT):
            return None
        return Marker(kind == COMMIT, _VALUE.unpack_from(value)[1])
    except struct.error:
        raise CorruptBatch(f"a control record with a key of {len(key)} and a value of {len(value)} bytes") from None
