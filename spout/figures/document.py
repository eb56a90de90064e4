"""The document about itself that a topology's process publishes every two seconds, for web consoles of other processes.

    topic   __flakelog_topologies, compacted, on the cluster that the spouts read
    key     <topology id>/<run id>: one for each process
    value   {"v": 1, "topology", "topology_id", "run_id", "host", "pid", "state", "started_ms", "at_ms",
             "expires_ms", "in_flight", "components": [...], "partitions": [...], "dead_letter_topics": [...],
             "rates": {...}, "latency_ms": {...}, "lag": {...}}
            as spout.figures.model has them; null (a tombstone) after a clean stop

Inside Storm each task is a process, and its document has one component with one task. The documents of all processes of
a topology id add up.

A document without a successor is stale after `expires_ms` (Unix ms), because its process was killed or is cut off.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

from spout.figures.model import RATES, Rates, Snapshot, SpoutPartitionFigures

TOPIC = "__flakelog_topologies"
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),  # only closed segments are compacted, and each process writes some kB a second
    "min.cleanable.dirty.ratio": "0.1",
}
VERSION = 1
INTERVAL_MS = 2_000
EXPIRES_MS = 10_000  # five intervals: a busy process misses one or two
PARTITIONS_MAX = 1_000  # in one document, those with trouble and the most lag first: about 250 kB, below 1 MiB
_PARTITION_FIELDS = tuple(field.name for field in fields(SpoutPartitionFigures))
_PARTITION_VALUES = attrgetter(*_PARTITION_FIELDS)


def key_of(taken: Snapshot) -> bytes:
    """Return the key of a process's documents."""
    return f"{taken.topology_id}/{taken.run_id}".encode()


def as_document(taken: Snapshot) -> dict[str, Any]:
    """Return a snapshot as data for JSON."""
    values = map(_PARTITION_VALUES, taken.partitions)
    partitions = [dict(zip(_PARTITION_FIELDS, of_partition, strict=True)) for of_partition in values]
    return asdict(replace(taken, partitions=())) | {"partitions": partitions}  # asdict takes 30 times as long for each


def document_of(before: Snapshot | None, after: Snapshot, *, host: str, pid: int) -> bytes:
    """Return the document of a snapshot; rates are those since `before`, or since the start."""
    rates = Rates(before, after)
    most = tuple(after.by_need()[:PARTITIONS_MAX])
    document = as_document(replace(after, partitions=most)) | {
        "v": VERSION,
        "host": host,
        "pid": pid,
        "expires_ms": after.at_ms + EXPIRES_MS,
        "partitions_left_out": len(after.partitions) - len(most),
        "lag": {name: after.lag(name) for name in ("lag", "lag_bytes", "lag_ms")},
        "rates": {
            component.name: {name: round(rates.rate(component.name, name), 1) for name in RATES}
            for component in after.components
        },
        "latency_ms": {
            spout.name: {"p50": rates.latency_ms(spout.name, 0.5), "p99": rates.latency_ms(spout.name, 0.99)}
            for spout in after.spouts
        },
    }
    return json.dumps(document, separators=(",", ":")).encode()


def running(records: Iterable[tuple[bytes | None, bytes | None]], now_ms: int) -> list[dict[str, Any]]:
    """Return the documents of the processes that run, from (key, value) pairs in the order of the log.

    Skip documents that are expired, were replaced, or are not of VERSION.
    """
    latest = {key: value for key, value in records}
    documents = [decode(value) for value in latest.values() if value is not None]
    return [document for document in documents if is_fresh(document, now_ms)]


class BoltsLately(NamedTuple):
    """The latest outages and failures of the bolts of a topology.

    `holds` is True if one held tuples, because a service was away. `failures` are the exceptions, each with its bolt,
    of messages by topic, partition and offset.
    """

    holds: bool
    failures: Mapping[tuple[str, int, int], str]


def bolts_lately(values: Iterable[bytes], topology_id: str) -> BoltsLately:
    """Return what the documents of the bolts of this topology tell, in the order of the log."""
    holds = False
    failures: dict[tuple[str, int, int], str] = {}
    for value in values:
        document = decode(value)
        components = document.get("components")
        if document.get("topology_id") != topology_id or not isinstance(components, list):
            continue
        for component in components:
            try:
                if component["kind"] == "bolt":
                    holds = holds or bool(component["outages"])
                    for failure in component["failures"]:
                        failures[failure["topic"], failure["partition"], failure["offset"]] = str(failure["error"])
            except (KeyError, TypeError):
                continue  # not as this module makes it
    return BoltsLately(holds, failures)


def is_fresh(document: Mapping[str, Any], now_ms: int) -> bool:
    """Return True if a document has not expired. Others can write to the topic, so the field may be of any type."""
    expires_ms = document.get("expires_ms")
    return isinstance(expires_ms, (int, float)) and expires_ms > now_ms


def decode(value: bytes) -> dict[str, Any]:
    """Return a document, an empty one if the value is none of VERSION."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and document.get("v") == VERSION else {}
