"""Opening a partition: read its stored progress, find the log's bounds, choose the start, and claim the partition.

The procedure is a generator: it yields requests and receives their answers, never Failed, because its driver retries
failed requests. The claim is a write of the start offset under a new owner's name. It fences the former owner: all its
later writes, including one still on its way, name an older version. It also fixes a start at "latest", so that the
position is kept if this process dies before its first commit.

Stored progress is about the records of one topic id up to one leader epoch. Another topic id means that the topic was
deleted and created again: reading begins as for a new topic. The topic is looked up again before, because the template
may name the deleted topic, and the stored progress the new one. If the log's records of the stored epoch end below the
stored offset, the log was truncated there; the offsets above now hold other messages (KIP-101).
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any, NamedTuple

from broker.client.offset_spec import AtId, AtTime, OffsetSpec, position_of
from partition_manager.config import LATEST, SpoutConfig
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import (
    Bounds,
    EpochEnd,
    Fenced,
    FindBounds,
    FindEpochEnd,
    FindId,
    FindTime,
    ListPartitions,
    Loaded,
    LoadOffset,
    Partitions,
    Request,
    SaveOffset,
)
from partition_manager.progress import Progress, SettledRanges
from partition_manager.source import Source


class Start(NamedTuple):
    """The progress to begin with, the number of unsettled messages skipped, and the reason as text for a log.

    `truncated` is True if the log no longer has messages that the stored progress is about.
    """

    progress: Progress
    lost: int
    why: str
    truncated: bool = False


class Opened(NamedTuple):
    """A claimed partition: its document and version, its chosen start, and the former owner ("" if there was none).

    `recreated` is True if the stored progress was of a deleted topic of this name.
    """

    document: OffsetDocument
    version: int
    start: Start
    former: str = ""
    recreated: bool = False


Opening = Generator[Request, Any, Opened]


def open_partition(source: Source, document: OffsetDocument) -> Opening:
    """Open a partition and return Opened.

    `document` is a template that names the partition, the topic's id, the broker and the owner. Raise BadOffsetDocument
    if the stored progress cannot be used.
    """
    topic, partition = document.topic, document.partition
    while True:
        loaded: Loaded = yield LoadOffset(topic, partition, source.by_topic)
        stored = _usable(source, loaded, document)
        recreated = stored is not None and is_recreated(stored.topic_id, document.topic_id)
        if stored is not None and recreated:  # or another process has seen a newer topic than we have: look again
            looked: Partitions = yield ListPartitions(topic)
            document = replace(document, topic_id=looked.topic_id)
            recreated = is_recreated(stored.topic_id, document.topic_id)
        epoch = stored.leader_epoch if stored and not recreated else -1
        cut: EpochEnd = (yield FindEpochEnd(topic, partition, epoch)) if epoch >= 0 else EpochEnd(-1, -1)
        bounds: Bounds = yield FindBounds(topic, partition)
        request = match_request(source.start, topic, partition)
        match_offset = (yield request).offset if request else None
        if stored is not None and recreated:
            start = choose_start(None, source.start, bounds, match_offset, source.config)
            start = start._replace(why=f"the topic was recreated: its id was {stored.topic_id}")
        else:
            progress = stored.progress if stored is not None else None
            start = _start(source, progress, cut, bounds, match_offset)
        if start.truncated:  # the records left are of the epoch that ends there; it will show the next truncation
            epoch = cut.leader_epoch if start.progress.offset <= cut.end_offset else -1
        claim = document.at(start.progress, epoch)
        saved = yield SaveOffset(topic, partition, claim.encode(), loaded.version, source.by_topic)
        if not isinstance(saved, Fenced):  # fenced: the former owner wrote meanwhile, so load and claim again
            return Opened(claim, saved.version, start, stored.owner if stored else "", recreated)


def is_recreated(before: str, now: str) -> bool:
    """Return True if both ids are known and differ."""
    return bool(before and now and before != now)


def match_request(spec: OffsetSpec, topic: str, partition: int) -> FindTime | FindId | None:
    """Return the request, besides the log's bounds, whose answer is needed to find this position, or None."""
    match spec:
        case AtTime(timestamp_ms):
            assert isinstance(timestamp_ms, int), "check_start makes a number of a datetime"
            return FindTime(topic, partition, timestamp_ms)
        case AtId(id):
            return FindId(topic, partition, id)
    return None


def choose_start(
    stored: Progress | None, spec: OffsetSpec, bounds: Bounds, match_offset: int | None, config: SpoutConfig
) -> Start:
    """Choose the start position. `match_offset` answers `match_request`, None if all messages are before it.

    Stored progress takes precedence, even offset 0 (0.9.3 treated that as nothing stored). If the log no longer has the
    stored offset, the manager's rules for out of range apply, and messages that can no longer be read are counted as
    lost.
    """
    if stored is None:
        return Start(Progress(position_of(spec, bounds, match_offset).offset), 0, "nothing stored")
    start, end = bounds
    if stored.offset > end:
        why = f"stored offset {stored.offset} is past the log's end {end}: it was truncated"
        return Start(Progress(end), 0, why, truncated=True)
    if stored.offset < start:
        to = end if config.spout_out_of_range == LATEST else start
        return _skip(stored, to, end, f"stored offset {stored.offset} is below the log's start {start}")
    limit = config.spout_max_start_lag
    if limit is not None and end - stored.offset > limit:
        to = max(stored.offset, position_of(spec, bounds, match_offset).offset)
        return _skip(stored, to, end, f"stored offset {stored.offset} is {end - stored.offset} behind, over {limit}")
    return _skip(stored, stored.offset, end, "stored")


def _skip(stored: Progress, to: int, log_end: int, why: str) -> Start:
    ranges = SettledRanges(stored)
    ranges.cut(log_end)
    lost = to - stored.offset - ranges.count_in(stored.offset, to)
    if to > stored.offset:
        ranges.add(stored.offset, to)
    return Start(ranges.progress, lost, why)


def _start(
    source: Source, stored: Progress | None, cut: EpochEnd, bounds: Bounds, match_offset: int | None
) -> Start:
    end = cut.end_offset
    if stored is None or end < 0:
        return choose_start(stored, source.start, bounds, match_offset, source.config)
    if end < stored.offset:
        start = choose_start(Progress(end), source.start, bounds, match_offset, source.config)
        why = f"the log was truncated at {end}, stored offset {stored.offset} is of records that are gone"
        return start._replace(why=why, truncated=True)
    # Ranges above the end of the epoch were truncated too.
    done = tuple((first, min(last, end)) for first, last in stored.done if first < end)
    return choose_start(Progress(stored.offset, done), source.start, bounds, match_offset, source.config)


def _usable(source: Source, loaded: Loaded, document: OffsetDocument) -> OffsetDocument | None:
    if loaded.document is None:
        return None
    stored = OffsetDocument.decode(loaded.document)
    stored.require(document.topic, document.partition)
    if source.config.spout_ignore_stored and stored.topology_id != source.topology_id:
        return None
    return stored
