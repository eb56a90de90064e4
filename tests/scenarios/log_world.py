"""The commands of log_*.txt: one partition of a LogManager on a disk in memory, and what a power cut does to its files.

A record is shown as value@id, its id as millisecond.worker.sequence, milliseconds counted from the start. After a
restart another worker number stamps, as the registry gives out. A file is named by its segment: 0.log, 3.idindex.
"""

import re

from broker.config import TopicConfig
from broker.log.log_manager import LogManager
from broker.log.memory_storage import MemoryStorage
from broker.now import Now
from broker.record.records import decode_records
from broker.wire.errors import ApiError
from idgen.layout import Layout
from tests.broker.log.conftest import BROKER, START_MS, append, new_worker
from tests.scenarios.scenario import join_parts


class LogWorld:
    def __init__(self):
        self.said = []
        self.storage = MemoryStorage()
        self.now_ms = 0
        self.process = 0
        self.do_open()

    def do_open(self):
        """A new process on the files as they are; the old one ended without a word."""
        self.process += 1
        self.worker = new_worker(START_MS + self.now_ms, self.process)
        self.manager = LogManager(self.storage, BROKER, self._report)
        self.manager.load_checkpoint()
        self.manager.open("flights", 0, TopicConfig())

    def _report(self, line):
        self.said.append(re.sub(r"flights-0/0*(\d+)\.", r"\1.", line))

    def do_at(self, now_ms):
        self.now_ms = int(now_ms)

    def do_append(self, *values):
        """One batch."""
        now = Now(self.now_ms, START_MS + self.now_ms)
        try:
            log = self.manager.get("flights", 0)
            append(log, *[value.encode() for value in values], worker=self.worker, now=now)
        except ApiError as error:
            self.said.append(f"refused: {error.code.name}")

    def do_roll(self):
        self.manager.get("flights", 0).roll()

    def do_sync(self):
        """All that is new is synced, and the checkpoint says so."""
        self.manager.start_round()
        while syncs := self.manager.take_syncs():
            for sync in syncs:
                sync.run()
                self.manager.synced(sync)

    def do_cut(self, name, size):
        """The power goes, and from this byte on nothing had reached the disk."""
        data = self._bytes(_path(name))
        assert 0 <= int(size) < len(data), f"{name} has {len(data)} bytes"
        self._found(name, data[: int(size)])

    def do_flip(self, name, position):
        """The power goes, and this byte is found as another."""
        data = bytearray(self._bytes(_path(name)))
        data[int(position)] ^= 0xFF
        self._found(name, data)

    def _found(self, name, data):
        self.storage.replace(_path(name), bytes(data))
        self.manager = None

    def _bytes(self, path):
        return bytes(self.storage.files[path].data)

    def state(self):
        files = [name for name in self.storage.list("flights-0") if name.endswith((".log", ".idindex"))]
        sizes = ", ".join(f"{_short(name)} {len(self._bytes(f'flights-0/{name}'))} B" for name in files)
        if self.manager is None:
            return join_parts("no power", sizes)
        if self.manager.offline:
            return join_parts("offline", sizes)
        log = self.manager.get("flights", 0)
        return join_parts(f"ends at {log.log_end_offset}", f"synced to {log.flushed.offset}", _records(log), sizes)


def _records(log):
    values = []
    for segment in log.segments:
        for position, header in segment.batches():
            values += [record.value.decode() for record in decode_records(segment.log.read(position, header.size))]
    ids = [first + n for first, count in log.ids_of(0, log.log_end_offset) for n in range(count)]
    return " ".join(f"{value}@{_id(id)}" for value, id in zip(values, ids, strict=True))


def _id(id):
    parts = Layout().unpack(id)
    return f"{parts.time_ms - START_MS}.{parts.worker_number}.{parts.sequence}"


def _path(name):
    base, _, suffix = name.partition(".")
    return f"flights-0/{int(base):020d}.{suffix}"


def _short(name):
    base, _, suffix = name.partition(".")
    return f"{int(base)}.{suffix}"
