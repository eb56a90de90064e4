"""Conversions for librdkafka's Python API: headers, a group's member, and errors of transactions."""

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker.client.errors import BrokerError, ClientError, MustAbort, ProducerFenced, TryAgain
from broker.record.id_header import ID_HEADER
from broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.client.group_requests import GroupIdentity

Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]

Header = tuple[str, str | bytes | None]

PAUSE_MS = 100
FENCED_LOCALLY = -144  # librdkafka's own code, ERR__FENCED
_FENCED = {FENCED_LOCALLY, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
_GENERATION = struct.Struct("=i")
_MAGIC = b"CGMDv2:"


def headers_of(headers: Headers | None, is_stamped: bool) -> list[Header]:
    """Return headers as (name, bytes).

    Raise ValueError for a value that is no header, and for a `flakelog-id` if the producer adds that header itself.
    """
    if headers is None:
        return []
    given = [_header(header) for header in (headers.items() if isinstance(headers, Mapping) else headers)]
    if is_stamped and any(name == ID_HEADER for name, _ in given):
        raise ValueError(f'a header {ID_HEADER} beside ids="header", which adds it: leave out one of them')
    return given


def _header(pair: object) -> Header:
    match pair:
        case (str(name), str(value)):
            return name, value.encode()
        case (str(name), bytes() | None as value):
            return name, value
    raise ValueError(f"{pair!r} is no header: give pairs of a name, as text, and a value, as text, bytes or None")


def group_metadata(identity: "GroupIdentity") -> bytes:
    """Return a member of a group as librdkafka serialises it (rd_kafka_consumer_group_metadata_write).

    "CGMDv2:", the generation as a native i32, the group's and the member's id, and the instance id behind a byte that
    is 1, and the last, if it is null; texts end with a zero byte. A test compares it with librdkafka's own.
    """
    instance = identity.instance_id
    texts = (identity.group_id.encode() + b"\0", identity.member_id.encode() + b"\0")
    last = b"\1" if instance is None else b"\0" + instance.encode() + b"\0"
    return _MAGIC + _GENERATION.pack(identity.generation) + b"".join(texts) + last


def transaction_error(error: Any, what: str) -> ClientError:
    """Return the error that says what to do, for librdkafka's error (`KafkaError`) of a transaction's call."""
    code = int(error.code())
    text = f"{what}: {error.str()}"
    if code in _FENCED:
        return ProducerFenced(text)
    if error.txn_requires_abort():
        known = code if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
        return MustAbort(BrokerError(known, what, error.str()))
    if error.retriable():
        return TryAgain(text, PAUSE_MS)
    return ClientError(text)
