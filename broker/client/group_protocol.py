"""Subscriptions and assignments: messages between members of a consumer group, which the coordinator passes on.

    ConsumerProtocolSubscription, member to leader           ConsumerProtocolAssignment, leader to member
      version i16                                              version i16
      topics [string]                                          partitions [topic string, [i32]]
      user data bytes, may be null                             user data bytes, may be null
      owned partitions [topic string, [i32]]   since v1
      generation i32                           since v2
      rack string, may be null                 since v3

The cooperative-sticky assignor of Kafka's Java client also writes the generation into the user data, as i32, because v1
has no field for it. This module writes v3 with that user data, and reads every version (KIP-429, KIP-792, KIP-881).
"""

from collections.abc import Iterable
from struct import error as StructError
from typing import NamedTuple

from broker.wire.errors import WireError
from broker.wire.primitives import I16, I32, read_count, read_length, read_string, string

Partition = tuple[str, int]  # topic and partition number

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 1
NO_GENERATION = -1
_LENGTH_BYTES = 2  # a string has at least its length
_TOPIC_BYTES_MIN = 6  # an empty name and an empty array


class MemberSubscription(NamedTuple):
    """A member's topics, the partitions it owns, and the generation it owns them in (-1 if it told none)."""

    topics: tuple[str, ...]
    owned: tuple[Partition, ...] = ()
    generation: int = NO_GENERATION


def encode_subscription(subscription: MemberSubscription) -> bytes:
    """Encode a subscription as v3, with the generation in its user data as well."""
    topics = [string(topic, False) for topic in subscription.topics]
    return b"".join(
        (
            I16.pack(SUBSCRIPTION_VERSION),
            I32.pack(len(topics)),
            *topics,
            I32.pack(I32.size),
            I32.pack(subscription.generation),
            _encode_partitions(subscription.owned),
            I32.pack(subscription.generation),
            string(None, False),
        )
    )


def decode_subscription(data: bytes) -> MemberSubscription:
    """Decode a subscription of any version. Raise WireError if it is cut off or inconsistent."""
    try:
        (version,) = I16.unpack_from(data)
        count, position = read_count(data, I16.size, False, _LENGTH_BYTES)
        topics: list[str] = []
        for _ in range(count):
            topic, position = read_string(data, position, False)
            topics.append(topic or "")
        user_data, position = _read_bytes(data, position)
        owned: tuple[Partition, ...] = ()
        generation = I32.unpack(user_data)[0] if len(user_data) == I32.size else NO_GENERATION
        if version >= 1:
            owned, position = _read_partitions(data, position)
        if version >= 2:
            (generation,) = I32.unpack_from(data, position)
    except (StructError, IndexError):
        raise WireError("the subscription of a group member ends in the middle of a field") from None
    return MemberSubscription(tuple(topics), owned, generation)


def encode_assignment(partitions: Iterable[Partition]) -> bytes:
    """Encode the partitions of a member."""
    return I16.pack(ASSIGNMENT_VERSION) + _encode_partitions(partitions) + I32.pack(0)


def decode_assignment(data: bytes) -> tuple[Partition, ...]:
    """Decode the partitions of a member; empty bytes are none. Raise WireError if they are cut off."""
    if not data:
        return ()
    try:
        return _read_partitions(data, I16.size)[0]
    except (StructError, IndexError):
        raise WireError("the assignment of a group member ends in the middle of a field") from None


def _encode_partitions(partitions: Iterable[Partition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    out = [I32.pack(len(topics))]
    for topic, numbers in topics.items():
        out += (string(topic, False), I32.pack(len(numbers)), *map(I32.pack, numbers))
    return b"".join(out)


def _read_partitions(data: bytes, position: int) -> tuple[tuple[Partition, ...], int]:
    topics, position = read_count(data, position, False, _TOPIC_BYTES_MIN)
    partitions: list[Partition] = []
    for _ in range(topics):
        topic, position = read_string(data, position, False)
        numbers, position = read_count(data, position, False, I32.size)
        for _ in range(numbers):
            partitions.append((topic or "", I32.unpack_from(data, position)[0]))
            position += I32.size
    return tuple(partitions), position


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_length(data, position, False)
    end = position + max(length, 0)
    if end > len(data):
        raise WireError(f"user data of {length} bytes runs past the end of a group member's subscription")
    return bytes(data[position:end]), end
