"""SHELL (threads, sockets): reads of exact ranges as Arrow, without Spark.

    with flakelog.read("127.0.0.1:9092", "flights", ids=(first, end)) as reader:
        table = reader.read_all()             or reader.read_pandas(), polars.from_arrow(reader), duckdb

A read is pinned when `read` returns: its ranges are a manifest, made and checked as for Spark, and the manifest is in
`reader.schema.metadata`. The ranges are read by a few threads side by side. The rows of a range come in the order of
their offsets; batches of different ranges come in the order of their arrival.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from broker.version import VERSION
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.network import Address
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import read_range
from spark_bridge.reading.row import DEFAULT, arrow_schema
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.skipped import SkippedBatch
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.options import parse
from spark_bridge.selection.pinned import PinnedRead, pin

THREADS = 4
BATCHES_IN_FLIGHT = 8
"""Arrow batches that are read and not yet taken, in all; each is about the size of a fetch. With this many waiting,
the threads wait too."""
MANIFEST_KEY = b"flakelog.manifest"
"""The key of the manifest's JSON in the metadata of a reader's schema."""


def pin_read(options: Mapping[str, str], manifest: Manifest | None = None) -> PinnedRead:
    """Pin the read that the Data Source's options describe, or check that the cluster has the log of `manifest`.

    Raise OptionError, SelectionError, ManifestError or network.ClusterError.
    """
    parsed = parse(options)
    with Cluster.connect(parsed.servers, parsed.settings) as cluster:
        return pin(parsed, cluster, manifest, VERSION)


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

    def batches() -> Iterator[pa.RecordBatch]:
        for within in manifest.ranges:
            yield from range_batches(within, chosen, servers, settings, manifest.topic_ids[within.topic])

    return pa.RecordBatchReader.from_batches(schema, batches())


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
