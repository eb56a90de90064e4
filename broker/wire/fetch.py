"""Fetch (API key 1), v4 to v18, coded by hand: it is the hot path, its records leave as file regions, and its answer
may carry ids (broker.wire.tags).

Version notes (https://kafka.apache.org/protocol#The_Messages_Fetch): v4 isolation level and aborted transactions
(KIP-98); v5 log start offset; v7 fetch sessions (KIP-227); v9 current leader epoch (KIP-320); v11 rack and preferred
replica (KIP-392); v12 flexible, last fetched epoch (KIP-595); v13 topic ids (KIP-516); v15 replica state as a tag
(KIP-903); v16 the current leader as a tag (KIP-951); v17 and v18 tags of followers only.
"""

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from uuid import UUID

from broker.wire import tags
from broker.wire.current_leader import (
    NODE_ENDPOINTS,
    CurrentLeader,
    endpoint_tags,
    leader_payload,
    read_endpoints,
    read_leader,
)
from broker.wire.errors import WireError
from broker.wire.frame import FileRegion, Part
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
from broker.wire.primitives import told_where_cut, uvarint
from broker.wire.request_limits import DEFAULT_LIMITS, RequestLimits
from broker.wire.topics import by_topic, read_topic
from broker.wire.topics import topic as encode_topic

API_KEY = 1
VERSION_MAX = 18
FLEXIBLE = 12
TOPIC_IDS = 13
REPLICA_STATES = 15  # the replica id is in a tag from this version on, with the epoch of the follower
CURRENT_LEADERS = 16  # answers name the new leader from this version on
SESSIONS = 7
PREFERRED_REPLICAS = 11

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
CONSUMER = -1
NO_OFFSET = -1
DIVERGING = 0  # the tag of a diverging epoch, in a partition of the answer
CURRENT_LEADER = 1  # the tag of the new leader, there too
REPLICA_STATE = 1  # the tag of a follower's id and epoch, in the request

_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_PARTITION_V4 = struct.Struct(">iqi")  # index, fetch offset, max bytes
_PARTITION_V5 = struct.Struct(">iqqi")  # ... log start offset before max bytes
_PARTITION_V9 = struct.Struct(">iiqqi")  # ... current leader epoch after index
_PARTITION_V12 = struct.Struct(">iiqiqi")  # ... last fetched epoch after fetch offset
_HEAD = struct.Struct(">ihi")  # throttle, error, session id
_RESULT_V4 = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_RESULT_V5 = struct.Struct(">ihqqq")  # ... log start offset
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")
NO_REPLICA = b"\xff\xff\xff\xff"
"""No preferred read replica, in a partition of the answer."""
_REPLICA_STATE = struct.Struct(">iq")
_IDS_TAG = uvarint(tags.IDS)
_ONLY_IDS = uvarint(1) + _IDS_TAG
"""The head of a section of tagged fields that has the ids alone, as in nearly all answers to followers."""
_record = tuple.__new__  # as FetchPartition(...), at half its price


PartitionKey: TypeAlias = tuple[str | UUID, int]
"""A partition as a request names it: its topic's name or, in the newest versions, its id; and its index."""


class FetchPartition(NamedTuple):
    topic: str | UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchRequest(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[FetchPartition]
    isolation_level: int = READ_UNCOMMITTED
    session_id: int = NO_SESSION_ID
    session_epoch: int = FINAL_EPOCH
    forgotten: tuple[PartitionKey, ...] = ()
    rack: str = ""
    replica_id: int = CONSUMER
    wants_ids: bool = False
    replica_epoch: int = -1
    """The broker epoch of a follower, -1 if it has none (KIP-903)."""


class IdRegion(NamedTuple):
    """Raw entries of a segment's id index, with the base offset they count from."""

    base_offset: int
    entries: bytes | bytearray | FileRegion


@dataclass(slots=True)
class FetchedPartition:
    """The answer for one partition. `records` are whole batches as they lie in the log; the last may be cut short."""

    topic: str | UUID
    partition: int
    error_code: int = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    aborted: tuple[tuple[int, int], ...] | None = None
    """(producer id, first offset) of each aborted transaction the records may hold; None: not asked for."""
    records: bytes | bytearray | memoryview | FileRegion = b""
    ids: IdRegion | None = None
    """The ids of the records; None without records."""
    diverging: tuple[int, int] | None = None
    """(leader epoch, its end offset) where what the reader has last was of an epoch that ended before (KIP-595)."""
    leader: CurrentLeader | None = None
    """The current leader, in an error whose request reached another broker (KIP-951)."""
    last_id: int = tags.NO_ID
    """The last id of an empty log, for a follower."""

    @property
    def size(self) -> int:
        """Bytes of records."""
        return self.records.length if isinstance(self.records, FileRegion) else len(self.records)


@dataclass(slots=True)
class FetchResponse:
    partitions: list[FetchedPartition] = field(default_factory=list)
    error_code: int = 0
    session_id: int = NO_SESSION_ID
    throttle_ms: int = 0

    @property
    def is_held_back(self) -> bool:
        """Return True if the client is over a quota: the answer has a throttle time and no partitions (KIP-219)."""
        return not self.partitions and self.throttle_ms > 0


@told_where_cut("Fetch request")
def decode_request(
    version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS
) -> FetchRequest:
    """Decode a request from its body. Raise WireError."""
    flexible = version >= FLEXIBLE
    replica_id, replica_epoch = CONSUMER, -1
    if version < REPLICA_STATES:
        (replica_id,) = I32.unpack_from(data, position)
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(data, position)
    position += _LIMITS.size
    session_id, session_epoch = NO_SESSION_ID, FINAL_EPOCH
    if version >= SESSIONS:
        session_id, session_epoch = _SESSION.unpack_from(data, position)
        position += 8
    partitions, position = _read_partitions(version, data, position, limits)
    forgotten: tuple[PartitionKey, ...] = ()
    if version >= SESSIONS:
        forgotten, position = _read_forgotten(version, data, position, limits)
    rack: str | None = None
    if version >= PREFERRED_REPLICAS:
        rack, position = read_string(data, position, flexible)
    wants_ids = False
    if flexible and data[position]:
        fields, position = read_tags(data, position)
        wants_ids = tags.IDS in fields
        if REPLICA_STATE in fields:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(fields[REPLICA_STATE])
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, partitions, isolation_level, session_id, session_epoch, forgotten,
        rack or "", replica_id, wants_ids, replica_epoch,
    )  # fmt: skip


def _read_partitions(
    version: int, data: memoryview, position: int, limits: RequestLimits
) -> tuple[list[FetchPartition], int]:
    flexible = version >= FLEXIBLE
    partitions: list[FetchPartition] = []
    topics, position = read_count(data, position, flexible, 2)
    for _ in range(topics):
        topic, position = read_topic(data, position, flexible, version >= TOPIC_IDS)
        number, position = read_count(data, position, flexible, _PARTITION_V4.size)
        limits.check_partitions(max(topics, len(partitions) + number))
        for _ in range(number):
            leader_epoch = last_epoch = log_start = -1
            if version >= 12:
                index, leader_epoch, offset, last_epoch, log_start, limit = _PARTITION_V12.unpack_from(data, position)
                position += _PARTITION_V12.size
                position = skip_tags(data, position) if data[position] else position + 1
            elif version >= 9:
                index, leader_epoch, offset, log_start, limit = _PARTITION_V9.unpack_from(data, position)
                position += _PARTITION_V9.size
            elif version >= 5:
                index, offset, log_start, limit = _PARTITION_V5.unpack_from(data, position)
                position += _PARTITION_V5.size
            else:
                index, offset, limit = _PARTITION_V4.unpack_from(data, position)
                position += _PARTITION_V4.size
            if leader_epoch < -1:  # as in Kafka, where only ListOffsets and OffsetForLeaderEpoch refuse it
                leader_epoch = -1
            partitions.append(
                _record(FetchPartition, (topic, index, offset, limit, leader_epoch, last_epoch, log_start))
            )
        if flexible:
            position = skip_tags(data, position)
    return partitions, position


def _read_forgotten(
    version: int, data: memoryview, position: int, limits: RequestLimits
) -> tuple[tuple[PartitionKey, ...], int]:
    flexible = version >= FLEXIBLE
    forgotten: list[PartitionKey] = []
    topics, position = read_count(data, position, flexible, 2)
    for _ in range(topics):
        topic, position = read_topic(data, position, flexible, version >= TOPIC_IDS)
        number, position = read_count(data, position, flexible, 4)
        limits.check_partitions(max(topics, len(forgotten) + number))
        forgotten += ((topic, I32.unpack_from(data, position + 4 * i)[0]) for i in range(number))
        position += 4 * number
        if flexible:
            position = skip_tags(data, position)
    return tuple(forgotten), position


def encode_request(version: int, request: FetchRequest) -> bytes:
    """The body, for a client."""
    flexible = version >= FLEXIBLE
    end = b"\0" if flexible else b""
    out: list[Buffer] = [I32.pack(request.replica_id)] if version < REPLICA_STATES else []
    out.append(_LIMITS.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level))
    if version >= SESSIONS:
        out.append(_SESSION.pack(request.session_id, request.session_epoch))
    grouped = by_topic(request.partitions)
    out.append(length(len(grouped), flexible))
    for topic, partitions in grouped:
        out += (encode_topic(topic, flexible, version >= TOPIC_IDS), length(len(partitions), flexible))
        out += [_partition(version, item) for item in partitions]
        out.append(end)
    if version >= SESSIONS:
        out.append(length(len(request.forgotten), flexible))
        for topic, index in request.forgotten:
            out += (encode_topic(topic, flexible, version >= TOPIC_IDS), length(1, flexible), I32.pack(index), end)
    if version >= PREFERRED_REPLICAS:
        out.append(string(request.rack, flexible))
    if flexible:
        replica_id = request.replica_id if version >= REPLICA_STATES else CONSUMER
        out.append(_request_tags(request.wants_ids, replica_id, request.replica_epoch))
    return b"".join(out)


@lru_cache(maxsize=64)  # a follower sends the same with each request of its life
def _request_tags(wants_ids: bool, replica_id: int, replica_epoch: int) -> bytes:
    fields = {tags.IDS: tags.REQUEST} if wants_ids else {}
    if replica_id != CONSUMER:
        fields[REPLICA_STATE] = _REPLICA_STATE.pack(replica_id, replica_epoch) + b"\0"
    return tag_section(fields)


def _partition(version: int, item: FetchPartition) -> bytes:
    index, offset, limit = item.partition, item.fetch_offset, item.max_bytes
    if version >= 12:
        fields = index, item.current_leader_epoch, offset, item.last_fetched_epoch, item.log_start_offset, limit
        return _PARTITION_V12.pack(*fields) + b"\0"
    if version >= 9:
        return _PARTITION_V9.pack(index, item.current_leader_epoch, offset, item.log_start_offset, limit)
    if version >= 5:
        return _PARTITION_V5.pack(index, offset, item.log_start_offset, limit)
    return _PARTITION_V4.pack(index, offset, limit)


def encode_response(version: int, response: FetchResponse) -> list[Part]:
    """Return the body of the answer: bytes and, between them, the regions of files that hold the records."""
    flexible = version >= FLEXIBLE
    end = b"\0" if flexible else b""
    out: list[Part] = []
    if version >= SESSIONS:
        gathered: list[Buffer] = [_HEAD.pack(response.throttle_ms, response.error_code, response.session_id)]
    else:
        gathered = [I32.pack(response.throttle_ms)]
    grouped = by_topic(response.partitions)
    leaders: list[CurrentLeader] = []
    gathered.append(length(len(grouped), flexible))
    for topic, partitions in grouped:
        gathered += (encode_topic(topic, flexible, version >= TOPIC_IDS), length(len(partitions), flexible))
        for item in partitions:
            gathered.append(_result(version, item))
            records = item.records
            if isinstance(records, FileRegion):
                size = records.length
                gathered.append(length(size, flexible))
                if size:
                    out += (b"".join(gathered), records)
                    gathered = []
            else:
                gathered += (length(len(records), flexible), records)
            if not flexible:
                continue
            if item.ids is None and item.diverging is None and item.leader is None and item.last_id == tags.NO_ID:
                gathered.append(end)
                continue
            leader = item.leader if version >= CURRENT_LEADERS else None
            gathered = _put_tags(out, gathered, item, leader)
            if leader is not None:
                leaders.append(leader)
        gathered.append(end)
    gathered.append(endpoint_tags(leaders) if leaders else end)
    out.append(b"".join(gathered))
    return out


def _result(version: int, item: FetchedPartition) -> bytes:
    """Return the answer for a partition up to the length of its records."""
    if version >= 5:
        head = _RESULT_V5.pack(
            item.partition, item.error_code, item.high_watermark, item.last_stable_offset, item.log_start_offset
        )
    else:
        head = _RESULT_V4.pack(item.partition, item.error_code, item.high_watermark, item.last_stable_offset)
    aborted = item.aborted
    if not aborted:
        return head + _NOTHING_ABORTED[version >= FLEXIBLE, version >= PREFERRED_REPLICAS, aborted is not None]
    flexible = version >= FLEXIBLE
    end = b"\0" if flexible else b""
    aborted_entries = b"".join([_ABORTED.pack(*transaction) + end for transaction in aborted])
    return (
        head + length(len(aborted), flexible) + aborted_entries + (NO_REPLICA if version >= PREFERRED_REPLICAS else b"")
    )


def nothing_aborted(version: int, was_asked: bool) -> bytes:
    """Return the bytes between the offsets and the records of a partition without aborted transactions."""
    return _NOTHING_ABORTED[version >= FLEXIBLE, version >= PREFERRED_REPLICAS, was_asked]


_NOTHING_ABORTED = {
    (flexible, has_replica, was_asked): length(0 if was_asked else -1, flexible) + (NO_REPLICA if has_replica else b"")
    for flexible in (False, True)
    for has_replica in (False, True)
    for was_asked in (False, True)
}


def _put_tags(
    out: list[Part], gathered: list[Buffer], item: FetchedPartition, leader: CurrentLeader | None
) -> list[Buffer]:
    """Add the tagged fields of a partition: a diverging epoch, a leader, the ids. Return where further bytes go."""
    ids = item.ids
    if ids is None and item.last_id != tags.NO_ID:
        ids = IdRegion(item.last_id, b"")
    if ids is not None and item.diverging is None and leader is None:
        gathered.append(_ONLY_IDS)
    else:
        gathered.append(uvarint((item.diverging is not None) + (leader is not None) + (ids is not None)))
        if item.diverging is not None:
            epoch_end = _EPOCH_END.pack(*item.diverging) + b"\0"
            gathered += (uvarint(DIVERGING), uvarint(len(epoch_end)), epoch_end)
        if leader is not None:
            payload = leader_payload(leader)
            gathered += (uvarint(CURRENT_LEADER), uvarint(len(payload)), payload)
        if ids is None:
            return gathered
        gathered.append(_IDS_TAG)
    entries = ids.entries
    size = tags.BASE_OFFSET.size + (entries.length if isinstance(entries, FileRegion) else len(entries))
    gathered += (uvarint(size), tags.BASE_OFFSET.pack(ids.base_offset))
    if not isinstance(entries, FileRegion):
        gathered.append(entries)
        return gathered
    out += (b"".join(gathered), entries)
    return []


@told_where_cut("Fetch answer")
def decode_response(version: int, data: memoryview, position: int) -> FetchResponse:
    """The answer, for a client; `records` and ids are views into `data`. WireError where it is cut short."""
    flexible = version >= FLEXIBLE
    response = FetchResponse()
    if version >= SESSIONS:
        response.throttle_ms, response.error_code, response.session_id = _HEAD.unpack_from(data, position)
        position += _HEAD.size
    else:
        (response.throttle_ms,) = I32.unpack_from(data, position)
        position += 4
    topics, position = read_count(data, position, flexible, 2)
    for _ in range(topics):
        topic, position = read_topic(data, position, flexible, version >= TOPIC_IDS)
        number, position = read_count(data, position, flexible, _RESULT_V4.size)
        for _ in range(number):
            result, position = _decode_result(version, data, position, topic)
            response.partitions.append(result)
        if flexible:
            position = skip_tags(data, position)
    if flexible and data[position]:
        fields, _ = read_tags(data, position)
        if version >= CURRENT_LEADERS and NODE_ENDPOINTS in fields:
            nodes = read_endpoints(fields[NODE_ENDPOINTS])
            for item in response.partitions:
                if item.leader is not None:
                    item.leader = item.leader._replace(endpoint=nodes.get(item.leader.leader_id))
    return response


def _decode_result(version: int, data: memoryview, position: int, topic: str | UUID) -> tuple[FetchedPartition, int]:
    flexible = version >= FLEXIBLE
    head = _RESULT_V5 if version >= 5 else _RESULT_V4
    item = FetchedPartition(topic, *head.unpack_from(data, position))
    position += head.size
    if flexible and not data[position]:  # null, as in each answer to a follower: without a call
        position += 1
    else:
        number, position = read_length(data, position, flexible)
        aborted = []
        for _ in range(number):
            aborted.append(_ABORTED.unpack_from(data, position))
            position = skip_tags(data, position + 16) if flexible else position + 16
        item.aborted = None if number < 0 else tuple(aborted)
    position += 4 if version >= PREFERRED_REPLICAS else 0
    size, position = read_length(data, position, flexible)
    end = position + max(size, 0)
    if end > len(data):
        raise WireError(f"records say {size} bytes, {len(data) - position} are left")
    item.records = data[position:end]
    position = end
    if flexible and size > 0 and (sole := _sole_ids(data, position)) is not None:
        item.ids, position = sole
    elif flexible:
        fields, position = read_tags(data, position)
        if DIVERGING in fields:
            item.diverging = _EPOCH_END.unpack_from(fields[DIVERGING])
        if version >= CURRENT_LEADERS and CURRENT_LEADER in fields:
            item.leader = read_leader(fields[CURRENT_LEADER])
        payload = fields.get(tags.IDS)
        if payload is not None:
            (base_offset,) = tags.BASE_OFFSET.unpack_from(payload)
            if size > 0:
                item.ids = IdRegion(base_offset, bytes(payload[tags.BASE_OFFSET.size :]))
            else:
                item.last_id = base_offset
    return item, position


def _sole_ids(data: memoryview, position: int) -> tuple[IdRegion, int] | None:
    """Return the ids, and the position after them, of a section of tagged fields that has few ids and nothing else.

    Return None for any other section, which `read_tags` reads with a call for each number.
    """
    head = position + len(_ONLY_IDS)
    if data[position:head] != _ONLY_IDS or not tags.BASE_OFFSET.size <= (size := data[head]) < 0x80:
        return None
    entries, end = head + 1 + tags.BASE_OFFSET.size, head + 1 + size
    if end > len(data):
        return None
    (base_offset,) = tags.BASE_OFFSET.unpack_from(data, head + 1)
    return IdRegion(base_offset, bytes(data[entries:end])), end
