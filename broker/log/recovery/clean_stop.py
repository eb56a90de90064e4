"""The notes that a process leaves for the next start: `.stopped-cleanly` and `.uncut`.

A clean stop leaves `.stopped-cleanly`, with the facts of every closed segment.

If the file exists, the start trusts a segment whose files have exactly the noted sizes, and does not open it. The start
then removes the file, so a start after a crash checks each closed segment with a few small reads.

`.uncut` exists while no log and no id index was cut since the last start. A cut that is not synced could bring old ids
back beside new batches, and the sizes of the files do not show it. The names of removed segments could come back too.
So a start without either note syncs each log.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from broker.log import json_lines
from broker.log.closed_segment import ClosedSegment, Facts
from broker.log.partition_log import PartitionLog

FILE = ".stopped-cleanly"
"""Exists in the data directory from a clean stop until the next start."""

UNCUT = ".uncut"
"""Exists from the end of a start until a file is cut, or until a clean stop (`Storage.note_until_cut`)."""

Noted: TypeAlias = Mapping[int, Facts]
"""The closed segments of one log, by base offset."""


def encode(logs: Iterable[PartitionLog]) -> bytes:
    """Return the file's bytes: a line of JSON per log, then a line with the CRC-32C of those."""
    lines = []
    for log in logs:
        closed = [segment.facts for segment in log.segments.all if isinstance(segment, ClosedSegment)]
        if closed:
            lines.append({"log": log.name, "topic_id": log.topic_id.hex, "segments": closed})
    return json_lines.encode(lines)


def decode(data: bytes) -> dict[tuple[str, str], Noted]:
    """Return the noted segments by (directory name, topic id in hexadecimal).

    The result is empty if the file is damaged; recovery then checks the segments.
    """
    noted: dict[tuple[str, str], Noted] = {}
    try:
        for log in json_lines.decode(data):
            facts = [Facts(*segment) for segment in log["segments"]]
            noted[log["log"], log["topic_id"]] = {segment.base_offset: segment for segment in facts}
    except (ValueError, LookupError, TypeError):
        return {}  # damaged, or another version wrote it
    return noted
