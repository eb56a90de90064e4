"""What a clean stop leaves for the next start: `.stopped-cleanly`, with the facts of every closed segment.

While it is there, a segment whose files have just the sizes it says is taken as it says, and is not opened. The start
removes it: after a crash each closed segment is looked at, by a few small reads.
"""

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from crc32c import crc32c

from broker.log.closed_segment import ClosedSegment, Facts
from broker.log.partition_log import PartitionLog

FILE = ".stopped-cleanly"
"""Stands in the data directory from a clean stop to the next start."""

Noted: TypeAlias = Mapping[int, Facts]
"""The closed segments of one log, by their base offsets."""


def encode(logs: Iterable[PartitionLog]) -> bytes:
    """The file: a line of JSON per log, and a last line with the CRC-32C of what is above it."""
    lines = []
    for log in logs:
        closed = [segment.facts for segment in log.segments if isinstance(segment, ClosedSegment)]
        if closed:
            lines.append(json.dumps({"log": log.name, "topic_id": log.topic_id.hex, "segments": closed}))
    body = "".join(line + "\n" for line in lines).encode()
    return body + f"{crc32c(body):08x}\n".encode()


def decode(data: bytes) -> dict[tuple[str, str], Noted]:
    """By (directory name, topic id in hexadecimal). Nothing where it is damaged: the segments are looked at then."""
    body, check = data[:-9], data[-9:]
    if check != f"{crc32c(body):08x}\n".encode():
        return {}
    found: dict[tuple[str, str], Noted] = {}
    try:
        for line in body.decode().splitlines():
            log = json.loads(line)
            facts = [Facts(*each) for each in log["segments"]]
            found[log["log"], log["topic_id"]] = {each.base_offset: each for each in facts}
    except (ValueError, LookupError, TypeError):
        return {}  # another version wrote it
    return found
