"""SHELL (pyspark, files): the replay job, from a manifest to Parquet files that a rerun reproduces byte for byte.

    manifest = make_manifest(options)         fix the ranges once
    save_manifest(manifest, path)             before any task
    replay(spark, servers, path, out)         one file for each range, then one rename

Tasks write into a directory beside `out`, which belongs to this run alone. After all files are written, the proof holds
and each file has the bytes that the receipt names, one rename makes it `out`. So `out` is complete or absent. If `out`
already exists from the same manifest, the rerun is compared with it and discarded.
"""

import errno
import fcntl
import glob
import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from broker.version import VERSION
from spark_bridge.output.file_name import file_name
from spark_bridge.output.parquet_file import sha256, write_parquet
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.skipped import FAIL, SKIP, SkippedBatch, from_json
from spark_bridge.replay import receipt as receipts
from spark_bridge.replay.receipt import Receipt, ReplayError, Totals, WrittenFile, prove
from spark_bridge.selection import manifest as manifests
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.options import parse
from spark_bridge.selection.pinned import select
from spark_bridge.source.datasource import NAME
from spark_bridge.source.read_task import REPORT_ENDING

MANIFEST_FILE = "_manifest.json"  # Spark skips names with _ when it reads the directory
RECEIPT_FILE = "_receipt.json"
_STAGING_ENDING = ".staging"
_EXCHANGE = re.compile(r"^[\s:+*()\d-]*Exchange\b", re.MULTILINE)
"""A line of a printed plan whose node is a shuffle. Columns may have that name too, further to the right."""
_WRITTEN = "index INT, rows BIGINT, sha256 STRING"


def make_manifest(options: Mapping[str, str]) -> Manifest:
    """Return a manifest of the ranges that the Data Source's `options` select now.

    Raise OptionError, SelectionError or network.ClusterError.
    """
    parsed = parse(options)
    with Cluster.connect(parsed.servers, parsed.driver_settings) as cluster:
        return select(parsed, cluster, VERSION)


def save_manifest(manifest: Manifest, path: Path) -> None:
    """Write the manifest once. Raise FileExistsError if another manifest exists; accept an identical one."""
    text = manifest.to_json()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        if path.read_text(encoding="utf-8") != text:
            raise FileExistsError(
                f"{path} holds another manifest, and a manifest is never changed: the log or the range has changed "
                f"since. Finish or repeat that replay with --manifest {path}, or name another directory with --out"
            ) from None


def read_manifest(spark: SparkSession, servers: str, path: Path, poison_report: Path | None = None) -> DataFrame:
    """Return the rows of a manifest, one Spark partition for each range.

    A batch that cannot be decoded is an error. With `poison_report` it is left out, and named in a file there.
    """
    read = spark.read.format(NAME).option("kafka.bootstrap.servers", servers).option("manifest", str(path))
    if poison_report is not None:
        read = read.option("onPoison", SKIP).option("poisonReport", str(poison_report))
    return read.load()


def replay(
    spark: SparkSession,
    servers: str,
    manifest_path: Path,
    out: Path,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    on_poison: str = FAIL,
) -> Receipt:
    """Write the manifest's rows to the directory `out`, which the driver and all executors must be able to write.

    `transform` works row by row (select, where, withColumn); a shuffle raises ReplayError. Raise ReplayError also if
    the proof fails, `out` is something other than this replay, or a rerun differs from it. `out` is then unchanged.
    With `on_poison` "skip", batches that cannot be decoded are left out, and the receipt names them.
    """
    manifest = manifests.load(manifest_path.read_bytes())
    check_out(out, manifest)
    with _staging(out) as staging:
        save_manifest(manifest, staging / MANIFEST_FILE)
        rows = read_manifest(spark, servers, manifest_path, staging if on_poison == SKIP else None)
        receipt = _run(rows, manifest, staging, transform)
        _write(staging / RECEIPT_FILE, receipt.to_json())
        _publish(staging, out, receipt)
    return receipt


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Make a directory for this run's files beside `out`, and remove it at the end.

    A run holds a lock on its directory. Directories without a lock are of drivers that were killed, and are removed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    for path in out.parent.glob(f".{glob.escape(out.name)}.*{_STAGING_ENDING}"):
        with suppress(OSError), _locked(path):
            shutil.rmtree(path, ignore_errors=True)
    staging = out.parent / f".{out.name}.{uuid.uuid4().hex}{_STAGING_ENDING}"
    staging.mkdir()
    try:
        with _locked(staging):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a lock on a directory. Raise BlockingIOError if another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def verify(out: Path) -> Receipt:
    """Verify a published replay's files against its receipt and return the receipt. Raise ReplayError."""
    receipt = receipts.load((out / RECEIPT_FILE).read_bytes())
    for name, each in receipt.files.items():
        path = out / name
        if not path.is_file():
            raise ReplayError(f"{path} is gone")
        if sha256(path) != each.sha256:
            raise ReplayError(f"{path} was changed after it was written")
    return receipt


# --- driver -----------------------------------------------------------------------------------------------------------


def check_out(out: Path, manifest: Manifest) -> None:
    """Raise ReplayError if `out` is something other than a replay of this manifest."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ReplayError(f"{out} is a file; name a directory")
    if not (out / MANIFEST_FILE).is_file():
        raise ReplayError(f"{out} is there and is no replay; name another directory")
    there = manifests.load((out / MANIFEST_FILE).read_bytes())
    if there != manifest:
        raise ReplayError(
            f"{out} is the replay of another manifest ({there.sha256}): the log or the range has changed since. Name "
            f"another directory, or repeat that replay with --manifest {out / MANIFEST_FILE}"
        )


def _run(
    rows: DataFrame, manifest: Manifest, staging: Path, transform: Callable[[DataFrame], DataFrame] | None
) -> Receipt:
    if not manifest.ranges:
        return prove(manifest, Totals(0, 0, 0), [])
    observation = Observation("read")
    wide = "decimal(20,0)"  # exact sums of longs
    observed = rows.observe(
        observation,
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.col("offset").cast(wide)).alias("offset_sum"),
        F.sum(F.xxhash64(*rows.columns).cast(wide)).alias("checksum"),
    )
    change = transform or _unchanged
    _refuse_shuffle(change(rows))
    schema = change(rows).limit(0).toArrow().schema  # not `observed`, which counts only its first query
    names = [file_name(one) for one in manifest.ranges]
    written = change(observed).mapInArrow(_RangeWriter(staging, names, schema), _WRITTEN).collect()
    seen = observation.get
    totals = Totals(seen["rows"], int(seen["offset_sum"] or 0), int(seen["checksum"] or 0))
    files = [(each["index"], WrittenFile(each["rows"], each["sha256"])) for each in written]
    return prove(manifest, totals, files, _skipped(staging))


def _skipped(staging: Path) -> Iterator[SkippedBatch]:
    for path in sorted(staging.glob(f".*{REPORT_ENDING}")):
        yield from from_json(path.read_text(encoding="utf-8"))


def _refuse_shuffle(rows: DataFrame) -> None:
    """Raise ReplayError for a plan with a shuffle.

    A shuffle distributes rows among tasks unpredictably, so a range's file would not have defined contents.
    """
    with redirect_stdout(io.StringIO()) as plan:
        rows.explain()
    if _EXCHANGE.search(plan.getvalue()):
        raise ReplayError("a replay's transformation works row by row, without a shuffle; this one has an exchange")


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


def _publish(staging: Path, out: Path, receipt: Receipt) -> None:
    for leftover in staging.glob(".*"):  # of failed task attempts, and the reports of skipped batches
        leftover.unlink()
    verify(staging)
    _sync_directory(staging)
    try:
        os.rename(staging, out)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
    else:
        _sync_directory(out.parent)
        return
    different = receipts.differences(verify(out), receipt)
    if different:
        raise ReplayError(f"this replay differs from the one in {out}: {'; '.join(different)}")


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- tasks ------------------------------------------------------------------------------------------------------------


class _RangeWriter:
    """A function that writes the rows of one Spark partition to its range's file and yields one row describing it.

    The index of the Spark partition is the index of the range. A Data Source's partitions keep their order, and without
    a shuffle their index (`prove` checks that each index came exactly once).
    """

    def __init__(self, directory: Path, names: list[str], schema: pa.Schema) -> None:
        self._directory = directory
        self._names = names
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "this runs in a Spark task"
        index = context.partitionId()
        if index >= len(self._names):
            raise ReplayError("a replay's transformation works row by row, without a shuffle")
        path = self._directory / self._names[index]
        attempt = self._directory / f".{path.name}.{uuid.uuid4().hex}"
        rows = write_parquet(attempt, batches, self._schema)
        digest = sha256(attempt)
        os.replace(attempt, path)  # attempts of one task write the same bytes, so the last may win
        yield pa.RecordBatch.from_pydict(
            {"index": pa.array([index], pa.int32()), "rows": [rows], "sha256": [digest]}
        )
