"""Mirrors that copy into this cluster, by the documents of their processes (broker/client/mirror/document.py).

The documents come from a topic that others can write to. So nothing in them is trusted to be there, or to be of a type.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flakelog.console.json_fields import mapping_of, mappings_of, number_of, text_of, whole_of

ROWS_SHOWN = 200  # topics, and partitions
PROCESSES_SHOWN = 100
POINTS = ("records", "messages behind")
PAUSED = "paused"


class MirrorRow(NamedTuple):
    """A mirror of one source over all its processes."""

    name: str
    source: str
    states: Sequence[str]
    processes: int
    records: int
    records_per_s: float
    bytes_per_s: float
    lag: int | None
    errors: int
    stopped: int

    @property
    def is_paused(self) -> bool:
        """True if a process says that it is paused."""
        return PAUSED in self.states


class TopicRow(NamedTuple):
    """A topic of the source; `stopped` is why it is no longer copied."""

    name: str
    records: int
    records_per_s: float
    lag: int | None
    errors: int
    stopped: str


class MirrorPage(NamedTuple):
    """A mirror of one source. Topics with trouble and the most lag come first."""

    row: MirrorRow
    target: str
    prefix: str
    topics: Sequence[TopicRow]
    topics_left_out: int
    partitions: Sequence[Mapping[str, Any]]
    partitions_left_out: int
    processes: Sequence[Mapping[str, Any]]


def mirror_rows(documents: Iterable[Mapping[str, Any]]) -> list[MirrorRow]:
    """Return a row for each mirror and source, by name."""
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for document in documents:
        grouped.setdefault((text_of(document.get("name")), text_of(document.get("from"))), []).append(document)
    return [_row(*key, some) for key, some in sorted(grouped.items())]


def mirror_page(documents: Iterable[Mapping[str, Any]], name: str, source: str) -> MirrorPage | None:
    """Return the mirror of this name and source, None if no process of it runs."""
    mine = [
        document
        for document in documents
        if text_of(document.get("name")) == name and text_of(document.get("from")) == source
    ]
    if not mine:
        return None
    topics = _topics(mine)
    partitions = [row for document in mine for row in mappings_of(document.get("partitions"))]
    partitions.sort(key=lambda row: (-(number_of(row.get("lag")) or 0), text_of(row.get("topic"))))
    return MirrorPage(
        row=_row(name, source, mine),
        target=text_of(mine[0].get("to")),
        prefix=text_of(mine[0].get("prefix")),
        topics=topics[:ROWS_SHOWN],
        topics_left_out=max(len(topics) - ROWS_SHOWN, 0),
        partitions=[_partition(row) for row in partitions[:ROWS_SHOWN]],
        partitions_left_out=max(len(partitions) - ROWS_SHOWN, 0),
        processes=[_process(document) for document in mine[:PROCESSES_SHOWN]],
    )


def points_of(row: MirrorRow) -> list[float | None]:
    """Return the values of POINTS."""
    return [row.records_per_s, row.lag]


def _row(name: str, source: str, documents: Sequence[Mapping[str, Any]]) -> MirrorRow:
    stopped = {topic for document in documents for topic in mapping_of(document.get("stopped"))}
    return MirrorRow(
        name=name,
        source=source,
        states=sorted({text_of(document.get("state")) for document in documents}),
        processes=len(documents),
        records=_sum(documents, "records"),
        records_per_s=sum(number_of(document.get("records_per_s")) or 0.0 for document in documents),
        bytes_per_s=sum(number_of(document.get("bytes_per_s")) or 0.0 for document in documents),
        lag=_lag(documents),
        errors=_sum(documents, "errors"),
        stopped=len(stopped),
    )


def _topics(documents: Sequence[Mapping[str, Any]]) -> list[TopicRow]:
    rows: dict[str, list[Mapping[str, Any]]] = {}
    reasons: dict[str, str] = {}
    for document in documents:
        for row in mappings_of(document.get("topics")):
            rows.setdefault(text_of(row.get("topic")), []).append(row)
        reasons |= {text_of(topic): text_of(why) for topic, why in mapping_of(document.get("stopped")).items()}
    topics = [
        TopicRow(
            topic,
            _sum(some, "records"),
            sum(number_of(row.get("records_per_s")) or 0.0 for row in some),
            _lag(some),
            _sum(some, "errors"),
            reasons.get(topic, ""),
        )
        for topic, some in rows.items()
    ]
    return sorted(topics, key=lambda row: (not row.stopped, -(row.lag or 0), row.name))


def _sum(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(whole_of(row.get(name)) or 0 for row in rows)


def _lag(rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the sum of the lags that are known, None if none is."""
    lags = [lag for row in rows if (lag := whole_of(row.get("lag"))) is not None]
    return sum(lags) if lags else None


def _partition(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: number_of(row.get(name)) for name in ("copied", "end", "lag")}
    return numbers | {name: text_of(row.get(name)) for name in ("topic", "partition")}


def _process(document: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: text_of(document.get(name)) for name in ("host", "pid", "run_id", "state")}
    return texts | {"started_ms": int(number_of(document.get("started_ms")) or -1)}
