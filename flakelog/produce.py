"""Sending messages with our own client: the partition that each goes to, and the offset and the id that it gets.

`flakelog produce` and the web console send with this.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from broker.client.blocking import Client
from broker.record.compression import Codec
from broker.record.records import BatchRecord, Headers, encode_batch

QUOTED_CHARACTERS = 60  # of a wrong header in its error


class Sent(NamedTuple):
    """The place of a message that the broker acknowledged; `id` is None if the broker has no ids."""

    partition: int
    offset: int
    id: int | None


def partition_of(key: bytes | None, partitions: int, turn: int | None = None) -> int:
    """Return the partition of a key, as librdkafka does by default: by its CRC-32.

    `turn` selects it for a key that is null or empty; without a turn, chance does.
    """
    if key:
        return crc32(key) % partitions
    return random.randrange(partitions) if turn is None else turn % partitions


def parse_header(text: str) -> tuple[str, bytes | None]:
    """Split NAME=VALUE; NAME alone is a header whose value is null. Raise ValueError for a name that cannot be sent."""
    name, sign, value = text.partition("=")
    if not name:
        raise ValueError(f"{text[:QUOTED_CHARACTERS]!r} is no header; give NAME=VALUE")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name in {text[:QUOTED_CHARACTERS]!r} is no UTF-8 text") from None
    return name, value.encode(errors="surrogateescape") if sign else None


def send(
    client: Client,
    topic: str,
    partition: int,
    messages: Sequence[tuple[bytes | None, bytes | None]],
    now_ms: int,
    headers: Headers = (),
    codec: Codec = Codec.NONE,
) -> list[Sent]:
    """Send (key, value) pairs to a partition as one batch, with these headers each; a None is a null.

    Return their places, in order. Raise ClientError.
    """
    records = [BatchRecord(delta, 0, key, value, headers) for delta, (key, value) in enumerate(messages)]
    batch = encode_batch(records, base_timestamp_ms=now_ms, codec=codec)
    result = client.produce(topic, partition, batch)
    ids = [first + i for first, count in result.runs for i in range(count)]
    return [
        Sent(partition, result.base_offset + delta, ids[delta] if ids else None) for delta in range(len(messages))
    ]
