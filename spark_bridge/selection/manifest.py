"""The manifest of a replay: the exact ranges to read, fixed before any task starts.

    {"flakelog_manifest": 3,
     "cluster_id": "...", "topic_ids": {"flights": "..."},
     "selector": {"by": "id", "start": ..., "end": ...},
     "ranges": [{"topic": "flights", "partition": 0, "start": 17, "end": 42}, ...],
     "columns": ["key", "value", ...],
     "read_committed": true,
     "code_version": "...", "sha256": "..."}

Each range is one task and one file. `sha256` is the hash of the canonical JSON of all other fields (keys sorted, no
white space, UTF-8), so an edited manifest does not load. The manifest holds no time of creation, so the same selection
has the same hash. The cluster and topic ids prevent a run against another log of the same name. If a cluster gives no
id (Kafka before 2.8 has no topic ids), the field is null and not checked.

A manifest has the lowest format that can hold it, so equal selections have equal text in all versions. Format 2 has no
`read_committed`; it means a read of all records. Format 1 has no columns either; it means all columns but the headers.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordination.errors import FlakelogError
from coordination.listing import listed
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.row import choose

FORMAT = 3
TOPICS_NAMED_MAX = 5  # in a message
_COLUMNS, _READ_COMMITTED = "columns", "read_committed"
_FIELDS = {"flakelog_manifest", "cluster_id", "topic_ids", "selector", "ranges", "code_version", "sha256"}
_FIELDS_OF_FORMAT = {1: _FIELDS, 2: _FIELDS | {_COLUMNS}, 3: _FIELDS | {_COLUMNS, _READ_COMMITTED}}


class ManifestError(FlakelogError, ValueError):
    """Not a manifest, an edited manifest, or a manifest of another log; the message says which."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """An immutable manifest; its `ranges` are sorted, non-empty and do not overlap."""

    cluster_id: str | None
    topic_ids: Mapping[str, str | None]
    selector: Mapping[str, Any]
    ranges: tuple[OffsetRange, ...]
    code_version: str
    columns: tuple[str, ...] | None = None
    """The columns to read, in the order of `spark_bridge.reading.row`; None in a manifest of format 1."""
    read_committed: bool = False
    """Leave out records of transactions that were aborted; the ranges end at the last stable offsets."""

    def __post_init__(self) -> None:
        if list(self.ranges) != sorted(self.ranges):
            raise ManifestError("the ranges of a manifest are sorted by topic, partition and offset")
        for range_, other in zip(self.ranges, self.ranges[1:], strict=False):
            if range_.name == other.name and other.start < range_.end:
                raise ManifestError(f"{range_} and {other} overlap")
        unknown = {range_.topic for range_ in self.ranges} - set(self.topic_ids)
        if unknown:
            raise ManifestError(f"ranges of topics that have no entry in topic_ids: {sorted(unknown)}")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(_canonical(self._body())).hexdigest()

    @property
    def offsets(self) -> int:
        """Return the number of offsets in all ranges.

        It equals the number of records, unless transactions or compaction left gaps.
        """
        return sum(range_.offsets for range_ in self.ranges)

    def to_json(self) -> str:
        """Return readable JSON that ends with a newline; equal manifests give equal text."""
        return json.dumps(self._body() | {"sha256": self.sha256}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def _body(self) -> dict[str, Any]:
        columns = None if self.columns is None else list(self.columns)
        format, newer = 1, dict[str, Any]()
        if self.read_committed:
            format, newer = 3, {_COLUMNS: columns, _READ_COMMITTED: True}
        elif columns is not None:
            format, newer = 2, {_COLUMNS: columns}
        return newer | {
            "flakelog_manifest": format,
            "cluster_id": self.cluster_id,
            "topic_ids": dict(self.topic_ids),
            "selector": dict(self.selector),
            "ranges": [range_.to_dict() for range_ in self.ranges],
            "code_version": self.code_version,
        }

    def check_log(self, cluster_id: str | None, topic_ids: Mapping[str, str | None]) -> None:
        """Raise ManifestError unless the ids are those of the log the manifest was made from."""
        _same("cluster", self.cluster_id, cluster_id)
        for topic, topic_id in self.topic_ids.items():
            if topic not in topic_ids:
                raise ManifestError(f"topic {topic!r} of the manifest is gone")
            _same(f"topic {topic!r} (deleted and made again?)", topic_id, topic_ids[topic])


def load(text: str | bytes) -> Manifest:
    """Load a manifest and verify its hash. Raise ManifestError."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"a manifest is JSON: {error}") from None
    version = fields.get("flakelog_manifest") if isinstance(fields, dict) else None
    if type(version) is not int or version not in _FIELDS_OF_FORMAT:
        raise ManifestError(f'a manifest is a JSON object with "flakelog_manifest": 1 to {FORMAT}; got {version!r}')
    wanted = _FIELDS_OF_FORMAT[version]
    if set(fields) != wanted:
        raise ManifestError(f"fields missing or unknown in the manifest: {sorted(set(fields) ^ wanted)}")
    try:
        manifest = Manifest(
            fields["cluster_id"],
            dict(fields["topic_ids"]),
            dict(fields["selector"]),
            tuple(OffsetRange.from_dict(range_) for range_ in fields["ranges"]),
            str(fields["code_version"]),
            None if fields.get(_COLUMNS) is None else tuple(choose(fields[_COLUMNS])),
            bool(fields.get(_READ_COMMITTED, False)),
        )
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest does not hold together: {error}") from None
    if manifest.sha256 != fields["sha256"]:
        raise ManifestError(
            f"the manifest was changed after it was written: it says sha256 {fields['sha256']}, "
            f"its content has {manifest.sha256}"
        )
    return manifest


def differences(before: Manifest, now: Manifest) -> str:
    """Return in words what differs between the manifests of two runs; "" if they are equal."""
    changes = []
    made_again = [name for name in now.topic_ids if before.topic_ids.get(name) != now.topic_ids[name]]
    if set(before.topic_ids) != set(now.topic_ids):
        changes.append(f"it is of {_topics(before)}, this run of {_topics(now)}")
    elif before.cluster_id != now.cluster_id:
        changes.append("it is of another cluster")
    elif made_again:
        changes.append(f"{listed(sorted(made_again), TOPICS_NAMED_MAX)} was deleted and made again since")
    elif (before.selector, before.ranges) != (now.selector, now.ranges):
        changes.append("the log or the range has changed since")
    if before.read_committed != now.read_committed:
        changes.append(f"it reads {_isolation(before)}, this run {_isolation(now)}")
    if before.columns != now.columns:
        changes.append("it has other columns")
    if before.code_version != now.code_version:
        changes.append(f"it was made by version {before.code_version}")
    return ", and ".join(changes)


def _topics(manifest: Manifest) -> str:
    return listed(sorted(manifest.topic_ids), TOPICS_NAMED_MAX)


def _isolation(manifest: Manifest) -> str:
    return "read_committed" if manifest.read_committed else "read_uncommitted"


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _same(kind: str, ours: str | None, theirs: str | None) -> None:
    if ours is not None and theirs is not None and ours != theirs:
        raise ManifestError(f"the manifest is of another {kind}: id {ours}, this one has {theirs}")
