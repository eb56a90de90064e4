"""SHELL (threads, sockets, a log): reads of exact ranges as Arrow, without Spark.

    with flakelog.read("127.0.0.1:9092", "flights", ids=(first, end)) as reader:
        table = reader.read_all()             or reader.read_pandas(), polars.from_arrow(reader), duckdb

A read is pinned when `read` returns: its ranges are a manifest, made and checked as for Spark. The ranges, one for each
partition unless options split them, are read by a few threads side by side. The rows of a range come in the order of
their offsets. Batches of different ranges come in the order of their arrival.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

try:
    import numpy  # noqa: F401
    import pyarrow as pa
except ImportError as error:
    raise ImportError(f"flakelog.read needs pyarrow and numpy ({error}); pip install 'flakelog[arrow]'") from error

from broker.version import VERSION
from spark_bridge.output.storage import read_file
from spark_bridge.reading.closing_stream import closing_reader
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.network import Address
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import read_range, warn_of_loss
from spark_bridge.reading.range_reads import RangeReads
from spark_bridge.reading.row import DEFAULT, arrow_schema
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.side_by_side import SideBySide
from spark_bridge.reading.skipped import FAIL, SkippedBatch
from spark_bridge.selection import manifest as manifests
from spark_bridge.selection.arguments import (
    STRATEGY,
    Ids,
    Offsets,
    Times,
    merge,
    selection_options,
    value_of,
    without,
)
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.options import OptionError, parse
from spark_bridge.selection.pinned import PinnedRead, pin

THREADS = 4
"""Ranges that are read at once. Each has a thread, a connection, and up to two fetches in memory."""
BATCHES_IN_FLIGHT = 8
"""Arrow batches that are read and not yet taken, in all; each is about the size of a fetch. With this many waiting,
the threads wait too."""
BYTES_IN_FLIGHT = 64 << 20
"""Bytes of such batches with which the threads wait too, because a few kilobytes may unpack to a hundred megabytes."""
MANIFEST_KEY = b"flakelog.manifest"
"""The key of the manifest's JSON in the metadata of a reader's schema."""

_log = logging.getLogger(__name__)


def read(
    servers: str,
    topics: str | Sequence[str] = (),
    *,
    ids: Ids | None = None,
    times: Times | None = None,
    offsets: Offsets | None = None,
    columns: Sequence[str] | None = None,
    headers: bool = False,
    read_committed: bool = False,
    on_poison: str = "fail",
    manifest: Manifest | str | bytes | None = None,
    threads: int = THREADS,
    options: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Return a reader of exact ranges of topics; nothing that arrives later is in it.

    All ranges are half-open, and None leaves a side open. Give at most one of

        ids=(first, end)                    Snowflake ids; Layout().id_range makes them of times
        times=(first, end)                  timestamps: datetime (without a zone: UTC) or Unix ms
        offsets={0: (5, 10), 1: (0, None)}  by partition, and only these; for several topics {topic: {partition: ...}}
        manifest=...                        a manifest of an earlier read or replay, and no topics

    The columns are those of spark_bridge.reading.row; all but `headers` and `id_time` if none are named. `options` are
    more options of the Data Source by name, such as {"maxRecordsPerPartition": "1000000"}; they may also name the
    topics (subscribe, subscribePattern, assign), bounds or a manifest, in place of the arguments. With `on_poison`
    "skip", batches that cannot be decoded are left out with a warning.

    The manifest, as JSON, is in `reader.schema.metadata[b"flakelog.manifest"]`. At most `threads` ranges are read at
    once, and BATCHES_IN_FLIGHT batches or BYTES_IN_FLIGHT bytes wait to be taken. Closing the reader, or collecting it
    as garbage, stops its threads and closes its connections.

    Raise OptionError, SelectionError, ManifestError or ClusterError. Errors of the read itself (DataLoss, CorruptBatch,
    ReadFailed) reach the caller through Arrow, as pyarrow.ArrowInvalid with the error's name and its message.
    """
    if threads < 1:
        raise OptionError(f"threads is 1 or more; got {threads}")
    if sum(argument is not None for argument in (ids, times, offsets)) > 1:
        raise OptionError("a read has one range: ids, times or offsets")
    source_options = {"kafka.bootstrap.servers": servers}
    if on_poison != FAIL:
        source_options["onPoison"] = on_poison
    if columns is not None:
        source_options["columns"] = ",".join(columns)
    if headers:
        source_options["includeHeaders"] = "true"
    if read_committed:
        source_options["kafka.isolation.level"] = "read_committed"
    source_options = merge(source_options, options or {})
    names = [topics] * bool(topics) if isinstance(topics, str) else list(topics)
    if manifest is None and (path := value_of(source_options, "manifest")) is not None:
        source_options, manifest = without(source_options, "manifest"), read_file(path)
    if manifest is not None:
        if names or (ids, times, offsets) != (None, None, None) or read_committed:
            raise OptionError("a manifest says what is read; give no topics, no range and no read_committed beside it")
        source_options = merge(source_options, {"manifest": "given"})
        manifest = manifest if isinstance(manifest, Manifest) else manifests.load(manifest)
    else:
        if times is not None and value_of(source_options, STRATEGY) is None:
            # A half-open range may be empty; the connector's default would refuse a start after the last record.
            source_options[STRATEGY] = "latest"
        source_options = selection_options(names, ids=ids, times=times, offsets=offsets, options=source_options)
    if value_of(source_options, "poisonReport") is not None:
        raise OptionError("poisonReport is for reads by Spark; here a warning names each batch that is left out")
    pinned = pin_read(source_options, manifest)
    return open_reader(pinned.manifest, pinned.servers, pinned.settings, pinned.columns, threads=threads)


def pin_read(
    options: Mapping[str, str], manifest: Manifest | None = None, on_wait: Callable[[str], object] = lambda reason: None
) -> PinnedRead:
    """Pin the read that the Data Source's options describe, or check that the cluster has the log of `manifest`.

    Log a warning for lost offsets, and for options that are ignored. `on_wait` is that of Cluster. Raise OptionError,
    SelectionError, ManifestError or network.ClusterError.
    """
    parsed = parse(options)
    with Cluster.connect(parsed.servers, parsed.driver_settings, on_wait) as cluster:
        pinned = pin(parsed, cluster, manifest, VERSION)
    for warning in parsed.warnings:
        _log.warning("flakelog: %s", warning)
    for lost in pinned.lost:
        warn_of_loss(lost.within, lost.reason)
    return pinned


def open_reader(
    manifest: Manifest,
    servers: Sequence[Address],
    settings: ReadSettings = ReadSettings(),
    columns: Sequence[str] | None = None,
    *,
    threads: int = THREADS,
) -> pa.RecordBatchReader:
    """Return a reader of the manifest's ranges; `threads` of them are read at once.

    Closing the reader stops its threads and connections, as does collecting it as garbage.
    """
    chosen = tuple(columns or manifest.columns or DEFAULT)
    schema = arrow_schema(chosen).with_metadata({MANIFEST_KEY: manifest.to_json().encode()})
    reads = RangeReads(servers, settings)
    jobs = [partial(reads.batches, range_, chosen, manifest.topic_ids[range_.topic]) for range_ in manifest.ranges]
    batches: SideBySide[pa.RecordBatch] = SideBySide(
        jobs,
        threads,
        BATCHES_IN_FLIGHT,
        reads.stop,
        reads.close,
        bytes_in_flight=BYTES_IN_FLIGHT,
        size_of=lambda batch: batch.nbytes,
    )
    return closing_reader(schema, batches, batches.close)


def range_batches(
    within: OffsetRange,
    columns: Sequence[str],
    servers: Sequence[Address],
    settings: ReadSettings = ReadSettings(),
    topic_id: str | None = None,
    on_skipped: Callable[[SkippedBatch], object] | None = None,
    on_lost: Callable[[OffsetRange, str], object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of one range in the order of their offsets, or raise; see reading.range_reader.read_range."""
    return read_range(within, columns, servers, settings, topic_id, on_skipped, on_lost)
