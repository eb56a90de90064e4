"""SHELL (threads, sockets): a load of a topic into a place, with the sinks and the log behind the driver.

    job = LoadJob("127.0.0.1:9092", Destination("s3://bucket/flights", "parquet"), LoadOptions("flights"))
    outcome = job.run(watcher)

The ranges of a load are read by a few threads side by side, each straight into its file. A thread keeps the answer of
one fetch and one row group in memory (part_files.HELD_BYTES at most, with --partition-by).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from broker.version import VERSION
from spark_bridge.arrow_reader import range_batches
from spark_bridge.load.destination import Destination
from spark_bridge.load.driver import Driver, Outcome, Watcher
from spark_bridge.load.ledger import LoadOptions, check_place
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import Receipt, WrittenPart
from spark_bridge.load.sink import Rows, Sink
from spark_bridge.load.verify import Verification, verify
from spark_bridge.output.replay_topic import ReplayTopic
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.network import Address, ClusterError, addresses
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import DataLoss
from spark_bridge.reading.range_fetch import ReadFailed
from spark_bridge.reading.row import arrow_schema
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.skipped import SkippedBatch

THREADS = 4
SAMPLE_OFFSETS = 200
"""Offsets at each end of a range from which the bytes of its rows are estimated."""
SAMPLED_FROM = 1_000
"""Ranges with fewer offsets are not sampled: they are one file whatever their bytes."""
SAMPLE_FETCH_BYTES = 64 << 10

OnBatch = Callable[[int, int], object]
"""Called with the rows and bytes of each batch that was read, from any thread."""


class Stopped(Exception):
    """Another part of the load failed, so this one stopped reading."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next load as `--plan` shows it. A `resumed` load was planned by a killed run, or by one that runs now."""

    load: Load
    resumed: bool
    bytes_per_offset: dict[int, float]

    def bytes_of(self, part: OffsetRange) -> int | None:
        each = self.bytes_per_offset.get(part.partition)
        return None if each is None else round(each * part.offsets)


@dataclass(frozen=True, slots=True)
class LoadJob:
    """One run of `flakelog load`."""

    servers: str
    destination: Destination
    options: LoadOptions
    single_writer: bool = False
    threads: int = THREADS
    settings: ReadSettings = field(default_factory=ReadSettings)

    def run(self, watcher: Watcher, on_batch: OnBatch = lambda rows, size: None) -> Outcome:
        """Load the messages after the last load.

        Raise LoadError, ClusterError, ReadFailed, DataLoss, CorruptBatch, StorageError or OSError.
        """
        stop = threading.Event()
        with self._source(stop, on_batch) as source:
            run_all = _side_by_side(self.threads, stop)
            sink = self._sink()
            told = _Announcing(watcher, ReplayTopic(self.servers), sink.place)
            return Driver(self.options, sink, source, run_all, told, VERSION).run()

    def plan(self) -> Plan | None:
        """Return the load that a run would do next; None without new messages. Write nothing. Raise as `run`."""
        sink = self._sink()
        newest = sink.newest()
        with self._source(threading.Event(), lambda rows, size: None) as source:
            if newest is not None and newest.unfinished:
                check_place(self.options, newest.load)
                return Plan(newest.load, True, source.bytes_per_offset(newest.load.parts))
            driver = Driver(self.options, sink, source, lambda jobs: (), _Silent(), VERSION)
            load = driver.plan(newest, self.options)
            return None if load is None else Plan(load, False, source.bytes_per_offset(load.parts))

    def verify(self) -> Verification:
        return verify(self.destination.open(self.options))

    def _sink(self) -> Sink:
        sink = self.destination.open(self.options)
        if not sink.exclusive and not self.single_writer:
            raise LoadError(
                f"{sink.place} has no exclusive create here, so two drivers at once could load rows twice. With "
                "--single-writer you promise that one runs at a time; or try: pip install 'flakelog[object-store]'"
            )
        return sink

    @contextmanager
    def _source(self, stop: threading.Event, on_batch: OnBatch) -> Iterator["LogSource"]:
        try:
            servers = addresses(self.servers)
        except ValueError as error:
            raise LoadError(f"--servers: {error}") from None
        with Cluster.connect(servers, self.settings) as cluster:
            yield LogSource(cluster, servers, self.settings, stop, on_batch)


class LogSource:
    """The Source port over a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        servers: Sequence[Address],
        settings: ReadSettings,
        stop: threading.Event,
        on_batch: OnBatch,
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._stop = stop
        self._on_batch = on_batch
        self._with_ids: dict[str, bool] = {}
        self.describe = cluster.describe
        self.snapshot = cluster.snapshot
        self.earliest = cluster.earliest
        self.latest = cluster.latest
        self.first_at_time = cluster.first_at_time
        self.first_at_id = cluster.first_at_id
        self.keeps_ids = cluster.keeps_ids

    def bytes_per_offset(self, ranges: Sequence[OffsetRange]) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for one in ranges:
            if one.offsets >= SAMPLED_FROM:
                ends = replace(one, end=one.start + SAMPLE_OFFSETS), replace(one, start=one.end - SAMPLE_OFFSETS)
                found.setdefault(one.partition, []).extend(self._sampled(end) for end in ends)
        return {partition: sum(each) / len(each) for partition, each in found.items()}

    def _sampled(self, within: OffsetRange) -> float:
        settings = replace(self._settings, fetch_bytes=SAMPLE_FETCH_BYTES)
        try:
            batches = range_batches(within, ("key", "value"), self._servers, settings)
            return float(sum(batch.nbytes for batch in batches)) / within.offsets
        except (ClusterError, DataLoss, ReadFailed):
            return 0.0  # the load itself will say what is wrong

    def rows(self, load: Load, part: OffsetRange) -> Rows:
        topic = load.topic
        if topic not in self._with_ids:
            self._with_ids[topic] = self.keeps_ids(topic)
        settings = replace(
            self._settings, require_ids=self._with_ids[topic], read_committed=load.manifest.read_committed
        )
        return LogRows(load, part, self._servers, settings, self._stop, self._on_batch)


class LogRows:
    """The Rows port over one range of a cluster's log."""

    def __init__(
        self,
        load: Load,
        part: OffsetRange,
        servers: Sequence[Address],
        settings: ReadSettings,
        stop: threading.Event,
        on_batch: OnBatch,
    ) -> None:
        assert load.manifest.columns is not None, "a load names its columns"
        self._columns = load.manifest.columns
        self._topic_id = load.manifest.topic_ids[load.topic]
        self._part = part
        self._servers = servers
        self._settings = settings
        self._stop = stop
        self._on_batch = on_batch
        self.schema = arrow_schema(self._columns)
        self.skipped: list[SkippedBatch] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        batches = range_batches(
            self._part, self._columns, self._servers, self._settings, self._topic_id, self.skipped.append
        )
        for batch in batches:
            if self._stop.is_set():
                raise Stopped(f"{self._part} was not read to its end, because another part failed")
            self._on_batch(batch.num_rows, batch.nbytes)
            yield batch


class _Announcing:
    """A Watcher that also publishes each load in the topic of replays, when it begins and when it is done."""

    def __init__(self, watcher: Watcher, topic: ReplayTopic, place: str) -> None:
        self._watcher = watcher
        self._topic = topic
        self._place = place

    def begins(self, load: Load, unread: Sequence[OffsetRange]) -> None:
        self._watcher.begins(load, unread)
        self._announce(load)

    def ends(self, load: Load, receipt: Receipt) -> None:
        self._watcher.ends(load, receipt)
        self._announce(load, receipt.to_json())

    def abandons(self, load: Load, reason: str) -> None:
        self._watcher.abandons(load, reason)

    def _announce(self, load: Load, receipt: str | None = None) -> None:
        key = f"{self._place}/{load.topic}/{load.number}"
        self._topic.publish(key, "load", self._place, load.to_json(), receipt)


class _Silent:
    """A Watcher that tells nothing."""

    def begins(self, load: Load, unread: Sequence[OffsetRange]) -> None:
        pass

    def ends(self, load: Load, receipt: Receipt) -> None:
        pass

    def abandons(self, load: Load, reason: str) -> None:
        pass


def _side_by_side(
    threads: int, stop: threading.Event
) -> Callable[[Iterable[Callable[[], WrittenPart]]], list[WrittenPart]]:
    """Return a function that runs jobs in threads. After the first error the others stop, and it is raised."""

    def run_all(jobs: Iterable[Callable[[], WrittenPart]]) -> list[WrittenPart]:
        with ThreadPoolExecutor(threads, thread_name_prefix="load") as pool:
            futures = [pool.submit(job) for job in jobs]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for each in done:
                    if not isinstance(each.exception(), Stopped):
                        each.result()
                return [each.result() for each in futures]
            finally:
                stop.set()
                for each in futures:
                    each.cancel()
                pool.shutdown(wait=True)
                stop.clear()

    return run_all
