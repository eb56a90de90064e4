"""A log manager for tests: its storage, its clock, an id worker, and syncs that run when a test runs them."""

from broker.log import checkpoint
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.log.storage.port import StorageError
from broker.settings.config import TopicConfig
from tests.broker.log.conftest import BROKER, NOW, append, new_worker

MINUTE_MS = BROKER.log_flush_offset_checkpoint_interval_ms
LOG = f"flights-0/{0:020d}.log"


class Broker:
    """A log manager with its surroundings: a clock, an id worker, and syncs that run when a test runs them."""

    def __init__(self, storage=None, config=BROKER, **topic):
        self.storage = storage or MemoryStorage()
        self.lines = []
        self.manager = LogManager(self.storage, config, self.lines.append)
        self.manager.load_checkpoint()
        self.topic = TopicConfig(**topic)
        self.worker = new_worker()
        self.manager.next_deadline_ms(NOW.ms)

    def open(self, partition=0):
        self.manager.open("flights", partition, self.topic)
        return self.manager._logs.get(("flights", partition))

    def append(self, log, *values, ms=NOW.ms, **fields):
        done = append(log, *(values or (b"a",)), worker=self.worker, now=NOW._replace(ms=ms), **fields)
        self.manager.appended(log)
        return done

    def run(self, *syncs):
        for sync in syncs or self.manager.take_syncs():
            try:
                sync.run()
            except StorageError as error:
                self.manager.sync_failed(sync, error)
            else:
                self.manager.synced(sync)

    def delete(self, *partitions):
        """Delete partitions of "flights", and put their directories away."""
        self.run(self.manager.delete({"flights": partitions}))

    def round(self):
        self.manager.syncs.start_round()
        while syncs := self.manager.take_syncs():
            self.run(*syncs)

    def checkpoint(self):
        return checkpoint.decode(bytes(self.storage.files["checkpoint"].data))


def kinds(syncs):
    return [type(sync).__name__ for sync in syncs]
