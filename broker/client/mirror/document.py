"""The figures of a mirror as data for JSON, and the document that its process publishes for web consoles.

    topic   __flakelog_mirrors, compacted, on the target
    key     <name>/<source's cluster id>/<run id>: one for each process and source
    value   {"v": 1, ...}: the fields of `fields_of`, and "host", "pid", "run_id", "started_ms", "at_ms", "expires_ms";
            null (a tombstone) after a clean stop

A document without a successor is stale after `expires_ms` (Unix ms), because its process was killed or is cut off.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker.client.mirror.figures import MirrorFigures, MirrorRates
from broker.client.mirror.settings import MirrorSettings

TOPIC = "__flakelog_mirrors"
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),  # only closed segments are compacted
    "min.cleanable.dirty.ratio": "0.1",
}
VERSION = 1
INTERVAL_MS = 2_000
EXPIRES_MS = 10_000  # five intervals: a busy process misses one or two
ROWS_MAX = 1_000  # topics and partitions in one document, those with the most lag first: below 1 MiB


class MirrorProcess(NamedTuple):
    """The identity of the process that runs a mirror."""

    run_id: str
    host: str
    pid: int
    started_ms: int


def fields_of(
    settings: MirrorSettings, group: str, before: MirrorFigures | None, after: MirrorFigures
) -> dict[str, Any]:
    """Return the figures of a mirror; rates are those since `before`, or since the start."""
    rates, total = MirrorRates(before, after), after.total
    names = {*after.topics, *after.stopped, *(topic for topic, _ in after.partitions)}
    return {
        "name": settings.name,
        "from": settings.source.servers,
        "to": settings.target.servers,
        "prefix": settings.prefix,
        "group": group,
        "state": after.state,
        "seconds": round(after.seconds, 3),
        "records": total.records,
        "bytes": total.bytes,
        "errors": total.errors,
        "records_per_s": round(rates.records(), 1),
        "bytes_per_s": round(rates.size(), 1),
        "lag": after.lag,
        "topics": [_topic_fields(name, rates, after) for name in sorted(names)],
        "partitions": [
            {"topic": topic, "partition": number, "copied": row.copied, "end": row.end, "lag": row.lag}
            for (topic, number), row in sorted(after.partitions.items())
        ],
        "stopped": dict(after.stopped),
    }


def _topic_fields(name: str, rates: MirrorRates, after: MirrorFigures) -> dict[str, Any]:
    counts = after.counts(name)
    return {
        "topic": name,
        "records": counts.records,
        "bytes": counts.bytes,
        "errors": counts.errors,
        "records_per_s": round(rates.records(name), 1),
        "bytes_per_s": round(rates.size(name), 1),
        "lag": after.lag_of(name),
    }


def document_of(fields: Mapping[str, Any], process: MirrorProcess, now_ms: int) -> bytes:
    """Return the document of these fields, which holds for EXPIRES_MS."""
    rows = {name: sorted(fields[name], key=lambda row: -(row["lag"] or 0)) for name in ("topics", "partitions")}
    document = {
        **fields,
        **process._asdict(),
        **{name: some[:ROWS_MAX] for name, some in rows.items()},
        "v": VERSION,
        "at_ms": now_ms,
        "expires_ms": now_ms + EXPIRES_MS,
    }
    return json.dumps(document, separators=(",", ":")).encode()
