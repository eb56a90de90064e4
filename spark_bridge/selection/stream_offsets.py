"""The offsets of a stream: one JSON document for each batch, which Spark keeps in its log.

    {"version": 1,
     "start": {"flights": {"0": 100, "1": 90}},      where this batch starts
     "end":   {"flights": {"0": 140, "1": 95}},      where it ends, exclusive
     "topic_ids": {"flights": "6d0f..."}}            of topics that have an id

Spark names a batch by two documents, the former batch's and its own. For the first batch it asks the source for the
start instead: twice in one run, and again after a restart. If the answers differ, the batch would change although its
end is in the log, and rows would be lost. So each document also has the start of its own batch, and the planner
reads no other document.

The connector writes {"flights": {"0": 140, "1": 95}}. Such a document is read too, so that a query that began with
format("kafka") goes on from its checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

VERSION = 1

Positions: TypeAlias = Mapping[str, Mapping[int, int]]
"""{topic: {partition: offset}}"""


class OffsetError(ValueError):
    """A document of Spark's log that is not a stream's offset, or does not belong to this query."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The start and the end of one batch. `start` is None if the connector wrote the document."""

    end: Positions
    start: Positions | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        start = self.end if self.start is None else self.start
        return {
            "version": VERSION,
            "start": _to_json(start),
            "end": _to_json(self.end),
            "topic_ids": dict(sorted(self.topic_ids.items())),
        }

    @classmethod
    def from_document(cls, document: Any) -> "StreamOffset":
        """Invert `to_document`, or read the connector's document. Raise OffsetError."""
        if not isinstance(document, dict):
            raise OffsetError(f"an offset of Spark's log is a JSON object; got {document!r}")
        if type(document.get("version")) is not int:
            return cls(_from_json("the offset", document))
        if document["version"] != VERSION:
            raise OffsetError(
                f"this offset of Spark's log has version {document['version']}, this release reads {VERSION}; "
                "a later release of Flakelog wrote the checkpoint"
            )
        if set(document) != {"version", "start", "end", "topic_ids"}:
            raise OffsetError(f"an offset has version, start, end, topic_ids; got {sorted(document)}")
        ids = document["topic_ids"]
        if not isinstance(ids, dict) or not all(isinstance(topic_id, str) for topic_id in ids.values()):
            raise OffsetError(f"topic_ids of an offset are texts by topic; got {ids!r}")
        return cls(_from_json("end", document["end"]), _from_json("start", document["start"]), ids)


def flattened(positions: Positions) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, partition, offset) in order."""
    for topic, offsets in sorted(positions.items()):
        for partition, offset in sorted(offsets.items()):
            yield topic, partition, offset


def position(positions: Positions, topic: str, partition: int) -> int | None:
    """Return the offset of a partition, or None if the positions do not have it."""
    return positions.get(topic, {}).get(partition)


def nested(flat: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    """Return {(topic, partition): offset} as positions."""
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(flat.items()):
        by_topic.setdefault(topic, {})[partition] = offset
    return by_topic


def _to_json(positions: Positions) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in sorted(offsets.items())}
        for topic, offsets in sorted(positions.items())
    }


def _from_json(name: str, value: Any) -> dict[str, dict[int, int]]:
    try:
        by_topic = {topic: {int(p): offset for p, offset in offsets.items()} for topic, offsets in value.items()}
    except (AttributeError, ValueError):
        raise OffsetError(f'{name} in Spark\'s log is like {{"topic": {{"0": 17}}}}; got {value!r}') from None
    for topic, partition, offset in flattened(by_topic):
        if type(offset) is not int or offset < 0:
            raise OffsetError(f"{name} in Spark's log: the offset of {topic}-{partition} is 0 or more; got {offset!r}")
    return by_topic
