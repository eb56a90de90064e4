"""Opening a partition: read its stored progress, find the log's bounds, choose the start, and claim the partition.

The procedure is a generator: it yields requests and receives their answers, never Failed, because its driver retries
failed requests. The claim is a write of the start offset under a new owner's name. It fences the former owner: all its
later writes, including one still on its way, name an older version. It also fixes a start at "latest", so that the
position is kept if this process dies before its first commit.
"""

from collections.abc import Generator
from typing import Any, NamedTuple

from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import Bounds, Fenced, FindBounds, Loaded, LoadOffset, Request, SaveOffset
from partition_manager.progress import Progress
from partition_manager.source import Source
from partition_manager.start_offset import Start, choose_start, question


class Opened(NamedTuple):
    """A claimed partition: its document and version, and its chosen start."""

    document: OffsetDocument
    version: int
    start: Start


def open_partition(source: Source, document: OffsetDocument) -> Generator[Request, Any, Opened]:
    """Open a partition and return Opened.

    `document` is a template that names the partition, the broker and the owner. Raise BadOffsetDocument if the stored
    progress cannot be used.
    """
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
        if not isinstance(saved, Fenced):  # fenced: the former owner wrote meanwhile, so load and claim again
            return Opened(claim, saved.version, start)


def _usable(source: Source, loaded: Loaded, partition: int) -> Progress | None:
    if loaded.document is None:
        return None
    document = OffsetDocument.decode(loaded.document)
    document.require(source.topic, partition)
    if source.config.spout_ignore_stored and document.topology_id != source.topology_id:
        return None
    return document.progress
