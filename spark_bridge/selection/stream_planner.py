"""The plan of a stream: its start, the end of its next batch, and the ranges of a batch.

The planner asks a cluster and returns documents for Spark's log (stream_offsets). It keeps nothing that a batch depends
on: after a restart, a new planner plans the same ranges from the same documents.

New partitions of a topic, and new topics of a pattern, join at their earliest offset. Data loss
(stream_begin) is an error with failOnDataLoss. Without it, the planner counts and reports the losses, and the stream
goes on with the offsets that exist.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from spark_bridge.reading.cluster import Description
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.plan import plan
from spark_bridge.selection.stream_begin import Loss, begin_of, gone
from spark_bridge.selection.stream_limits import StreamLimits, share
from spark_bridge.selection.stream_offsets import OffsetError, Positions, StreamOffset, flattened, nested, position

GO_ON = "failOnDataLoss=false goes on with the offsets that exist"


class StreamDataLoss(Exception):
    """Offsets of the stream are gone; the message names each partition and its offsets."""


class StreamSnapshot(Protocol):
    """The topics of a stream at one time, limited to the partitions that the options select."""

    @property
    def description(self) -> Description: ...

    def earliest(self, topic: str) -> Mapping[int, int]: ...

    def latest(self, topic: str) -> Mapping[int, int]:
        """Return the high watermarks, or with read_committed the last stable offsets."""
        ...


class StreamLog(Protocol):
    """The requests of a planner to a cluster."""

    def snapshot(self) -> StreamSnapshot:
        """Look at the topics that exist now."""
        ...

    def initial(self, snapshot: StreamSnapshot) -> Positions:
        """Return the offsets where the options let the stream start. Raise SelectionError."""
        ...


@dataclass(frozen=True, slots=True)
class Available:
    """The topics of a stream at one time, and how far each partition can be read."""

    latest: Positions
    topic_ids: Mapping[str, str]


class PlannedRange(NamedTuple):
    """A range for one task. `topic_id` is None if the cluster gives no ids of topics."""

    within: OffsetRange
    topic_id: str | None


class StreamPlanner:
    """The planner of one run of a stream. With failOnDataLoss=false, `on_loss` gets each loss."""

    def __init__(
        self,
        log: StreamLog,
        limits: StreamLimits = StreamLimits(),
        *,
        fail_on_data_loss: bool = True,
        min_partitions: int = 0,
        max_records_per_partition: int = 0,
        on_loss: Callable[[Loss], object] = lambda loss: None,
    ) -> None:
        self._log = log
        self._limits = limits
        self._fail = fail_on_data_loss
        self._min_partitions = min_partitions
        self._max_records = max_records_per_partition
        self._on_loss = on_loss
        self._target: Available | None = None
        self._initial: StreamOffset | None = None
        self._seen: Available | None = None
        self._planned: Positions = {}
        self._last_batch_ms: int | None = None
        self.lost = 0
        """Offsets known to be lost in this run."""

    def initial(self) -> dict[str, Any]:
        """Return the document of a stream that has read nothing yet."""
        if self._initial is None:
            snapshot = self._log.snapshot()
            positions = self._log.initial(snapshot)
            if self._target is not None:
                # AvailableNow ends there, so it cannot start behind it.
                positions = _up_to(self._target.latest, positions)
            self._initial = StreamOffset(positions, positions, _ids(snapshot.description))
        return self._initial.to_document()

    def freeze(self) -> None:
        """End this run at the offsets that are available now (AvailableNow). Later records belong to the next run."""
        self._target = _available(self._log.snapshot())

    def next(self, start: Any, *, limited: bool, now_ms: int) -> Any:
        """Return the document of the batch after `start`, or `start` itself if there is no batch yet.

        Without `limited`, the batch has everything that is available. Raise StreamDataLoss, OffsetError.
        """
        before = StreamOffset.from_document(start)
        snapshot = self._log.snapshot()
        available = self._seen = self._target or _available(snapshot)
        self._planned = before.end
        begins, losses = _begins(before, available, snapshot)
        if losses and self._fail:
            raise StreamDataLoss(f"{'; '.join(lost.reason for lost in losses)}. {GO_ON}")
        sizes = {(topic, p): available.latest[topic][p] - begin for (topic, p), begin in begins.items()}
        if not any(sizes.values()) and not losses:
            return start
        if limited and self._waits(sum(sizes.values()), now_ms):
            return start
        for loss in losses:
            self.lost += loss.offsets
            self._on_loss(loss)
        shares = share(sizes, self._limits.max_offsets if limited else 0)
        self._last_batch_ms = now_ms
        self._planned = nested({partition: begin + shares[partition] for partition, begin in begins.items()})
        return StreamOffset(self._planned, nested(begins), available.topic_ids).to_document()

    def ranges(self, start: Any, end: Any) -> list[PlannedRange]:
        """Return the ranges of the batch that `end` describes; Spark calls the former batch's document `start`."""
        if start == end:
            return []
        batch = StreamOffset.from_document(end)
        begins = self._begins_of_connector(start, batch) if batch.start is None else batch.start
        ranges = []
        for topic, partition, stop in flattened(batch.end):
            begin = position(begins, topic, partition)
            if begin is None:
                raise OffsetError(f"an offset of Spark's log has an end of {topic}-{partition} and no start")
            ranges.append(OffsetRange(topic, partition, min(begin, stop), stop))
        split = plan(ranges, min_partitions=self._min_partitions, max_records_per_partition=self._max_records)
        return [PlannedRange(part, batch.topic_ids.get(part.topic)) for part in split]

    def report(self) -> dict[str, Any] | None:
        """Return the latest offsets, and the lag of the planned batch's end behind them, for the query's progress."""
        if self._seen is None:
            return None
        latest = self._seen.latest
        behind = [last - (position(self._planned, topic, p) or 0) for topic, p, last in flattened(latest)] or [0]
        return {
            "latest": {topic: {str(p): last for p, last in offsets.items()} for topic, offsets in latest.items()},
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "lostOffsets": self.lost,
        }

    # --- the next batch ---------------------------------------------------------------------------------------------

    def _waits(self, offsets: int, now_ms: int) -> bool:
        if self._target is not None or self._last_batch_ms is None:
            return False  # AvailableNow reads to its end, and the first batch of a run is due, as in the connector
        return self._limits.waits(offsets, now_ms - self._last_batch_ms)

    def _begins_of_connector(self, start: Any, batch: StreamOffset) -> Positions:
        before = StreamOffset.from_document(start)
        if before.start is not None:
            raise OffsetError(
                "the connector planned the first batch of this checkpoint and did not finish it, so its start is not "
                "in Spark's log: finish it with format kafka, or begin a new checkpoint"
            )
        snapshot = self._log.snapshot()
        begins = {}
        for topic, partition, _ in flattened(batch.end):
            begin = position(before.end, topic, partition)
            begins[topic, partition] = snapshot.earliest(topic)[partition] if begin is None else begin
        return nested(begins)


def _available(snapshot: StreamSnapshot) -> Available:
    topics = snapshot.description.topics
    latest = {topic: dict(sorted(snapshot.latest(topic).items())) for topic in sorted(topics)}
    return Available(latest, _ids(snapshot.description))


def _begins(
    before: StreamOffset, available: Available, snapshot: StreamSnapshot
) -> tuple[dict[tuple[str, int], int], list[Loss]]:
    """Return where the next batch begins in each partition, and the losses before it."""
    begins: dict[tuple[str, int], int] = {}
    losses = list(gone(before.end, available.latest))
    for topic, latest in available.latest.items():
        positions = before.end.get(topic, {})
        former, now = before.topic_ids.get(topic), available.topic_ids.get(topic)
        made_again = positions and former is not None and now is not None and former != now
        if made_again:
            losses.append(Loss(f"topic {topic!r} was deleted and made again: its id was {former}, and is {now}", 0))
            positions = {}
        has_news = any(positions.get(partition) != last for partition, last in latest.items())
        earliest = snapshot.earliest(topic) if has_news else {}
        for partition, last in latest.items():
            first = earliest.get(partition, last)
            begin, loss = begin_of(f"{topic}-{partition}", positions.get(partition), first, last)
            begins[topic, partition] = begin
            if loss is not None and not made_again:
                losses.append(loss)
    return begins, losses


def _ids(description: Description) -> dict[str, str]:
    return {name: topic.id for name, topic in sorted(description.topics.items()) if topic.id is not None}


def _up_to(latest: Positions, positions: Positions) -> dict[str, dict[int, int]]:
    """Return the positions of the partitions in `latest`, none beyond its latest offset."""
    kept = {
        (topic, p): min(offset, latest[topic][p])
        for topic, p, offset in flattened(positions)
        if p in latest.get(topic, {})
    }
    return nested(kept)
