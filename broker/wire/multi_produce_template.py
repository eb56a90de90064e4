"""Templates of Produce requests for several partitions of one topic (broker.wire.templates).

    api key, version | correlation id | client id ... partition count | index, length, records, no tags | ... | no tags
    4 bytes          | 4 bytes        | constant                      | of each partition               |     | flexible

The constant bytes and the first partition's index are the key of a template. So one lookup finds this template, or the
template of a request for one partition (broker.wire.produce_template). A request that wants ids, has tagged fields or
names several topics has no template.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from broker.wire import produce
from broker.wire.errors import WireError
from broker.wire.frame import LENGTH_BYTES, Part, read_request_header
from broker.wire.primitives import read_length
from broker.wire.produce import ANSWERED_ACKS, PartitionRecords, PartitionResult, ProduceRequest

PARTITIONS_MAX = 64  # of a request with a template; its answer is packed in one call
KEY_START = 8  # of a frame without its length: after API key, version and correlation id
_INDEX = struct.Struct(">i")
RESULT = struct.Struct(">hqqq")  # error, base offset, log append time, log start offset
MARK = 0x5A5A, -2, -3, -4  # the fields of RESULT, found again in an encoded answer
NO_RECORDS = {False: b"\xff\xff\xff\xff", True: b"\0"}
_PLAIN = None, (), (), None  # no message, no record errors, no ids, no leader


@dataclass(slots=True)
class MultiProduceTemplate:
    """A request for several partitions without their indexes and records, and the answer to it."""

    api_key = produce.API_KEY

    version: int
    client_id: str | None
    request: ProduceRequest
    """The request without partitions."""
    topic: str | UUID
    number: int
    """The number of partitions."""
    key_end: int
    """The end of the key in a frame without its length: after the first partition's index."""
    reply: Callable[..., bytes]
    reply_bytes: int
    """The size of an answer without its length."""
    before: bytes
    after_result: bytes
    after: bytes

    def decode(self, frame: memoryview) -> ProduceRequest | None:
        """Return the request of a frame without its length, None if it has to be decoded in full.

        Raise IndexError, struct.error or WireError if the frame is cut short.
        """
        position, size_of_frame = self.key_end - _INDEX.size, len(frame)
        flexible, topic = self.version >= produce.FLEXIBLE, self.topic
        partitions: list[PartitionRecords] = []
        for _ in range(self.number):
            (index,) = _INDEX.unpack_from(frame, position)
            size, position = read_length(frame, position + 4, flexible)
            end = position + size
            if size < 0 or end > size_of_frame:
                return None
            partitions.append((topic, index, frame[position:end]))
            position = end
            if flexible:
                if frame[position]:
                    return None
                position += 1
        if flexible:  # no tags of the topic and of the request
            if size_of_frame != position + 2 or frame[position] or frame[position + 1]:
                return None
        elif size_of_frame != position:
            return None
        transactional_id, acks, timeout_ms, _, _ = self.request
        return ProduceRequest(transactional_id, acks, timeout_ms, partitions, False)

    def encode(
        self, correlation_id: int, results: Sequence[PartitionResult | None]
    ) -> tuple[list[Part], int] | None:
        """Return the whole answer and its size in bytes; None if it has to be encoded in full."""
        fields: list[Any] = [self.reply_bytes, correlation_id, self.before]
        for result in results:
            if result is None or result[6:] != _PLAIN:
                return None
            fields += result[1:6]
            fields.append(self.after_result)
        fields.append(self.after)
        return [self.reply(*fields)], self.reply_bytes + LENGTH_BYTES


def multi_template_of(version: int, key: bytes) -> MultiProduceTemplate | None:
    """Return the template of a key; None if the key does not end with the first of 2 to PARTITIONS_MAX indexes."""
    flexible = version >= produce.FLEXIBLE
    head = key[: -_INDEX.size]
    number = head[-1] - 1 if flexible else _INDEX.unpack(head[-4:])[0]
    if not 2 <= number <= PARTITIONS_MAX:
        return None
    no_records = NO_RECORDS[flexible] + (b"\0" if flexible else b"")  # ... and no tags of the partition
    partitions = b"".join([_INDEX.pack(index) + no_records for index in range(number)])
    decoded = request_of(version, head + partitions + (b"\0\0" if flexible else b""))
    if decoded is None or len(decoded[1].partitions) != number:
        return None
    client_id, request = decoded
    topic = request.partitions[0][0]
    tags = b"\0" if flexible else b""
    marked = [PartitionResult(topic, index, *MARK) for index in range(number)]
    shorter, body = (tags + produce.encode_response(version, marked[:count]) for count in (number - 1, number))
    result_bytes = len(body) - len(shorter)
    start = body.index(_INDEX.pack(0) + RESULT.pack(*MARK))
    before, after = body[:start], body[start + number * result_bytes :]
    after_result = body[start + _INDEX.size + RESULT.size : start + result_bytes]
    results = f"ihqqq{len(after_result)}s" * number
    reply = struct.Struct(f">ii{len(before)}s{results}{len(after)}s").pack
    return MultiProduceTemplate(
        version, client_id, request._replace(partitions=[]), topic, number, KEY_START + len(key),
        reply, LENGTH_BYTES + len(body), before, after_result, after,
    )  # fmt: skip


def request_of(version: int, rest: bytes) -> tuple[str | None, ProduceRequest] | None:
    """Return the client id and the request of a frame, given from its client id on.

    Return None if no template may read such a frame: it is no request or has tags, its answer is not plain, or one of
    its lengths or counts is encoded unusually, so that the key may end elsewhere.
    """
    flexible = version >= produce.FLEXIBLE
    frame = memoryview(version.to_bytes(4, "big") + bytes(4) + rest)
    try:
        header = read_request_header(frame)
        if flexible and frame[header.body]:
            return None
        request = produce.decode_request(version, frame, header.body + flexible)
    except WireError:
        return None
    if request.wants_ids or request.acks not in ANSWERED_ACKS:
        return None
    if produce.encode_request(version, request) != bytes(frame[header.body + flexible :]):
        return None
    return header.client_id, request
