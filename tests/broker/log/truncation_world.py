"""A broker whose logs are truncated: batches of all kinds in several epochs, and a disk that stops at any step."""

from broker.log import log_appender, log_reader
from broker.log.io_jobs import SyncLog
from broker.log.leader_epochs import truncated
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.record.batch import walk
from broker.record.control import Marker
from broker.settings.config import BrokerConfig, TopicConfig
from tests.broker.log.conftest import NOW, START_MS, append, new_worker, uuid_of

SMALL = 1024  # bytes of a segment
LAST_OFFSET = 30
COMMIT, ABORT = Marker(True, 0), Marker(False, 0)


class Stopped(Exception):
    """The process was killed."""


class StoppingStorage(MemoryStorage):
    """A storage whose process is killed before change number `steps_left` of a file or a name."""

    steps_left = 1 << 30

    def step(self):
        self.steps_left -= 1
        if self.steps_left < 0:
            raise Stopped

    def fail_if_told(self, path, failing):
        if failing is not self.failing_opens:
            self.step()
        super().fail_if_told(path, failing)

    def take(self, path, size):
        self.step()
        super().take(path, size)

    def remove(self, path):
        if self.exists(path):
            self.step()
        super().remove(path)

    def rename(self, source, target):
        self.step()
        super().rename(source, target)

    def sync_directory(self, path):
        self.step()
        super().sync_directory(path)


class Broker:
    """A log manager, whose jobs run when a test runs them."""

    def __init__(self, storage=None, partitions=1, later_ms=0, config=None, **topic):
        self.storage = StoppingStorage() if storage is None else storage
        self.lines = []
        self.held = set()
        """Partitions whose syncs never end, so that the journal's files are needed for them."""
        self.manager = LogManager(self.storage, config or BrokerConfig(), self.lines.append)
        self.topic = TopicConfig(**{"durable_acks": True, "segment_bytes": SMALL} | topic)
        self.now = Now(NOW.ms + later_ms, START_MS + later_ms)
        self.worker = new_worker(START_MS + later_ms)
        self.manager.load_checkpoint()
        for partition in range(partitions):
            self.manager.open("flights", partition, self.topic, uuid_of(1))
        self.manager.opened()

    def log(self, partition=0):
        return self.manager.get("flights", partition)

    def run(self, jobs=None):
        """Run jobs, the last one first: threads run them in any order."""
        for job in reversed(self.manager.take_syncs() if jobs is None else jobs):
            if isinstance(job, SyncLog) and job.log.partition in self.held:
                continue
            try:
                job.run()
            except StorageError as error:
                self.manager.sync_failed(job, error)
            else:
                self.manager.synced(job)

    def settle(self):
        while jobs := self.manager.take_syncs():
            self.run(jobs)

    def round(self):
        self.manager.syncs.start_round()
        self.settle()

    def write(self, *values, partition=0, **fields):
        """Append a batch, and leave the jobs that it makes due to the test."""
        log = self.log(partition)
        done = append(log, *values, worker=self.worker, now=self.now, **fields)
        self.manager.appended(log)
        return done

    def append(self, *values, **fields):
        """Append a batch, and run the jobs until it is on the disk."""
        done = self.write(*values, **fields)
        self.settle()
        return done

    def produce(self, producer, sequence, *values, partition=0, transactional=False):
        sent = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        return self.append(*values, partition=partition, transactional=transactional, **sent)

    def end(self, producer, marker, partition=0):
        log = self.log(partition)
        log_appender.append_marker(log, producer, 0, marker, self.worker, self.now)
        self.manager.appended(log)
        self.settle()

    def truncate(self, offset, partition=0):
        """Truncate a log, and return its outcome."""
        self.manager.truncate({("flights", partition): offset})
        self.settle()
        (outcome,) = self.manager.take_truncated()
        return outcome


def fill(broker, partition=0, until=1 << 30, checkpoint_at=None):
    """Append the batches that end at or before `until`: plain, idempotent and transactional ones of five epochs.

    Checkpoint the log when it ends at `checkpoint_at`.
    """
    log = broker.log(partition)
    steps = (
        (2, lambda: broker.append(b"a", b"b" * 400, partition=partition)),
        (3, lambda: broker.produce(7, 0, b"c", b"d", b"e", partition=partition)),
        (2, lambda: broker.produce(9, 0, b"f", b"g" * 300, partition=partition, transactional=True)),
        (1, lambda: broker.append(b"h" * 600, partition=partition)),
        (1, lambda: broker.end(9, ABORT, partition)),
        (0, lambda: log.start_leader_epoch(3)),
        (2, lambda: broker.produce(7, 3, b"i", b"j", partition=partition)),
        (2, lambda: broker.produce(9, 2, b"k", b"l", partition=partition, transactional=True)),
        (3, lambda: broker.append(b"m" * 300, b"n", b"o", partition=partition)),
        (0, lambda: log.start_leader_epoch(5)),
        (2, lambda: broker.produce(7, 5, b"p", b"q" * 300, partition=partition)),
        (1, lambda: broker.end(9, COMMIT, partition)),
        (5, lambda: broker.append(*[b"r" * 100] * 5, partition=partition)),
        (0, lambda: log.start_leader_epoch(6)),
        (1, lambda: broker.append(b"s", partition=partition)),
        (1, lambda: broker.produce(8, 0, b"t" * 700, partition=partition)),
        (4, lambda: broker.append(b"u", b"v", b"w", b"x", partition=partition)),
        (0, lambda: log.start_leader_epoch(8)),
    )
    for count, step in steps:
        if log.log_end_offset + count > until:
            break
        step()
        if log.log_end_offset == checkpoint_at:
            broker.round()
    return log


def filled(storage=None, checkpoint_at=None, **more):
    broker = Broker(storage, **more)
    fill(broker, checkpoint_at=checkpoint_at)
    return broker


def ids(log):
    return [id for first, n in log_reader.ids_of(log, 0, log.log_end_offset) for id in range(first, first + n)]


def data(log):
    return b"".join(segment.log.read(0, segment.size) for segment in log.segments.all)


def bounds(log):
    """Return the ends of the batches."""
    return [header.last_offset + 1 for _, header in walk(data(log))]


def contents(log):
    """Return all that clients can learn of a log, but its epochs."""
    producers = sorted(
        (active.producer_id, active.epoch, active.last_sequence, active.coordinator_epoch, active.first_offset)
        for active in log.producers.active()
    )
    aborted = log_reader.aborted_transactions(log, 0, log.log_end_offset)
    transactions = log.producers.open_transactions(), aborted
    return log.log_start_offset, log.log_end_offset, log.last_id, data(log), ids(log), producers, transactions


def expected(end):
    """Return the contents and epochs of a log that only ever had the batches below `end`."""
    log = fill(Broker(), until=end)
    assert log.log_end_offset == end
    return contents(log), truncated(log.epochs, end)
