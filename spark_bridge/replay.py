"""SHELL (pyspark, files): the replay job, from a manifest to Parquet files that a rerun writes again byte for byte.

    manifest = make_manifest(options)         what is read, settled once
    save_manifest(manifest, path)             before any task
    replay(spark, servers, path, out)         one file for each range, then one rename

Tasks write into a directory beside `out`; only when all files are there and the proof holds does it become `out`, in
one rename. So `out` is whole, or not there. Where it is there already, from the same manifest, the rerun is compared
with it and thrown away.
"""

import io
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_bridge import manifest as manifests
from spark_bridge import receipt as receipts
from spark_bridge.cluster import Cluster
from spark_bridge.datasource import NAME
from spark_bridge.manifest import Manifest
from spark_bridge.options import parse
from spark_bridge.parquet_file import sha256, write_parquet
from spark_bridge.pinned import select
from spark_bridge.range_reader import SocketNetwork
from spark_bridge.receipt import Receipt, ReplayError, Totals, WrittenFile, file_name, prove

MANIFEST_FILE = "_manifest.json"  # Spark passes over names with _ when it reads the directory
RECEIPT_FILE = "_receipt.json"
_WRITTEN = "index INT, rows BIGINT, sha256 STRING"


def make_manifest(options: Mapping[str, str]) -> Manifest:
    """What `options` (the Data Source's) select now. Raises OptionError, SelectionError, network.ClusterError."""
    parsed = parse(options)
    return select(parsed, Cluster(parsed.servers, SocketNetwork()), version("flakelog"))


def save_manifest(manifest: Manifest, path: Path) -> None:
    """Write it once; FileExistsError where another one is there. The same one again is well."""
    text = manifest.to_json()
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        if path.read_text(encoding="utf-8") != text:
            raise FileExistsError(f"{path} holds another manifest, and a manifest is never changed") from None


def read_manifest(spark: SparkSession, servers: str, path: Path) -> DataFrame:
    """The rows a manifest names, one Spark partition for each range."""
    return spark.read.format(NAME).option("kafka.bootstrap.servers", servers).option("manifest", str(path)).load()


def replay(
    spark: SparkSession,
    servers: str,
    manifest_path: Path,
    out: Path,
    transform: Callable[[DataFrame], DataFrame] | None = None,
) -> Receipt:
    """Write what the manifest names to the directory `out`, every executor's and the driver's to write in.

    `transform` works row by row (select, where, withColumn); a shuffle is refused. Raises ReplayError where the proof
    fails, `out` is something else, or a rerun differs from what is there; then nothing in `out` has changed.
    """
    manifest = manifests.load(manifest_path.read_bytes())
    _check_out(out, manifest)
    staging = out.parent / f".{out.name}.{manifest.sha256[:16]}.staging"
    shutil.rmtree(staging, ignore_errors=True)  # of a driver that was killed
    staging.mkdir(parents=True)
    try:
        save_manifest(manifest, staging / MANIFEST_FILE)
        receipt = _run(read_manifest(spark, servers, manifest_path), manifest, staging, transform)
        _write(staging / RECEIPT_FILE, receipt.to_json())
        _publish(staging, out, receipt)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return receipt


def verify(out: Path) -> Receipt:
    """The receipt of a published replay, its files' bytes checked against it. Raises ReplayError."""
    receipt = receipts.load((out / RECEIPT_FILE).read_bytes())
    for name, each in receipt.files.items():
        path = out / name
        if not path.is_file():
            raise ReplayError(f"{path} is gone")
        if sha256(path) != each.sha256:
            raise ReplayError(f"{path} was changed after it was written")
    return receipt


# --- the driver's part -------------------------------------------------------------------------------------------


def _check_out(out: Path, manifest: Manifest) -> None:
    if not out.exists():
        return
    if not (out / MANIFEST_FILE).is_file():
        raise ReplayError(f"{out} is there and is no replay; name another directory")
    there = manifests.load((out / MANIFEST_FILE).read_bytes())
    if there != manifest:
        raise ReplayError(f"{out} is the replay of another manifest ({there.sha256}); name another directory")


def _run(
    rows: DataFrame, manifest: Manifest, staging: Path, transform: Callable[[DataFrame], DataFrame] | None
) -> Receipt:
    if not manifest.ranges:
        return prove(manifest, Totals(0, 0, 0), [])
    observation = Observation("read")
    wide = "decimal(20,0)"  # sums of longs, kept exact
    observed = rows.observe(
        observation,
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.col("offset").cast(wide)).alias("offset_sum"),
        F.sum(F.xxhash64(*rows.columns).cast(wide)).alias("checksum"),
    )
    change = transform or _unchanged
    _refuse_shuffle(change(rows))
    schema = change(rows).limit(0).toArrow().schema  # not of `observed`: an observation counts the first query on it
    names = [file_name(one) for one in manifest.ranges]
    written = change(observed).mapInArrow(_RangeWriter(staging, names, schema), _WRITTEN).collect()
    seen = observation.get
    totals = Totals(seen["rows"], int(seen["offset_sum"] or 0), int(seen["checksum"] or 0))
    return prove(manifest, totals, [(each["index"], WrittenFile(each["rows"], each["sha256"])) for each in written])


def _refuse_shuffle(rows: DataFrame) -> None:
    """A shuffle gives rows to tasks by chance; what a range's file holds would then mean nothing."""
    with redirect_stdout(io.StringIO()) as plan:
        rows.explain()
    if re.search(r"(?<!Broadcast)Exchange", plan.getvalue()):
        raise ReplayError("a replay's transformation works row by row, without a shuffle; this one has an exchange")


def _unchanged(rows: DataFrame) -> DataFrame:
    return rows


def _publish(staging: Path, out: Path, receipt: Receipt) -> None:
    for leftover in staging.glob(".*"):  # of attempts of tasks that failed
        leftover.unlink()
    _sync_directory(staging)
    if not out.exists():
        os.rename(staging, out)
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


# --- a task's part -----------------------------------------------------------------------------------------------


class _RangeWriter:
    """Writes the rows of one Spark partition to the file of its range; gives one row that says so.

    The number of the Spark partition is the index of the range: a Data Source's partitions keep their order, and
    without a shuffle they keep their number (`prove` checks that each came exactly once).
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
