"""SHELL (pyspark, files): the replay job on Spark: from a manifest to Parquet files that a rerun reproduces.

    manifest = make_manifest(options)         fix the ranges once
    save_manifest(manifest, path)             before any task
    replay(spark, servers, path, out)         one file for each range, published in one step

Without a transformation each task reads its range and writes the file itself, so that no row passes through the JVM. It
is the task that spark_bridge.replay.arrow_job runs in threads. With a transformation the rows are a DataFrame.
How files become the result is in spark_bridge.replay.publication.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_bridge.arrow_reader import pin_read
from spark_bridge.output.file_name import file_name
from spark_bridge.output.hashing_file import HashingFile
from spark_bridge.output.parquet_file import write_parquet
from spark_bridge.output.range_file import RangeFile, columns_to_read, write_range
from spark_bridge.output.replay_topic import ReplayTopic
from spark_bridge.output.storage import LocalStorage, Storage
from spark_bridge.reading.range_reader import read_range
from spark_bridge.reading.skipped import FAIL, SKIP, SkippedBatch, from_json, to_json
from spark_bridge.replay import publication
from spark_bridge.replay.planning import make_manifest as make_manifest  # noqa: F401  (for its users)
from spark_bridge.replay.publication import Writer, announce, run_of
from spark_bridge.replay.publication import save_manifest as save_manifest  # noqa: F401
from spark_bridge.replay.receipt import SPARK_KIND, Receipt, ReplayError, Totals, WrittenFile, prove, prove_files
from spark_bridge.selection import manifest as manifests
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.option_table import options_of
from spark_bridge.selection.pinned import PinnedRead
from spark_bridge.source.datasource import NAME
from spark_bridge.source.read_task import REPORT_ENDING

_SHUFFLES = "ShuffleExchange"
"""The beginning of the class names of a physical plan's nodes that are shuffles."""
_WRITTEN = "index INT, rows BIGINT, sha256 STRING"
_RANGE_FILE = (
    "index BIGINT, rows BIGINT, offset_sum STRING, checksum STRING, bytes BIGINT, sha256 STRING, skipped STRING"
)


def read_manifest(
    spark: SparkSession,
    servers: str,
    path: Path,
    poison_report: Path | None = None,
    security: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of a manifest, one Spark partition for each range.

    A batch that cannot be decoded is an error. With `poison_report` it is left out, and named in a file there.
    """
    read = spark.read.format(NAME).option("kafka.bootstrap.servers", servers).option("manifest", str(path))
    read = read.options(**options_of(security))
    if poison_report is not None:
        read = read.option("onPoison", SKIP).option("poisonReport", str(poison_report))
    return read.load()


def replay(
    spark: SparkSession,
    servers: str,
    manifest_path: Path,
    out: "Path | str",
    transform: Callable[[DataFrame], DataFrame] | None = None,
    on_poison: str = FAIL,
    *,
    single_writer: bool = False,
    security: Mapping[str, str] | None = None,
) -> Receipt:
    """Write the manifest's rows to `out`, a path or URI that the driver and all executors must be able to write to.

    `transform` works row by row (select, where, withColumn); a shuffle raises ReplayError. Raise ReplayError also if
    the proof fails, `out` is something other than this replay, or a rerun differs from it. `out` is then unchanged.
    With `on_poison` "skip", batches that cannot be decoded are left out, and the receipt names them. `single_writer`
    is for a store without an exclusive create: no other run may write there. `security` has properties of Kafka's
    clients, such as `security.protocol`.
    """
    manifest, storage = manifests.load(manifest_path.read_bytes()), Storage.at(out)
    if transform is None:
        more: dict[str, Any] = {"single_writer": single_writer, "security": security}
        return replay_manifest(spark, servers, manifest, storage, on_poison, **more)
    topic = ReplayTopic(servers, (security or {}).items())
    with run_of(storage, manifest, Writer.transforming(), single_writer=single_writer) as run:
        announce(topic, storage, manifest)
        report = _report_directory(run.storage) if on_poison == SKIP else None
        rows = read_manifest(spark, servers, manifest_path, report, security)
        receipt = _transform(rows, manifest, run.storage, transform, report)
        run.publish(receipt)
    announce(topic, storage, manifest, receipt)
    return receipt


def verify(out: "Path | str") -> Receipt:
    """Verify a published replay's files against its receipt and return the receipt. Raise ReplayError."""
    return publication.verify(Storage.at(out))


def _report_directory(storage: Storage) -> Path:
    """Return the directory in which the Data Source's tasks name what they left out: that of the files."""
    if not isinstance(storage, LocalStorage):
        raise ReplayError(f"a transformation leaves out batches (onPoison=skip) in directories only; {storage} is none")
    return storage.root


# --- without a transformation ----------------------------------------------------------------------------------------


def replay_manifest(
    spark: SparkSession,
    servers: str,
    manifest: Manifest,
    storage: Storage,
    on_poison: str = FAIL,
    *,
    compacted: bool = False,
    single_writer: bool = False,
    security: Mapping[str, str] | None = None,
) -> Receipt:
    """Write the manifest's rows to `storage`, as `replay` does without a transformation.

    `compacted` allows missing offsets in topics that were compacted once. `security` has properties of Kafka's clients.
    """
    options = {"kafka.bootstrap.servers": servers, "manifest": "given", "onPoison": on_poison}
    if compacted:
        options["compacted"] = "true"
    pinned = pin_read(options | options_of(security), manifest)
    topic = ReplayTopic(servers, pinned.settings.security)
    with run_of(storage, manifest, Writer.usual(), single_writer=single_writer) as run:
        announce(topic, storage, manifest)
        receipt = prove_files(manifest, _write_ranges(spark, pinned, run.storage))
        run.publish(receipt)
    announce(topic, storage, manifest, receipt)
    return receipt


def _write_ranges(spark: SparkSession, pinned: PinnedRead, storage: Storage) -> dict[int, RangeFile]:
    number = len(pinned.manifest.ranges)
    if not number:
        return {}
    indexes = spark.range(0, number, 1, number)  # one task for each range
    written = indexes.mapInArrow(_RangeTask(pinned, storage), _RANGE_FILE).collect()
    files = {}
    for row in written:
        fields = row["rows"], int(row["offset_sum"]), row["checksum"], row["bytes"], row["sha256"]
        files[int(row["index"])] = RangeFile(*fields, from_json(row["skipped"]))
    return files


class _RangeTask:
    """A function that writes the files of the ranges whose indexes it gets, and yields a row describing each."""

    def __init__(self, pinned: PinnedRead, storage: Storage) -> None:
        self._pinned = pinned
        self._storage = storage

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield self._write(index)

    def _write(self, index: int) -> pa.RecordBatch:
        pinned = self._pinned
        within = pinned.manifest.ranges[index]

        def read(skip: Callable[[SkippedBatch], object]) -> Iterator[pa.RecordBatch]:
            columns = columns_to_read(pinned.columns)
            return read_range(within, columns, pinned.servers, pinned.settings, pinned.topic_id(within), skip)

        file = write_range(self._storage, within, pinned.columns, read)
        as_text = {"offset_sum": str(file.offset_sum), "skipped": to_json(file.skipped)}
        return pa.RecordBatch.from_pylist([{"index": index, **file._asdict(), **as_text}])


# --- with a transformation -------------------------------------------------------------------------------------------


def _transform(
    rows: DataFrame,
    manifest: Manifest,
    storage: Storage,
    transform: Callable[[DataFrame], DataFrame],
    report: Path | None,
) -> Receipt:
    if not manifest.ranges:
        return prove_files(manifest, {})
    observation = Observation("read")
    wide = "decimal(20,0)"  # exact sums of longs
    observed = rows.observe(
        observation,
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.col("offset").cast(wide)).alias("offset_sum"),
        F.sum(F.xxhash64(*rows.columns).cast(wide)).alias("checksum"),
    )
    _refuse_shuffle(transform(rows))
    schema = transform(rows).limit(0).toArrow().schema  # not `observed`, which counts only its first query
    names = [file_name(range_) for range_ in manifest.ranges]
    written = transform(observed).mapInArrow(_RangeWriter(storage, names, schema), _WRITTEN).collect()
    seen = observation.get
    totals = Totals(seen["rows"], int(seen["offset_sum"] or 0), f"{SPARK_KIND}:{int(seen['checksum'] or 0)}")
    files = [(row["index"], WrittenFile(row["rows"], row["sha256"])) for row in written]
    return prove(manifest, totals, files, () if report is None else _skipped(report))


def _skipped(reports: Path) -> Iterator[SkippedBatch]:
    for path in sorted(reports.glob(f".*{REPORT_ENDING}")):
        yield from from_json(path.read_text(encoding="utf-8"))


def _refuse_shuffle(rows: DataFrame) -> None:
    """Raise ReplayError for a plan with a shuffle.

    A shuffle distributes rows among tasks unpredictably, so a range's file would not have defined contents.
    """
    if any(name.startswith(_SHUFFLES) for name in _nodes(rows._jdf.queryExecution().executedPlan())):
        raise ReplayError("a replay's transformation works row by row, without a shuffle; this one has an exchange")


def _nodes(plan: Any) -> Iterator[str]:
    """Yield the class names of a physical plan's nodes, which are objects of the JVM, without their packages."""
    name = plan.getClass().getSimpleName()
    yield name
    if name == "AdaptiveSparkPlanExec":  # has no children
        yield from _nodes(plan.executedPlan())
    elif name == "InMemoryTableScanExec":  # of a DataFrame that is cached
        yield from _nodes(plan.relation().cachedPlan())
    children = plan.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))


class _RangeWriter:
    """A function that writes the rows of one Spark partition to its range's file and yields one row describing it.

    The index of the Spark partition is the index of the range. A Data Source's partitions keep their order, and without
    a shuffle their index (`prove` checks that each index came exactly once).
    """

    def __init__(self, storage: Storage, names: list[str], schema: pa.Schema) -> None:
        self._storage = storage
        self._names = names
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "this runs in a Spark task"
        index = context.partitionId()
        if index >= len(self._names):
            raise ReplayError("a replay's transformation works row by row, without a shuffle")
        with self._storage.write(self._names[index]) as file:  # attempts of one task write the same bytes
            sink = HashingFile(file)
            rows = write_parquet(sink, batches, self._schema)
        yield pa.RecordBatch.from_pydict(
            {"index": pa.array([index], pa.int32()), "rows": [rows], "sha256": [sink.sha256]}
        )
