"""The records of `__transaction_state`, in Kafka's schema (its TransactionLogKey.json and TransactionLogValue.json).

    key      version i16 = 0 | transactional id string
    value    version i16 | producer id i64 | producer epoch i16 | timeout i32, ms | state i8 |
             partitions?: topic string, partitions i32[] | last update i64 | start i64

A null value is a tombstone. Version 1 is flexible, with these tags: 0 the previous producer id, 1 the next producer
id, 2 the client's transaction version. Versions 0 and 1 are read, version 1 is written, as Kafka does from
`transaction.version` 1 on. The codec does not use kio, because kio has the messages on the wire only, not the records
on disk.
"""

import struct
from collections.abc import Iterable

from broker.txn.states import TransactionState
from broker.txn.transaction import NO_ID, Transaction
from broker.wire.errors import WireError
from broker.wire.primitives import (
    I16,
    I32,
    I64,
    Buffer,
    length,
    read_count,
    read_length,
    read_string,
    read_tags,
    skip_tags,
    string,
    tags,
)

KEY_VERSION = 0
VALUE_VERSION = 1

# A record's string has at most 32,767 bytes; a request's string may be longer.
ID_BYTES_MAX = 16_384

_FIXED = struct.Struct(">qhib")
_TIMES = struct.Struct(">qq")
_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION = 0, 1, 2
_DAMAGE = (WireError, IndexError, struct.error, ValueError)


class BadTransactionRecord(ValueError):
    """A damaged record of __transaction_state, or one of an unknown version; the message says which."""


def transaction_key(transactional_id: str) -> bytes:
    return I16.pack(KEY_VERSION) + string(transactional_id, False)


def read_key(data: Buffer) -> str | None:
    """Return the transactional id, or None for a kind only a newer Kafka writes.

    Raise BadTransactionRecord if the key is damaged.
    """
    try:
        if I16.unpack_from(data)[0] != KEY_VERSION:
            return None
        transactional_id, _ = read_string(data, I16.size, False)
    except _DAMAGE as error:
        raise BadTransactionRecord(f"a key of __transaction_state is damaged: {error}") from None
    if transactional_id is None:
        raise BadTransactionRecord("a key of __transaction_state has no transactional id")
    return transactional_id


def transaction_value(transaction: Transaction) -> bytes:
    """Encode a transaction in version 1."""
    epoch, state = transaction.producer_epoch, int(transaction.state)
    return b"".join(
        (
            I16.pack(VALUE_VERSION),
            _FIXED.pack(transaction.producer_id, epoch, transaction.timeout_ms, state),
            _partitions(transaction.partitions),
            _TIMES.pack(transaction.updated_ms, transaction.started_ms),
            _tags(transaction),
        )
    )


def _partitions(partitions: Iterable[tuple[str, int]]) -> bytes:
    """Encode the partitions by topic. No partitions are encoded as null, as Kafka does in states without partitions."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    if not by_topic:
        return length(-1, True)
    topics = (
        string(topic, True) + length(len(numbers), True) + b"".join(map(I32.pack, numbers)) + tags({})
        for topic, numbers in by_topic.items()
    )
    return length(len(by_topic), True) + b"".join(topics)


def _tags(transaction: Transaction) -> bytes:
    fields = {}
    if transaction.previous_producer_id != NO_ID:
        fields[_PREVIOUS_PRODUCER_ID] = I64.pack(transaction.previous_producer_id)
    if transaction.next_producer_id != NO_ID:
        fields[_NEXT_PRODUCER_ID] = I64.pack(transaction.next_producer_id)
    if transaction.client_version:
        fields[_CLIENT_VERSION] = I16.pack(transaction.client_version)
    return tags(fields)


def read_value(transactional_id: str, data: Buffer) -> Transaction:
    """Decode a transaction of versions 0 and 1. Raise BadTransactionRecord for any other value."""
    try:
        version = I16.unpack_from(data)[0]
        if not 0 <= version <= VALUE_VERSION:
            raise ValueError(f"version {version}, 0 to {VALUE_VERSION} are known")
        return _read_value(transactional_id, data, version >= 1)
    except _DAMAGE as error:
        reason = f"the record of transactional id {transactional_id} in __transaction_state is damaged"
        raise BadTransactionRecord(f"{reason}: {error}") from None


def _read_value(transactional_id: str, data: Buffer, flexible: bool) -> Transaction:
    producer_id, epoch, timeout_ms, state = _FIXED.unpack_from(data, I16.size)
    partitions, position = _read_partitions(data, I16.size + _FIXED.size, flexible)
    updated_ms, started_ms = _TIMES.unpack_from(data, position)
    fields = read_tags(data, position + _TIMES.size)[0] if flexible else {}

    def tagged(tag: int, kind: struct.Struct, default: int) -> int:
        return int(kind.unpack(fields[tag])[0]) if tag in fields else default

    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        updated_ms=updated_ms,
        state=TransactionState(state),
        partitions=frozenset(partitions),
        started_ms=started_ms,
        previous_producer_id=tagged(_PREVIOUS_PRODUCER_ID, I64, NO_ID),
        next_producer_id=tagged(_NEXT_PRODUCER_ID, I64, NO_ID),
        client_version=tagged(_CLIENT_VERSION, I16, 0),
    )


def _read_partitions(data: Buffer, position: int, flexible: bool) -> tuple[list[tuple[str, int]], int]:
    partitions: list[tuple[str, int]] = []
    if read_length(data, position, flexible)[0] < 0:
        return partitions, read_length(data, position, flexible)[1]
    count, position = read_count(data, position, flexible, 2)
    for _ in range(count):
        topic, position = read_string(data, position, flexible)
        number, position = read_count(data, position, flexible, I32.size)
        partitions += [(topic or "", I32.unpack_from(data, position + at * I32.size)[0]) for at in range(number)]
        position += number * I32.size
        if flexible:
            position = skip_tags(data, position)
    return partitions, position
