"""The receipt of a replay, and the proof that it matches the manifest.

    {"flakelog_receipt": 2, "manifest_sha256": "...", "rows": 123, "offset_sum": 456, "checksum": "crc32c:5f0c...",
     "files": {"flights-00000-....parquet": {"rows": 60, "sha256": "..."}, ...},
     "poison": [{"topic": "flights", "partition": 0, "base_offset": 100, "last_offset": 199, "reason": "..."}, ...]}

rows, offset_sum and checksum describe the rows read, before any transformation. checksum is
spark_bridge.output.row_sum's of each range, combined in the order of the ranges. With a transformation Spark adds it
up: "xxhash64:" and the sum over all rows of xxhash64 of all columns. Both detect a changed, lost or repeated row (an
xor would miss a repeated pair). files describes the files written. poison names the batches that onPoison=skip left
out; a receipt without it has none. Receipts of format 1 have a number as checksum, which is Spark's.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from coordination.errors import FlakelogError
from spark_bridge.output.file_name import file_name
from spark_bridge.output.range_file import RangeFile
from spark_bridge.output.row_sum import combine
from spark_bridge.reading.skipped import SkippedBatch, from_dicts, to_dicts
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.record_file import in_words

FORMAT = 2
FORMAT_WITH_NUMBER = 1
SPARK_KIND = "xxhash64"


class ReplayError(FlakelogError):
    """A replay that does not match its manifest, or an earlier replay of it."""


class Totals(NamedTuple):
    """Totals over all rows read."""

    rows: int
    offset_sum: int
    checksum: str


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """The number of rows of a file, and the SHA-256 of its bytes."""

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Receipt:
    manifest_sha256: str
    rows: int
    offset_sum: int
    checksum: str
    files: Mapping[str, WrittenFile]
    poison: tuple[SkippedBatch, ...] = ()

    @property
    def poison_offsets(self) -> int:
        """Return how many offsets the batches span that were left out; each had at most one message."""
        return sum(batch.last_offset - batch.base_offset + 1 for batch in self.poison)

    def to_json(self) -> str:
        fields = {"flakelog_receipt": FORMAT} | asdict(self) | {"poison": to_dicts(self.poison)}
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"


def load(text: str | bytes) -> Receipt:
    """Load a receipt. Raise ReplayError if the text is not a receipt."""
    try:
        fields: dict[str, Any] = json.loads(text)
        version = fields.pop("flakelog_receipt")
        if version == FORMAT_WITH_NUMBER:
            fields["checksum"] = f"{SPARK_KIND}:{int(fields['checksum'])}"
        elif version != FORMAT:
            raise KeyError("flakelog_receipt")
        files = {name: WrittenFile(**field) for name, field in fields.pop("files").items()}
        poison = from_dicts(fields.pop("poison", ()))
        return Receipt(**fields, files=files, poison=poison)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReplayError(f"this is no receipt of a replay: {in_words(error)}") from None


def prove_files(manifest: Manifest, files: Mapping[int, RangeFile]) -> Receipt:
    """Return the receipt of a replay without a transformation. `files` has the file of each range by its index.

    Raise ReplayError if the figures do not match the manifest's ranges.
    """
    ordered = [file for _, file in sorted(files.items())]
    totals = Totals(
        sum(file.rows for file in ordered),
        sum(file.offset_sum for file in ordered),
        combine(file.checksum for file in ordered),
    )
    written = [(index, WrittenFile(file.rows, file.sha256)) for index, file in files.items()]
    return prove(manifest, totals, written, (batch for file in ordered for batch in file.skipped))


def prove(
    manifest: Manifest,
    read: Totals,
    written: Sequence[tuple[int, WrittenFile]],
    skipped: Iterable[SkippedBatch] = (),
) -> Receipt:
    """Return the receipt of a replay; `written` pairs the index of each range with its file.

    `skipped` are the batches left out; one that lies in two ranges may come twice.
    Raise ReplayError if the figures do not match the manifest's ranges.
    """
    indexes = sorted(index for index, _ in written)
    if indexes != list(range(len(manifest.ranges))):
        raise ReplayError(
            f"{len(manifest.ranges)} ranges were to be written each by its own task, the tasks were {indexes}: "
            "a replay's transformation works row by row, without a shuffle"
        )
    _check_totals(manifest, read)
    files = {file_name(manifest.ranges[index]): file for index, file in sorted(written)}
    return Receipt(manifest.sha256, *read, files, tuple(sorted(set(skipped))))


def _check_totals(manifest: Manifest, read: Totals) -> None:
    if read.rows > manifest.offsets:
        raise ReplayError(f"{read.rows} rows were read from {manifest.offsets} offsets: some were read twice")
    if read.rows < manifest.offsets:
        return  # transaction markers and compaction leave offsets without rows; readers checked each by position
    expected = sum((range_.start + range_.end - 1) * range_.offsets // 2 for range_ in manifest.ranges)
    if read.offset_sum != expected:
        raise ReplayError(f"the offsets read add up to {read.offset_sum}, those of the manifest to {expected}")


def differences(first: Receipt, second: Receipt) -> list[str]:
    """Describe the differences in words; the list is empty if both receipts are equal.

    Checksums of two kinds, as of formats 1 and 2, are not compared; the files are.
    """
    names = ["manifest_sha256", "rows", "offset_sum"]
    if first.checksum.partition(":")[0] == second.checksum.partition(":")[0]:
        names.append("checksum")
    changes = [
        f"{name} {getattr(first, name)} before, {getattr(second, name)} now"
        for name in names
        if getattr(first, name) != getattr(second, name)
    ]
    if {batch[:4] for batch in first.poison} != {batch[:4] for batch in second.poison}:
        changes.append("poison has other batches")
    files = sorted(set(first.files) | set(second.files))
    return changes + [f"{name} has other content" for name in files if first.files.get(name) != second.files.get(name)]
