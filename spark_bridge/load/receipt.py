"""The receipt of a load: the files that hold its rows.

    {"flakelog_load_receipt": 1, "topic": "flights", "number": 3, "load_sha256": "...", "rows": 25,
     "parts": [{"range": {"topic": "flights", "partition": 0, "start": 17, "end": 42}, "attempt": "5f0c...",
                "files": {"day=2013-01-01/flights-00000-....parquet": {"rows": 25, "bytes": 900, "sha256": "..."}},
                "poison": [], "rejected": {}, "lost": []}]}

`attempt` names the run that wrote the part's files. `poison` names the batches that were left out, as in the receipt of
a replay. `rejected` has the file of messages whose values did not decode. `lost` are the part's offsets that the log no
longer had when the part was read, and the user accepted that; a part without `lost` has none. `commit` is the load's
commit in its target (load.target), once it is made. `withdrawn` is true, and there are no parts, if a run gave the load
up and the next load takes its messages; other receipts do not have it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.target import Commit
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.skipped import SkippedBatch, from_dicts, to_dicts
from spark_bridge.selection.record_file import in_words

FORMAT = 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """The rows and bytes of a file, and the SHA-256 of its bytes."""

    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """The files of one part, by their names in the destination. A part without rows has none."""

    range: OffsetRange
    attempt: str
    files: Mapping[str, DataFile]
    poison: tuple[SkippedBatch, ...] = ()
    rejected: Mapping[str, DataFile] = field(default_factory=dict)
    """The file of messages whose values did not decode, if there are any; readers of the rows do not see it."""
    lost: tuple[OffsetRange, ...] = ()

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    def to_dict(self) -> dict[str, Any]:
        return {
            "range": self.range.to_dict(),
            "attempt": self.attempt,
            "files": {name: asdict(file) for name, file in sorted(self.files.items())},
            "poison": to_dicts(self.poison),
            "rejected": {name: asdict(file) for name, file in sorted(self.rejected.items())},
        } | ({"lost": [range_.to_dict() for range_ in self.lost]} if self.lost else {})

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n"


def part_from_json(text: str | bytes) -> WrittenPart:
    """Invert `WrittenPart.to_json`. Raise LoadError."""
    try:
        return _part(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"this is no record of a part: {in_words(error)}") from None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of a load. `parts` are in the order of the load's ranges."""

    topic: str
    number: int
    load_sha256: str
    parts: tuple[WrittenPart, ...]
    commit: Commit | None = None
    withdrawn: bool = False

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def files(self) -> dict[str, DataFile]:
        return {name: file for part in self.parts for name, file in part.files.items()}

    @property
    def rejected(self) -> dict[str, DataFile]:
        """Return the files of messages that were kept apart because their values did not decode."""
        return {name: file for part in self.parts for name, file in part.rejected.items()}

    @property
    def rejected_rows(self) -> int:
        return sum(file.rows for file in self.rejected.values())

    @property
    def lost(self) -> tuple[OffsetRange, ...]:
        return tuple(range_ for part in self.parts for range_ in part.lost)

    @property
    def poison(self) -> tuple[SkippedBatch, ...]:
        return tuple(sorted({batch for part in self.parts for batch in part.poison}))

    def to_json(self) -> str:
        fields: dict[str, Any] = {
            "flakelog_load_receipt": FORMAT,
            "topic": self.topic,
            "number": self.number,
            "load_sha256": self.load_sha256,
            "rows": self.rows,
            "parts": [part.to_dict() for part in self.parts],
        }
        if self.commit is not None:
            fields["commit"] = self.commit.to_dict()
        if self.withdrawn:
            fields["withdrawn"] = True
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"


def from_json(text: str | bytes) -> Receipt:
    """Invert `Receipt.to_json`. Raise LoadError."""
    try:
        fields = json.loads(text)
        if fields["flakelog_load_receipt"] != FORMAT:
            raise KeyError("flakelog_load_receipt")
        parts = tuple(_part(part) for part in fields["parts"])
        commit = Commit.from_dict(fields["commit"]) if "commit" in fields else None
        withdrawn = bool(fields.get("withdrawn"))
        receipt = Receipt(fields["topic"], fields["number"], fields["load_sha256"], parts, commit, withdrawn)
        if receipt.rows != fields["rows"]:
            raise ValueError(f"rows {fields['rows']}, its files have {receipt.rows}")
        return receipt
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LoadError(f"this is no receipt of a load: {in_words(error)}") from None


def receipt_of(load: Load, parts: Sequence[WrittenPart]) -> Receipt:
    """Return the receipt of a load whose parts are all written.

    Raise LoadError if a part is missing or repeated, or has more rows than offsets. It may have fewer, because
    transaction markers and compaction leave offsets without rows; the reader checked each by position.
    """
    ordered = sorted(parts, key=lambda part: part.range)
    if tuple(part.range for part in ordered) != load.parts:
        raise LoadError(f"load {load.number} has {len(load.parts)} parts, written were {len(ordered)} others")
    for part in ordered:
        rows = part.rows + sum(file.rows for file in part.rejected.values())
        if rows > part.range.offsets:
            raise LoadError(f"{rows} rows were written of {part.range}: some of them twice")
    receipt = Receipt(load.topic, load.number, load.sha256, tuple(ordered))
    if len(receipt.files) != sum(len(part.files) for part in ordered):
        raise LoadError(f"two parts of load {load.number} have files of the same name")
    return receipt


def _part(fields: Mapping[str, Any]) -> WrittenPart:
    files = {name: DataFile(**file) for name, file in fields["files"].items()}
    rejected = {name: DataFile(**file) for name, file in fields["rejected"].items()}
    return WrittenPart(
        OffsetRange.from_dict(fields["range"]),
        str(fields["attempt"]),
        files,
        from_dicts(fields["poison"]),
        rejected,
        tuple(OffsetRange.from_dict(range_) for range_ in fields.get("lost", ())),
    )
