"""The records of `__consumer_offsets`, in Kafka's schema (its OffsetCommitKey/Value.json, GroupMetadataKey/Value.json).

A key is a version (i16) and fields: version 0 or 1 is group, topic and partition of a committed offset; version 2 is a
group. A value is a version (i16) and the fields below, in this order. Numbers in brackets are the versions that have
the field. Version 4 is flexible (KIP-915): compact lengths and tagged fields.

    committed offset   offset i64 | leader epoch i32 (3+) | metadata string | commit time i64 | expire time i64 (1)
    group              protocol type string | generation i32 | protocol string? | leader string? |
                       state time i64 (2+) | members: member id string | instance id string? (3+) | client id string |
                       client host string | rebalance timeout i32 (1+) | session timeout i32 | subscription bytes |
                       assignment bytes

All versions are read. Version 3 of both is written, as Kafka 2.3 to 4.x do; version 1 for an offset with an expiry
time. A null value is a tombstone. The codec does not use kio, because kio has the messages on the wire only, not the
records on disk.
"""

import struct
from typing import NamedTuple, TypeAlias

from broker.group.group import Group
from broker.group.member import Member
from broker.group.offsets import NO_EPOCH, NO_EXPIRY, CommittedOffset
from broker.group.results import GroupProtocol
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
    skip_tags,
    string,
)

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION = 3
EXPIRING_VALUE_VERSION = 1
FLEXIBLE_VERSION = 4
MEMBER_BYTES_MIN = 12

NO_TIME = -1

# A record's string has at most 32,767 bytes; a request's string may be longer. A member id is a client id and 37 bytes.
NAME_BYTES_MAX = 16_384

_DAMAGE = (WireError, IndexError, struct.error)


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's record."""

    group_id: str


Key: TypeAlias = OffsetKey | GroupKey


class StoredGroup(NamedTuple):
    """A group as stored in its record. `state_since_ms` is wall time, -1 if the record's schema lacks it."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_since_ms: int
    members: tuple[Member, ...]


class BadOffsetsRecord(ValueError):
    """A damaged record of __consumer_offsets, or one of an unknown version; the message says which."""


def is_too_long(*names: str | None) -> bool:
    """Return True if one of these names is too long to be stored."""
    return any(name is not None and len(name.encode()) > NAME_BYTES_MAX for name in names)


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return I16.pack(OFFSET_KEY_VERSION) + string(group_id, False) + string(topic, False) + I32.pack(partition)


def group_key(group_id: str) -> bytes:
    return I16.pack(GROUP_KEY_VERSION) + string(group_id, False)


def read_key(data: Buffer) -> Key | None:
    """Return a record's key, or None for a kind only a newer Kafka writes. Raise BadOffsetsRecord if it is damaged."""
    return _Reader(data, "key").key()


def offset_value(committed: CommittedOffset) -> bytes:
    """Encode an offset, in version 1 if the commit set an expiry time, else in version 3."""
    if committed.expire_ms != NO_EXPIRY:
        times = I64.pack(committed.commit_ms) + I64.pack(committed.expire_ms)
        head = I16.pack(EXPIRING_VALUE_VERSION) + I64.pack(committed.offset)
        return head + string(committed.metadata, False) + times
    head = I16.pack(VALUE_VERSION) + I64.pack(committed.offset) + I32.pack(committed.leader_epoch)
    return head + string(committed.metadata, False) + I64.pack(committed.commit_ms)


def read_offset_value(data: Buffer) -> CommittedOffset:
    """Decode an offset of versions 0 to 4. Raise BadOffsetsRecord for any other value."""
    return _Reader(data, "committed offset").committed_offset()


def group_value(group: Group) -> bytes:
    """Encode the present state of a group, with its members and their assignments."""
    state_since_ms = NO_TIME if group.state_since_ms is None else group.state_since_ms
    head = [
        I16.pack(VALUE_VERSION),
        string(group.protocol_type or "", False),
        I32.pack(group.generation),
        string(group.protocol_name, False),
        string(group.leader_id, False),
        I64.pack(state_since_ms),
        I32.pack(len(group.members)),
    ]
    return b"".join(head + [_member(member, group.protocol_name) for member in group.members.values()])


def _member(member: Member, protocol_name: str | None) -> bytes:
    names = (member.member_id, member.instance_id, member.client_id, member.client_host)
    timeouts = I32.pack(member.rebalance_timeout_ms) + I32.pack(member.session_timeout_ms)
    data = (member.metadata(protocol_name), member.assignment)
    return b"".join(string(n, False) for n in names) + timeouts + b"".join(length(len(d), False) + d for d in data)


def read_group_value(data: Buffer) -> StoredGroup:
    """Decode a group of versions 0 to 4. Raise BadOffsetsRecord for any other value."""
    return _Reader(data, "group").group()


class _Reader:
    """A field-by-field decoder of one key or value; raises BadOffsetsRecord for every fault in it."""

    def __init__(self, data: Buffer, kind: str) -> None:
        self._data = data
        self._kind = kind
        try:
            self._version = I16.unpack_from(data)[0]
        except struct.error:
            raise BadOffsetsRecord(f"a {kind} of __consumer_offsets of {len(data)} bytes has no version") from None
        self._position = I16.size
        self._flexible = self._version >= FLEXIBLE_VERSION

    def key(self) -> Key | None:
        if self._version < 0 or self._version > GROUP_KEY_VERSION:
            return None
        try:
            if self._version == GROUP_KEY_VERSION:
                return GroupKey(self._string())
            return OffsetKey(self._string(), self._string(), self._int(I32))
        except _DAMAGE as error:
            raise self._bad(error) from None

    def committed_offset(self) -> CommittedOffset:
        self._check_version()
        try:
            offset = self._int(I64)
            leader_epoch = self._int(I32) if self._version >= 3 else NO_EPOCH
            metadata, commit_ms = self._string(), self._int(I64)
            expire_ms = self._int(I64) if self._version == EXPIRING_VALUE_VERSION else NO_EXPIRY
            return CommittedOffset(offset, leader_epoch, metadata, commit_ms, expire_ms)
        except _DAMAGE as error:
            raise self._bad(error) from None

    def group(self) -> StoredGroup:
        self._check_version()
        try:
            protocol_type, generation = self._string(), self._int(I32)
            protocol_name, leader_id = self._nullable_string(), self._nullable_string()
            state_since_ms = self._int(I64) if self._version >= 2 else NO_TIME
            members = self._members(protocol_name)
            return StoredGroup(protocol_type, generation, protocol_name, leader_id, state_since_ms, members)
        except _DAMAGE as error:
            raise self._bad(error) from None

    def _members(self, protocol_name: str | None) -> tuple[Member, ...]:
        count, self._position = read_count(self._data, self._position, self._flexible, MEMBER_BYTES_MIN)
        return tuple(self._member(protocol_name) for _ in range(count))

    def _member(self, protocol_name: str | None) -> Member:
        member_id = self._string()
        instance_id = self._nullable_string() if self._version >= 3 else None
        client = (self._string(), self._string())
        rebalance_timeout_ms = self._int(I32) if self._version >= 1 else NO_TIME
        session_timeout_ms = self._int(I32)
        if rebalance_timeout_ms == NO_TIME:
            rebalance_timeout_ms = session_timeout_ms
        protocols = (GroupProtocol(protocol_name or "", self._bytes()),)
        member = Member(
            member_id, instance_id, client, (session_timeout_ms, rebalance_timeout_ms), protocols, self._bytes()
        )
        if self._flexible:
            self._position = skip_tags(self._data, self._position)
        return member

    def _int(self, kind: struct.Struct) -> int:
        value: int = kind.unpack_from(self._data, self._position)[0]
        self._position += kind.size
        return value

    def _nullable_string(self) -> str | None:
        value, self._position = read_string(self._data, self._position, self._flexible)
        return value

    def _string(self) -> str:
        value = self._nullable_string()
        if value is None:
            raise WireError(f"a string at byte {self._position} is null")
        return value

    def _bytes(self) -> bytes:
        count, start = read_length(self._data, self._position, self._flexible)
        end = start + count
        if count < 0 or end > len(self._data):
            raise WireError(f"bytes of length {count} at byte {start}, of {len(self._data)}")
        self._position = end
        return bytes(self._data[start:end])

    def _check_version(self) -> None:
        if not 0 <= self._version <= FLEXIBLE_VERSION:
            wanted = f"versions 0 to {FLEXIBLE_VERSION} are known"
            raise BadOffsetsRecord(f"a {self._kind} of __consumer_offsets has version {self._version}; {wanted}")

    def _bad(self, error: Exception) -> BadOffsetsRecord:
        return BadOffsetsRecord(f"a {self._kind} (version {self._version}) of __consumer_offsets is damaged: {error}")


def partition_of(group_id: str, partitions: int) -> int:
    """Return a group's partition of __consumer_offsets: Kafka's `Utils.abs(groupId.hashCode()) % partitions`.

    Java's hash works on UTF-16 code units, so a character outside the basic plane counts as two.
    """
    code = 0
    for (unit,) in struct.iter_unpack(">H", group_id.encode("utf-16-be", "surrogatepass")):
        code = (code * 31 + unit) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    # The smallest Java int has no absolute value; Kafka's Utils.abs returns 0 for it.
    return 0 if code == 1 << 31 else abs(signed) % partitions
