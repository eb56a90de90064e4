"""Replays and loads, by the manifests and receipts that they publish (spark_bridge/output/replay_topic.py).

The documents come from a topic that others can write to. So nothing in them is trusted to be there, or to be of a type.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker.client.blocking import Client
from broker.client.log_record import Record
from flakelog.console.json_fields import list_of, mapping_of, mappings_of, text_of, whole_of
from flakelog.console.messages import PartitionBounds, read_partition_records
from flakelog.console.text import pretty_json
from spark_bridge.output.replay_topic import TOPIC, VERSION

RECORDS_MAX = 1_000  # of the topic that are read, the newest ones
BYTES_MAX = 16 << 20
ROWS_SHOWN = 200
FILES_SHOWN = 200
JSON_CHARACTERS = 200_000


class WorkRow(NamedTuple):
    """A replay or a load in the list. `rows` is None until it is done."""

    key: str
    kind: str
    state: str
    at_ms: int
    location: str
    topics: Sequence[str]
    offsets: int
    rows: int | None
    number: int | None


class Bar(NamedTuple):
    """A bar of a plot: its label and value, and its length in per mille of the longest."""

    label: str
    value: int
    length: int


class WorkPage(NamedTuple):
    """A replay or a load: its ranges as bars, its files, and its documents as JSON."""

    row: WorkRow
    ranges: Sequence[Bar]
    files: Sequence[tuple[str, int | None, str]]
    poison: int
    left_out: Sequence[str]
    manifest: str
    receipt: str
    checksum: str


def read_documents(client: Client, span: PartitionBounds) -> dict[str, dict[str, Any]]:
    """Return the newest document of each key. Raise ClientError or WireError."""
    start = max(span.start, span.end - RECORDS_MAX)
    return documents_of(read_partition_records(client, TOPIC, 0, start, BYTES_MAX)[0])


def documents_of(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return the documents by key, in the order of the log; skip deleted ones, and those of another version."""
    latest: dict[str, bytes | None] = {}
    for record in records:
        key = (record.key or b"").decode(errors="replace")
        latest.pop(key, None)
        latest[key] = record.value
    documents = {}
    for key, value in latest.items():
        document = _decode(value)
        if document.get("v") == VERSION:
            documents[key] = document
    return documents


def work_rows(documents: Mapping[str, Mapping[str, Any]]) -> list[WorkRow]:
    """Return a row for each replay and load, the newest first."""
    rows = sorted((_row(key, document) for key, document in documents.items()), key=lambda row: -row.at_ms)
    return rows[:ROWS_SHOWN]


def rows_over_time(rows: Sequence[WorkRow]) -> list[list[float | None]]:
    """Return the written messages as columns: seconds since 1970, messages of loads, messages of replays."""
    done = sorted((row for row in rows if row.rows is not None and row.at_ms > 0), key=lambda row: row.at_ms)
    return [
        [row.at_ms / 1_000 for row in done],
        [float(row.rows or 0) if row.kind == "load" else None for row in done],
        [float(row.rows or 0) if row.kind != "load" else None for row in done],
    ]


def work_page(key: str, document: Mapping[str, Any]) -> WorkPage:
    """Return the page of one replay or load."""
    manifest, receipt = mapping_of(document.get("manifest")), mapping_of(document.get("receipt"))
    parts = mappings_of(receipt.get("parts"))
    files: list[tuple[str, int | None, str]] = []
    for part in (receipt, *parts):
        for name, file in mapping_of(part.get("files")).items():
            about = mapping_of(file)
            files.append((text_of(name), whole_of(about.get("rows")), text_of(about.get("sha256"))))
    poison = sum(len(mappings_of(part.get("poison"))) for part in (receipt, *parts))
    return WorkPage(
        row=_row(key, document),
        ranges=bars([(f"{one[0]}-{one[1]}", one[3] - one[2]) for one in _ranges(manifest)]),
        files=files[:FILES_SHOWN],
        poison=poison,
        left_out=[text_of(topic) for topic in list_of(document.get("left_out"))],
        manifest=_json(manifest),
        receipt=_json(receipt) if receipt else "",
        checksum=text_of(receipt.get("checksum")),
    )


def bars(items: Sequence[tuple[str, int]]) -> list[Bar]:
    """Return bars for values, in their order."""
    longest = max((value for _, value in items), default=0)
    return [Bar(name, value, value * 1_000 // longest if longest > 0 else 0) for name, value in items[:ROWS_SHOWN]]


def _row(key: str, document: Mapping[str, Any]) -> WorkRow:
    manifest, receipt = mapping_of(document.get("manifest")), mapping_of(document.get("receipt"))
    ranges = _ranges(manifest)
    topics = {offset_range[0] for offset_range in ranges} | (
        {text_of(manifest["topic"])} if "topic" in manifest else set()
    )
    return WorkRow(
        key,
        text_of(document.get("kind")),
        text_of(document.get("state")),
        whole_of(document.get("at_ms")) or -1,
        text_of(document.get("place")),
        sorted(topics),
        sum(end - start for _, _, start, end in ranges),
        whole_of(receipt.get("rows")) if receipt else None,
        whole_of(manifest.get("number")),
    )


def _ranges(manifest: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
    """Return (topic, partition, start, end) of the ranges; a load has them in the manifest that it contains."""
    listed = mappings_of(manifest.get("ranges")) or mappings_of(mapping_of(manifest.get("manifest")).get("ranges"))
    ranges = []
    for listed_range in listed:
        numbers = [whole_of(listed_range.get(name)) for name in ("partition", "start", "end")]
        partition, start, end = numbers
        if partition is not None and start is not None and end is not None and end >= start:
            ranges.append((text_of(listed_range.get("topic")), partition, start, end))
    return ranges


def _json(document: Mapping[str, Any]) -> str:
    try:
        text = pretty_json(json.dumps(document).encode()) or ""
    except RecursionError:
        text = "it is nested too deep to be shown"
    return text if len(text) <= JSON_CHARACTERS else text[:JSON_CHARACTERS] + "\n…"


def _decode(value: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(value or b"")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
