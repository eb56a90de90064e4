"""SHELL (threads): a replay without Spark: threads of this process read the ranges and write their files.

    receipt = replay("127.0.0.1:9092", manifest, Storage.at("s3://bucket/flights"))

The files, the receipt and the proof are those of spark_bridge.replay.job.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from spark_bridge.arrow_reader import THREADS, pin_read
from spark_bridge.output.range_file import OnBatch, RangeFile, columns_to_read, write_range
from spark_bridge.output.replay_topic import ReplayTopic
from spark_bridge.output.storage import Storage
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reads import RangeReads
from spark_bridge.reading.side_by_side import SideBySide
from spark_bridge.reading.skipped import FAIL
from spark_bridge.replay.publication import Writer, announce, run_of
from spark_bridge.replay.receipt import Receipt, prove_files
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.option_table import options_of
from spark_bridge.selection.pinned import PinnedRead

OnWritten = Callable[[OffsetRange, RangeFile], object]


def replay(
    servers: str,
    manifest: Manifest,
    out: Storage,
    *,
    on_poison: str = FAIL,
    compacted: bool = False,
    threads: int = THREADS,
    single_writer: bool = False,
    request_timeout_ms: int | None = None,
    security: Mapping[str, str] | None = None,
    on_batch: OnBatch = lambda batch: None,
    on_written: OnWritten = lambda within, file: None,
    on_wait: Callable[[str], object] = lambda reason: None,
) -> Receipt:
    """Write the manifest's rows to `out`, `threads` ranges at once.

    `compacted` allows missing offsets in topics that were compacted once. `security` has properties of Kafka's clients,
    such as `security.protocol`. Those threads call `on_batch` for each Arrow batch that is read, and `on_written` for
    each file. They and this thread call `on_wait` with the reason of each wait for a broker. Raise ReplayError if the
    proof fails, `out` is something other than this replay, or a rerun differs from it; `out` is then unchanged. Raise
    what a read raises: DataLoss, CorruptBatch, ReadFailed, OptionError, ManifestError, ClusterError.
    """
    options = {"kafka.bootstrap.servers": servers, "manifest": "given", "onPoison": on_poison}
    if compacted:
        options["compacted"] = "true"
    if request_timeout_ms is not None:
        options["kafka.request.timeout.ms"] = str(request_timeout_ms)
    options |= options_of(security)
    pinned = pin_read(options, manifest, on_wait)
    topic = ReplayTopic(servers, pinned.settings.security)
    with run_of(out, manifest, Writer.usual(), single_writer=single_writer) as run:
        announce(topic, out, manifest)
        files: dict[int, RangeFile] = {}
        reads = RangeReads(pinned.servers, pinned.settings, on_wait)
        jobs = [
            partial(_write, run.storage, index, pinned, reads, on_batch, on_written)
            for index in range(len(manifest.ranges))
        ]
        with SideBySide(jobs, threads, threads, reads.stop, reads.close) as written:
            files.update(written)
        receipt = prove_files(manifest, files)
        run.publish(receipt)
    announce(topic, out, manifest, receipt)
    return receipt


def _write(
    storage: Storage, index: int, pinned: PinnedRead, reads: RangeReads, on_batch: OnBatch, on_written: OnWritten
) -> Iterator[tuple[int, RangeFile]]:
    within = pinned.manifest.ranges[index]
    columns = columns_to_read(pinned.columns)
    topic_id = pinned.topic_id(within)
    file = write_range(
        storage, within, pinned.columns, lambda skip: reads.batches(within, columns, topic_id, skip), on_batch
    )
    on_written(within, file)
    yield index, file
