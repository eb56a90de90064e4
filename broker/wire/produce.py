"""Produce (API key 0), v3 to v13, coded by hand: it is the hot path, and its answer may contain ids (broker.wire.tags).

Version notes (https://kafka.apache.org/protocol#The_Messages_Produce): v5 log start offset; v8 record errors and a
message (KIP-467); v9 flexible (KIP-482); v10 the current leader as a tag (KIP-951); v12 implicit transaction
partitions (KIP-890); v13 topic ids in place of names (KIP-516).
"""

import struct
from typing import NamedTuple, TypeAlias
from uuid import UUID

from broker.wire import tags
from broker.wire.current_leader import (
    NODE_ENDPOINTS,
    CurrentLeader,
    NodeEndpoint,
    endpoint_tags,
    leader_payload,
    read_endpoints,
    read_leader,
)
from broker.wire.errors import WireError
from broker.wire.primitives import (
    I32,
    Buffer,
    length,
    read_count,
    read_length,
    read_string,
    read_tags,
    skip_tags,
    string,
)
from broker.wire.primitives import tags as tag_section
from broker.wire.primitives import told_where_cut
from broker.wire.request_limits import DEFAULT_LIMITS, RequestLimits
from broker.wire.topics import by_topic, read_topic
from broker.wire.topics import topic as encode_topic

API_KEY = 0
LOG_START_OFFSETS = 5
FLEXIBLE = 9
CURRENT_LEADERS = 10  # answers name the new leader from this version on
TOPIC_IDS = 13
VERSION_MAX = 13

CURRENT_LEADER = 0  # the tag of the new leader, in a partition of the answer

_ACKS = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqq")  # index, error, base offset, log append time
_RESULT_V5 = struct.Struct(">ihqqq")  # ... log start offset
_RESULT_PLAIN = struct.Struct(">ihqqq3s")  # ... and _PLAIN
_PLAIN = b"\x01\x00\x00"  # no record errors, no message, no tags: the end of nearly every flexible answer

ANSWERED_ACKS = frozenset({1, -1})  # the leader has the records, or all replicas have

NO_OFFSET = -1
NO_TIMESTAMP = -1


PartitionRecords: TypeAlias = tuple[str | UUID, int, memoryview | None]
"""The batch for one partition: (topic, partition, records). A plain tuple, because every Produce makes one.

The records are a view into the request, writable if the request is, or None.
"""


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[PartitionRecords]
    wants_ids: bool


class RecordError(NamedTuple):
    """A record at fault in a refused batch (KIP-467)."""

    batch_index: int
    message: str | None


class PartitionResult(NamedTuple):
    """The answer for one partition. `runs` are (first id, count), with one id for each offset from `base_offset` on.

    Only a result with an error code has a message, record errors or a leader: the current one, if the request reached
    another broker (KIP-951).
    """

    topic: str | UUID
    partition: int
    error_code: int = 0
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    message: str | None = None
    record_errors: tuple[RecordError, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()
    leader: CurrentLeader | None = None


@told_where_cut("Produce request")
def decode_request(
    version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS
) -> ProduceRequest:
    """Decode a request from its body. Raise WireError, which names the fault."""
    flexible = version >= FLEXIBLE
    transactional_id, position = read_string(data, position, flexible)
    acks, timeout_ms = _ACKS.unpack_from(data, position)
    topics, position = read_count(data, position + 6, flexible, 2)
    partitions: list[PartitionRecords] = []
    for _ in range(topics):
        topic, position = read_topic(data, position, flexible, version >= TOPIC_IDS)
        number, position = read_count(data, position, flexible, 5)
        limits.check_partitions(max(topics, len(partitions) + number))
        for _ in range(number):
            (index,) = I32.unpack_from(data, position)
            size, position = read_length(data, position + 4, flexible)
            records = None
            if size >= 0:
                end = position + size
                if end > len(data):
                    raise WireError(f"records say {size} bytes, {len(data) - position} are left")
                records = data[position:end]
                position = end
            partitions.append((topic, index, records))
            if flexible:
                position = skip_tags(data, position) if data[position] else position + 1
        if flexible:
            position = skip_tags(data, position)
    wants_ids = False
    if flexible and data[position]:
        wants_ids = tags.IDS in read_tags(data, position)[0]
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions, wants_ids)


def encode_request(version: int, request: ProduceRequest) -> bytes:
    """Return the body of a request, for a client."""
    flexible = version >= FLEXIBLE
    end = b"\0" if flexible else b""
    grouped: dict[str | UUID, list[tuple[int, memoryview | None]]] = {}
    for topic, partition, records in request.partitions:
        grouped.setdefault(topic, []).append((partition, records))
    out: list[Buffer] = [string(request.transactional_id, flexible), _ACKS.pack(request.acks, request.timeout_ms)]
    out.append(length(len(grouped), flexible))
    for topic, batches in grouped.items():
        out.append(encode_topic(topic, flexible, version >= TOPIC_IDS))
        out.append(length(len(batches), flexible))
        for partition, records in batches:
            size = -1 if records is None else len(records)
            out += (I32.pack(partition), length(size, flexible), records or b"", end)
        out.append(end)
    if flexible:
        out.append(b"\0" if not request.wants_ids else tag_section({tags.IDS: tags.REQUEST}))
    return b"".join(out)


def encode_response(version: int, results: list[PartitionResult], throttle_ms: int = 0) -> bytes:
    """Return the body of the answer, with the results in the order of the request."""
    flexible = version >= FLEXIBLE
    end = b"\0" if flexible else b""
    grouped = by_topic(results)
    leaders: list[CurrentLeader] = []
    out = [length(len(grouped), flexible)]
    for topic, partitions in grouped:
        out.append(encode_topic(topic, flexible, version >= TOPIC_IDS))
        out.append(length(len(partitions), flexible))
        for result in partitions:  # most have no runs, message, record errors or leader
            if flexible and not (result[8] or (result[2] and (result[6] or result[7] or result[9]))):
                out.append(_RESULT_PLAIN.pack(*result[1:6], _PLAIN))
            else:
                out.append(_result(version, result, flexible))
                if version >= CURRENT_LEADERS and result.leader is not None:
                    leaders.append(result.leader)
        out.append(end)
    out += (I32.pack(throttle_ms), endpoint_tags(leaders) if leaders else end)
    return b"".join(out)


def _result(version: int, result: PartitionResult, flexible: bool) -> bytes:
    fixed = result.partition, result.error_code, result.base_offset, result.log_append_time_ms
    head = _RESULT_V5.pack(*fixed, result.log_start_offset) if version >= LOG_START_OFFSETS else _RESULT.pack(*fixed)
    if version < 8:
        return head
    out = [head, length(len(result.record_errors), flexible)]
    for error in result.record_errors:
        out += (I32.pack(error.batch_index), string(error.message, flexible), b"\0" if flexible else b"")
    out.append(string(result.message, flexible))
    if flexible:
        fields = {tags.IDS: b"".join(tags.RUN.pack(*run) for run in result.runs)} if result.runs else {}
        if version >= CURRENT_LEADERS and result.leader is not None:
            fields[CURRENT_LEADER] = leader_payload(result.leader)
        out.append(tag_section(fields))
    return b"".join(out)


@told_where_cut("Produce answer")
def decode_response(version: int, data: memoryview, position: int) -> list[PartitionResult]:
    """Decode the results, for a client. Raise WireError if the answer is cut short."""
    flexible = version >= FLEXIBLE
    results: list[PartitionResult] = []
    topics, position = read_count(data, position, flexible, 2)
    for _ in range(topics):
        topic, position = read_topic(data, position, flexible, version >= TOPIC_IDS)
        number, position = read_count(data, position, flexible, 22)
        for _ in range(number):
            result, position = _decode_result(version, data, position, topic)
            results.append(result)
        if flexible:
            position = skip_tags(data, position)
    I32.unpack_from(data, position)  # the throttle time, read so that an answer cut before it is detected
    if flexible and data[position + 4]:
        fields, _ = read_tags(data, position + 4)
        if version >= CURRENT_LEADERS and NODE_ENDPOINTS in fields:
            return _with_endpoints(results, read_endpoints(fields[NODE_ENDPOINTS]))
    return results


def _with_endpoints(results: list[PartitionResult], nodes: dict[int, NodeEndpoint]) -> list[PartitionResult]:
    """Return the results with the addresses of the leaders that they name."""
    return [
        result
        if result.leader is None
        else result._replace(leader=result.leader._replace(endpoint=nodes.get(result.leader.leader_id)))
        for result in results
    ]


def _decode_result(version: int, data: memoryview, position: int, topic: str | UUID) -> tuple[PartitionResult, int]:
    flexible = version >= FLEXIBLE
    numbers = _RESULT_V5 if version >= LOG_START_OFFSETS else _RESULT
    result = PartitionResult(topic, *numbers.unpack_from(data, position))
    position += numbers.size
    if version < 8:
        return result, position
    number, position = read_count(data, position, flexible, 5)
    errors = []
    for _ in range(number):
        (batch_index,) = I32.unpack_from(data, position)
        text, position = read_string(data, position + 4, flexible)
        errors.append(RecordError(batch_index, text))
        position = skip_tags(data, position) if flexible else position
    message, position = read_string(data, position, flexible)
    result = result._replace(message=message, record_errors=tuple(errors))
    if flexible:
        fields, position = read_tags(data, position)
        result = result._replace(runs=tuple(tags.RUN.iter_unpack(fields.get(tags.IDS, b""))))
        if version >= CURRENT_LEADERS and CURRENT_LEADER in fields:
            result = result._replace(leader=read_leader(fields[CURRENT_LEADER]))
    return result, position
