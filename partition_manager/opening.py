"""Taking a partition over: read its stored progress, see what the log has, choose where to begin, and claim it.

A procedure: it yields requests and is sent their answers, never Failed (who carries it out asks again). The claim is
a write of the start under a new owner's name. It fences the former owner, whose writes name an older version from then
on, also one still on its way; and a start at "latest" stays where it was if this process dies before its first commit.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from partition_manager.config import SpoutConfig
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import Bounds, Fenced, FindBounds, Loaded, LoadOffset, Request, SaveOffset
from partition_manager.progress import Progress
from partition_manager.start_offset import Start, StartAt, choose_start, question


@dataclass(frozen=True, slots=True)
class Source:
    """What one spout reads, and in whose name its progress is kept."""

    topic: str
    topology_id: str
    topology_name: str
    start: StartAt
    config: SpoutConfig


class Opened(NamedTuple):
    """A claimed partition: its document and version, and how its start was chosen."""

    document: OffsetDocument
    version: int
    start: Start


def open_partition(source: Source, document: OffsetDocument) -> Generator[Request, Any, Opened]:
    """Opened. `document` is a template: whose partition, which broker, which owner. BadOffsetDocument."""
    topic, partition = document.topic, document.partition
    while True:
        loaded: Loaded = yield LoadOffset(topic, partition)
        stored = _usable(source, loaded, partition)
        bounds: Bounds = yield FindBounds(topic, partition)
        ask = question(source.start, topic, partition)
        found = (yield ask).offset if ask else None
        start = choose_start(stored, source.start, bounds, found, source.config)
        claim = document.at(start.progress)
        saved = yield SaveOffset(topic, partition, claim.encode(), loaded.version)
        if not isinstance(saved, Fenced):  # fenced: the former owner wrote once more; see what, and claim again
            return Opened(claim, saved.version, start)


def _usable(source: Source, loaded: Loaded, partition: int) -> Progress | None:
    if loaded.document is None:
        return None
    document = OffsetDocument.decode(loaded.document)
    document.require(source.topic, partition)
    if source.config.spout_ignore_stored and document.topology_id != source.topology_id:
        return None
    return document.progress
