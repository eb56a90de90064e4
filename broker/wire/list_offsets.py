"""ListOffsets (API key 2), v1 to v11, coded by hand as far as a broker needs it: consumers that want to know where a
partition ends before each poll (Spark's connector asks twice for 500 records) ask it far more often than they fetch.

Version notes (https://kafka.apache.org/protocol#The_Messages_ListOffsets): v2 isolation level (KIP-98) and throttle
time; v4 leader epochs (KIP-320); v6 flexible (KIP-482); v10 a timeout (KIP-1075), for brokers that ask others.
"""

import struct
from typing import NamedTuple

from broker.wire import tags
from broker.wire.errors import WireError
from broker.wire.primitives import (
    I32,
    length,
    read_count,
    read_length,
    read_string,
    read_tags,
    skip_tags,
)
from broker.wire.primitives import tags as tag_section
from broker.wire.primitives import told_where_cut
from broker.wire.request_limits import DEFAULT_LIMITS, RequestLimits
from broker.wire.topics import by_topic
from broker.wire.topics import topic as encode_topic

API_KEY = 2
LEADER_EPOCHS = 4
FLEXIBLE = 6
TIMEOUT = 10

NOT_FOUND = -1

_WHO = struct.Struct(">ib")  # replica id, isolation level
_WANTED = struct.Struct(">iq")  # index, timestamp
_WANTED_V4 = struct.Struct(">iiq")  # ... current leader epoch after index
_RESULT = struct.Struct(">ihqq")  # index, error, timestamp, offset
_record = tuple.__new__  # as WantedOffset(...), at half its price
_RESULT_V4 = struct.Struct(">ihqqi")  # ... leader epoch


class WantedOffset(NamedTuple):
    """`timestamp` is ms since 1970, a place (-1 latest, -2 earliest, ...) or, where ids are wanted, an id."""

    topic: str
    partition: int
    timestamp: int
    current_leader_epoch: int = -1


class ListOffsetsRequest(NamedTuple):
    replica_id: int
    isolation_level: int
    partitions: list[WantedOffset]
    by_id: bool = False


class FoundOffset(NamedTuple):
    """The answer for one partition."""

    topic: str
    partition: int
    error_code: int = 0
    timestamp: int = NOT_FOUND
    offset: int = NOT_FOUND
    leader_epoch: int = -1


class ListOffsetsResponse(NamedTuple):
    partitions: list[FoundOffset]
    by_id: bool = False


@told_where_cut("ListOffsets request")
def decode_request(
    version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS
) -> ListOffsetsRequest:
    """Decode a request from its body. Raise WireError."""
    flexible = version >= FLEXIBLE
    if version >= 2:
        replica_id, isolation_level = _WHO.unpack_from(data, position)
        position += 5
    else:
        (replica_id,), isolation_level = I32.unpack_from(data, position), 0
        position += 4
    partitions, position = _read_partitions(version, data, position, limits)
    if version >= TIMEOUT:
        position += 4
    by_id = flexible and data[position] != 0 and tags.IDS in read_tags(data, position)[0]
    return ListOffsetsRequest(replica_id, isolation_level, partitions, by_id)


def _read_partitions(
    version: int, data: memoryview, position: int, limits: RequestLimits
) -> tuple[list[WantedOffset], int]:
    flexible = version >= FLEXIBLE
    has_epochs = version >= LEADER_EPOCHS
    item_bytes = (_WANTED_V4 if has_epochs else _WANTED).size
    partitions: list[WantedOffset] = []
    topics, position = _read_count(data, position, flexible, 2, "topics")
    for _ in range(topics):
        topic, position = read_string(data, position, flexible)
        if topic is None:
            raise WireError("ListOffsets: a topic's name is null, which it may not be")
        number, position = _read_count(data, position, flexible, item_bytes, "partitions")
        limits.check_partitions(max(topics, len(partitions) + number))
        for _ in range(number):
            if has_epochs:
                index, leader_epoch, timestamp = _WANTED_V4.unpack_from(data, position)
            else:
                (index, timestamp), leader_epoch = _WANTED.unpack_from(data, position), -1
            position += item_bytes
            if flexible:
                position = skip_tags(data, position) if data[position] else position + 1
            partitions.append(_record(WantedOffset, (topic, index, timestamp, leader_epoch)))
        if flexible:
            position = skip_tags(data, position)
    return partitions, position


def _read_count(data: memoryview, position: int, flexible: bool, item_bytes_min: int, name: str) -> tuple[int, int]:
    is_short = flexible and 0 < data[position] < 0x80  # one byte that is not null, as nearly always: without a call
    if not is_short and read_length(data, position, flexible)[0] < 0:
        raise WireError(f"ListOffsets: {name} is null, which it may not be")
    return read_count(data, position, flexible, item_bytes_min)


def encode_response(version: int, response: ListOffsetsResponse, throttle_ms: int = 0) -> bytes:
    flexible = version >= FLEXIBLE
    end = b"\0" if flexible else b""
    grouped = by_topic(response.partitions)
    out = [I32.pack(throttle_ms) if version >= 2 else b"", length(len(grouped), flexible)]
    for topic, partitions in grouped:
        out += (encode_topic(topic, flexible, False), length(len(partitions), flexible))
        for _, index, error_code, timestamp, offset, leader_epoch in partitions:
            if version >= LEADER_EPOCHS:
                out += (_RESULT_V4.pack(index, error_code, timestamp, offset, leader_epoch), end)
            else:
                out.append(_RESULT.pack(index, error_code, timestamp, offset))
        out.append(end)
    if flexible:
        out.append(tag_section({tags.IDS: tags.REQUEST}) if response.by_id else b"\0")
    return b"".join(out)
