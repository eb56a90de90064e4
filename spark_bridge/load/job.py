"""SHELL (threads, sockets): a load of a topic into a place, with the sinks and the log behind the driver.

    job = LoadJob("127.0.0.1:9092", Destination("s3://bucket/flights", "parquet"), LoadOptions("flights"))
    outcome = job.run(watcher)

The ranges of a load are read by a few threads side by side, each straight into its file. A thread keeps the answer of
one fetch and one row group in memory (part_files.HELD_BYTES at most, with --partition-by).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from broker.record.batch import CorruptBatch
from broker.version import VERSION
from spark_bridge.arrow_reader import range_batches
from spark_bridge.load.destination import Destination
from spark_bridge.load.driver import Driver, Outcome, RunAll, Watcher, begins_chain
from spark_bridge.load.ledger import LoadOptions, check_place, next_load
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import Receipt, WrittenPart
from spark_bridge.load.sink import Rows, Sink, last_standing
from spark_bridge.load.verify import Verification, verify
from spark_bridge.output.replay_topic import ReplayTopic
from spark_bridge.reading.cluster import Cluster
from spark_bridge.reading.network import Address, ClusterError, addresses
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import DataLoss
from spark_bridge.reading.range_fetch import ReadFailed
from spark_bridge.reading.range_reads import RangeReads
from spark_bridge.reading.row import arrow_schema
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.side_by_side import SideBySide
from spark_bridge.reading.skipped import SkippedBatch

THREADS = 4
SAMPLE_OFFSETS = 200
"""Offsets at each end of a range from which the bytes of its rows are estimated."""
SAMPLED_FROM = 1_000
"""Ranges with fewer offsets are not sampled: they are one file whatever their bytes."""
SAMPLE_FETCH_BYTES = 64 << 10

OnBatch = Callable[[int, int], object]
"""Called with the rows and bytes of each batch that was read, from any thread."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next load as `--plan` shows it. A `resumed` load was planned by a killed run, or by one that runs now."""

    load: Load
    resumed: bool
    bytes_per_offset: dict[int, float]

    def bytes_of(self, part: OffsetRange) -> int | None:
        size = self.bytes_per_offset.get(part.partition)
        return None if size is None else round(size * part.offsets)


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
        with self._source(on_batch) as source:
            if self.destination.find(self.options) is None:
                source.describe([self.options.topic])  # no namespace is created for a mistyped topic
            sink = self.destination.open(self.options)
            self._check(sink)
            announcing = _Announcing(watcher, ReplayTopic(self.servers, self.settings.security), sink.location)
            outcome = Driver(self.options, sink, source, source.side_by_side(self.threads), announcing, VERSION).run()
            if outcome.receipts:
                with suppress(Exception):  # the load is done, and stays so if its target cannot be counted now
                    outcome.target_rows = sink.rows()
            return outcome

    def plan(self) -> Plan | None:
        """Return the load that a run would do next; None without new messages. Write nothing. Raise as `run`."""
        sink = self.destination.find(self.options)
        if sink is not None:
            self._check(sink)
        last = None if sink is None else sink.newest()
        newest = None if sink is None else last_standing(sink, last)
        if self.options.start_over:
            if sink is not None and last is not None and begins_chain(sink, last, self.options.since):
                last = newest = None
        elif sink is not None:
            sink.check(newest)
        with self._source(lambda rows, size: None) as source:
            if newest is not None and newest.unfinished:
                check_place(self.options, newest.load)
                return Plan(newest.load, True, source.bytes_per_offset(newest.load.parts))
            withdrawn = None if newest is last else last
            load = next_load(self.options, newest, source, VERSION, withdrawn=withdrawn)
            return None if load is None else Plan(load, False, source.bytes_per_offset(load.parts))

    def verify(self) -> Verification:
        """Verify all loads of the place. Raise LoadError if it has none, or as `run`."""
        sink = self.destination.find(self.options)
        if sink is None or sink.newest() is None:
            raise LoadError(f"{self.destination} has no loads of {self.options.topic!r}")
        return verify(sink)

    def _check(self, sink: Sink) -> None:
        """Raise LoadError if two drivers at once could load rows twice."""
        if not sink.exclusive and not self.single_writer:
            raise LoadError(
                f"{sink.location} has no exclusive create here, so two drivers at once could load rows twice. With "
                "--single-writer you promise that one runs at a time; or try: pip install 'flakelog[object-store]'"
            )

    @contextmanager
    def _source(self, on_batch: OnBatch) -> Iterator["LogSource"]:
        try:
            servers = addresses(self.servers)
        except ValueError as error:
            raise LoadError(f"--servers: {error}") from None
        with Cluster.connect(servers, self.settings) as cluster:
            yield LogSource(cluster, servers, self.settings, on_batch)


class LogSource:
    """The Source port over a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        servers: Sequence[Address],
        settings: ReadSettings,
        on_batch: OnBatch,
    ) -> None:
        self._cluster = cluster
        self._servers = servers
        self._settings = settings
        self._on_batch = on_batch
        self._reads: RangeReads | None = None
        self._of_topics: dict[str, ReadSettings] = {}
        self._estimates: dict[int, float] = {}
        self.describe = cluster.describe
        self.snapshot = cluster.snapshot
        self.earliest = cluster.earliest
        self.latest = cluster.latest
        self.first_at_time = cluster.first_at_time
        self.first_at_id = cluster.first_at_id
        self.keeps_ids = cluster.keeps_ids
        self.compacted = cluster.compacted

    def bytes_per_offset(self, ranges: Sequence[OffsetRange]) -> dict[int, float]:
        whole: dict[int, OffsetRange] = {}  # a partition's parts follow each other
        for range_ in ranges:
            whole[range_.partition] = replace(range_, start=whole.get(range_.partition, range_).start)
        for partition, range_ in whole.items():
            if partition not in self._estimates and range_.offsets >= SAMPLED_FROM:
                first = replace(range_, end=range_.start + SAMPLE_OFFSETS)
                last = replace(range_, start=range_.end - SAMPLE_OFFSETS)
                self._estimates[partition] = (self._sampled(first) + self._sampled(last)) / 2
        return {partition: self._estimates[partition] for partition in whole if partition in self._estimates}

    def _sampled(self, within: OffsetRange) -> float:
        try:
            settings = replace(self._settings_of(within.topic, self._cluster), fetch_bytes=SAMPLE_FETCH_BYTES)
            batches = range_batches(within, ("key", "value"), self._servers, settings)
            return float(sum(batch.nbytes for batch in batches)) / within.offsets
        except (ClusterError, CorruptBatch, DataLoss, ReadFailed):
            return 0.0  # the load itself will say what is wrong

    def rows(self, load: Load, within: OffsetRange) -> Rows:
        assert self._reads is not None, "the jobs of side_by_side read"
        stoppable = Cluster(self._reads.client(), self._settings.patience)
        settings = replace(self._settings_of(load.topic, stoppable), read_committed=load.manifest.read_committed)
        return LogRows(load, within, self._reads, settings, self._on_batch)

    def side_by_side(self, threads: int) -> RunAll:
        """Return a function that runs jobs in threads. The first error ends the reads of the others, and is raised."""

        def run_all(jobs: Iterable[Callable[[], WrittenPart]]) -> list[WrittenPart]:
            reads = self._reads = RangeReads(self._servers, self._settings)
            numbered = [partial(_numbered, number, job) for number, job in enumerate(jobs)]
            with SideBySide(numbered, threads, threads, reads.stop, reads.close) as written:
                return [part for _, part in sorted(written, key=lambda indexed: indexed[0])]

        return run_all

    def _settings_of(self, topic: str, cluster: Cluster) -> ReadSettings:
        if topic not in self._of_topics:
            self._of_topics[topic] = replace(
                self._settings, require_ids=cluster.keeps_ids(topic), compacted_topics=cluster.compacted([topic])
            )
        return self._of_topics[topic]


class LogRows:
    """The Rows port over one range of a cluster's log."""

    def __init__(
        self,
        load: Load,
        within: OffsetRange,
        reads: RangeReads,
        settings: ReadSettings,
        on_batch: OnBatch,
    ) -> None:
        assert load.manifest.columns is not None, "a load names its columns"
        self._columns = load.manifest.columns
        self._topic_id = load.manifest.topic_ids[load.topic]
        self._within = within
        self._reads = reads
        self._settings = settings
        self._on_batch = on_batch
        self.schema = arrow_schema(self._columns)
        self.skipped: list[SkippedBatch] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        batches = self._reads.batches(
            self._within, self._columns, self._topic_id, self.skipped.append, settings=self._settings
        )
        for batch in batches:
            self._on_batch(batch.num_rows, batch.nbytes)
            yield batch


class _Announcing:
    """A Watcher that also publishes each load in the topic of replays, when it begins and when it is done."""

    def __init__(self, watcher: Watcher, topic: ReplayTopic, location: str) -> None:
        self._watcher = watcher
        self._topic = topic
        self._location = location

    def begins(self, load: Load, unread: Sequence[OffsetRange]) -> None:
        self._watcher.begins(load, unread)
        self._announce(load)

    def ends(self, load: Load, receipt: Receipt) -> None:
        self._watcher.ends(load, receipt)
        self._announce(load, receipt.to_json())

    def withdrawn(self, load: Load) -> None:
        self._watcher.withdrawn(load)
        self._announce(load, is_withdrawn=True)

    def _announce(self, load: Load, receipt: str | None = None, *, is_withdrawn: bool = False) -> None:
        chain = f"/chain-{load.chain}" if load.chain else ""
        key = f"{self._location}/{load.topic}{chain}/{load.number}"
        self._topic.publish(key, "load", self._location, load.to_json(), receipt, is_withdrawn=is_withdrawn)


def _numbered(number: int, job: Callable[[], WrittenPart]) -> Iterator[tuple[int, WrittenPart]]:
    yield number, job()
