"""A load of a chain, fixed and saved before it starts.

    {"flakelog_load": 1, "topic": "flights", "number": 3,
     "starts": {"0": 17, "1": 5}, "ends": {"0": 42, "1": 5}, "lost": [],
     "layout": {"format": "parquet", "partition_by": "day", "decode": null},
     "manifest": {"flakelog_manifest": ...}, "sha256": "..."}

A destination has one chain of loads for each topic, numbered from 0. `starts` and `ends` are positions: the next offset
of each partition before and after the load. The ranges of the manifest and of `lost` tile the offsets between them.
`lost` are offsets that the log no longer had; loads have it only if the user accepted the loss. Each range of the
manifest is one part, and a part's files are named after it. `sha256` is the hash of the canonical JSON of all other
fields, so an edited load does not load.

A load also names its `target`, where that has an identity (load.target), and its `chain`, where the user began a new
one in the place. Load 0 of the first chain has no chain, and loads of older versions name no target. After loads that
were withdrawn, a load names in `after` the last one that was not, or -1 if there is none.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from coordination.errors import FlakelogError
from spark_bridge.load.target import Target
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection import manifest as manifests
from spark_bridge.selection.manifest import Manifest, ManifestError
from spark_bridge.selection.record_file import in_words

FORMAT = 1
_FIELDS = {"flakelog_load", "topic", "number", "starts", "ends", "lost", "layout", "manifest", "sha256"}
_MAY_BE_LEFT_OUT = {"after", "chain", "target"}


class LoadError(FlakelogError):
    """A load that is not possible; the message says why, and the way out."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrangement of rows in a destination. Load 0 of a chain fixes it, because a reader sees all loads together.

    `partition_by` is "day", "hour", the name of a column, or None. `decode` describes how values became columns, as
    JSON, or is None; later loads may have more fields (load.schema_change).
    """

    format: str = "parquet"
    partition_by: str | None = None
    decode: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """A load of `topic`. Raise LoadError if ranges, losses and positions do not fit together."""

    topic: str
    number: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    manifest: Manifest
    layout: Layout = Layout()
    lost: tuple[OffsetRange, ...] = ()
    chain: int = 0
    target: Target | None = None
    after: int | None = None
    """The number of the last load whose messages are in, -1 without one; None if it is the one before."""

    def __post_init__(self) -> None:
        if self.number < 0 or set(self.starts) != set(self.ends):
            raise LoadError(f"load {self.number} of {self.topic!r}: starts and ends name other partitions")
        position = dict(self.starts)
        for range_ in sorted([*self.manifest.ranges, *self.lost]):
            if range_.topic != self.topic or position.get(range_.partition) != range_.start:
                raise LoadError(f"load {self.number} of {self.topic!r}: {range_} leaves a gap or overlaps")
            position[range_.partition] = range_.end
        if position != dict(self.ends):
            raise LoadError(f"load {self.number} of {self.topic!r}: the ranges do not reach its ends")

    @property
    def parts(self) -> tuple[OffsetRange, ...]:
        return self.manifest.ranges

    @property
    def follows(self) -> int:
        """Return the number of the load before this one in the chain; -1 if this one begins it."""
        return self.number - 1 if self.after is None else self.after

    @property
    def sha256(self) -> str:
        return hashlib.sha256(_canonical(self._body())).hexdigest()

    def to_json(self) -> str:
        """Return readable JSON that ends with a newline; equal loads give equal text."""
        return json.dumps(self._body() | {"sha256": self.sha256}, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def _body(self) -> dict[str, Any]:
        more: dict[str, Any] = {"chain": self.chain} if self.chain else {}
        if self.target is not None:
            more["target"] = self.target.to_dict()
        if self.after is not None:
            more["after"] = self.after
        return more | {
            "flakelog_load": FORMAT,
            "topic": self.topic,
            "number": self.number,
            "starts": _named(self.starts),
            "ends": _named(self.ends),
            "lost": [range_.to_dict() for range_ in self.lost],
            "layout": asdict(self.layout),
            "manifest": json.loads(self.manifest.to_json()),
        }


def from_json(text: str | bytes) -> Load:
    """Invert `Load.to_json` and verify the hash. Raise LoadError."""
    try:
        fields = json.loads(text)
        if fields["flakelog_load"] != FORMAT or set(fields) - _MAY_BE_LEFT_OUT != _FIELDS:
            raise KeyError("flakelog_load")
        load = Load(
            str(fields["topic"]),
            int(fields["number"]),
            _numbered(fields["starts"]),
            _numbered(fields["ends"]),
            manifests.load(json.dumps(fields["manifest"])),
            Layout(**fields["layout"]),
            tuple(OffsetRange.from_dict(range_) for range_ in fields["lost"]),
            int(fields.get("chain", 0)),
            Target.from_dict(fields["target"]) if "target" in fields else None,
            int(fields["after"]) if "after" in fields else None,
        )
    except ManifestError as error:
        raise LoadError(str(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"this is no load: {in_words(error)}") from None
    if load.sha256 != fields["sha256"]:
        raise LoadError(f"load {load.number} of {load.topic!r} was changed after it was written")
    return load


def describe(ranges: Iterable[OffsetRange]) -> str:
    """Return ranges and their sizes in words, as in "flights-0[17, 42) (25 offsets)"."""
    return ", ".join(f"{range_} ({range_.offsets:,} offsets)" for range_ in ranges)


def _named(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): positions[partition] for partition in sorted(positions)}


def _numbered(positions: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in positions.items()}


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
