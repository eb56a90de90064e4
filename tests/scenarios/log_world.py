"""The commands of log_*.txt: one partition of a LogManager on an in-memory disk, and a power cut's damage to its files.

A record is shown as value@id, its id as millisecond.worker.sequence, with milliseconds counted from the start. After a
restart the ids have another worker number, as the registry assigns one to each process. A file is named by its segment:
0.log, 3.idindex; a journal file by its number: 1.journal. Producers write in transactions; a marker is shown as commit
or abort.
"""

import re

from broker.log import log_appender, log_reader
from broker.log.io_jobs import SyncJournal
from broker.log.log_manager import LogManager
from broker.log.storage.memory_storage import MemoryStorage
from broker.now import Now
from broker.record.control import Marker, decode_marker
from broker.record.records import decode_records
from broker.settings.config import TopicConfig
from broker.wire.errors import ApiError
from idgen.layout import Layout
from tests.broker.log.conftest import BROKER, START_MS, append, new_worker
from tests.scenarios.scenario import join_parts


class LogWorld:
    def __init__(self):
        self.output = []
        self.storage = MemoryStorage()
        self.now_ms = 0
        self.process = 0
        self.topic = TopicConfig()
        self.do_open()

    def do_open(self):
        """Start a new process on the files as they are; the old process ended without a clean shutdown."""
        self.process += 1
        self.worker = new_worker(START_MS + self.now_ms, self.process)
        self.manager = LogManager(self.storage, BROKER, self._report)
        self.manager.load_checkpoint()
        self.manager.open("flights", 0, self.topic)
        self.manager.opened()
        self.sequences = {}

    def _report(self, line):
        self.output.append(re.sub(r"(?:flights-0/)?\b0*(\d+)\.(?=[a-z])", r"\1.", line))

    def do_at(self, now_ms):
        self.now_ms = int(now_ms)

    def do_durable(self):
        """Answer producers only after the journal has their records on disk."""
        self.topic = TopicConfig(durable_acks=True)
        self.manager.configure({"flights": self.topic})

    def do_append(self, *values, **fields):
        """Append one batch."""
        now = Now(self.now_ms, START_MS + self.now_ms)
        try:
            log = self.manager.get("flights", 0)
            append(log, *[value.encode() for value in values], worker=self.worker, now=now, **fields)
        except ApiError as error:
            self.output.append(f"refused: {error.code.name}")

    def do_send(self, producer, *values):
        """Append one batch of a producer's transaction."""
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(values)
        fields = {"producer_id": int(producer), "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
        self.do_append(*values, **fields)

    def do_commit(self, producer):
        self._end(producer, commit=True)

    def do_abort(self, producer):
        self._end(producer, commit=False)

    def _end(self, producer, commit):
        now = Now(self.now_ms, START_MS + self.now_ms)
        log = self.manager.get("flights", 0)
        log_appender.append_marker(log, int(producer), 0, Marker(commit, 0), self.worker, now)

    def do_journal(self):
        """Sync the records gathered in the journal, but not the log's files."""
        for sync in self.manager.take_syncs():
            if isinstance(sync, SyncJournal):
                sync.run()
                self.manager.synced(sync)

    def do_roll(self):
        self.manager.get("flights", 0).roll()

    def do_sync(self):
        """Sync everything new, and record it in the checkpoint."""
        self.manager.syncs.start_round()
        while syncs := self.manager.take_syncs():
            for sync in syncs:
                sync.run()
                self.manager.synced(sync)

    def do_cut(self, name, size):
        """Cut the power: nothing from byte `size` of the file on had reached the disk."""
        data = self._bytes(_path(name))
        assert 0 <= int(size) < len(data), f"{name} has {len(data)} bytes"
        self._replace_file(name, data[: int(size)])

    def do_flip(self, name, position):
        """Cut the power: the byte at `position` of the file is damaged."""
        data = bytearray(self._bytes(_path(name)))
        data[int(position)] ^= 0xFF
        self._replace_file(name, data)

    def _replace_file(self, name, data):
        self.storage.replace(_path(name), bytes(data))
        self.manager = None

    def _bytes(self, path):
        return bytes(self.storage.files[path].data)

    def state(self):
        paths = sorted(self.storage.files, key=_short)
        files = [path for path in paths if path.endswith((".log", ".idindex", ".txnindex"))]
        shown = [f"{_short(path)} {len(self._bytes(path))} B" for path in files]
        shown += [_short(path) for path in paths if path.endswith(".journal")]  # padded with zeros
        sizes = ", ".join(shown)
        if self.manager is None:
            return join_parts("no power", sizes)
        if self.manager.offline:
            return join_parts("offline", sizes)
        log = self.manager.get("flights", 0)
        safe = f"answered to {log.durability.end_offset}" if log.journal is not None else ""
        return join_parts(
            f"ends at {log.log_end_offset}",
            f"synced to {log.durability.flushed.offset}",
            safe,
            _transactions(log),
            _records(log),
            sizes,
        )


def _transactions(log):
    """Return the last stable offset if it is below the log end, and the aborted transactions."""
    stable = log.last_stable_offset
    aborted = log_reader.aborted_transactions(log, 0, log.log_end_offset)
    parts = [f"stable to {stable}"] if stable < log.log_end_offset else []
    for transaction in aborted:
        parts.append(f"{transaction.producer_id} aborted {transaction.first_offset}-{transaction.last_offset}")
    return ", ".join(parts)


def _values(data, header):
    if header.is_control:
        return ["commit" if decode_marker(data).commit else "abort"]
    return [record.value.decode() for record in decode_records(data)]


def _records(log):
    values = []
    for segment in log.segments.all:
        for position, header in segment.batches():
            values += _values(segment.log.read(position, header.size), header)
    ids = [first + n for first, count in log_reader.ids_of(log, 0, log.log_end_offset) for n in range(count)]
    return " ".join(f"{value}@{_id(id)}" for value, id in zip(values, ids, strict=True))


def _id(id):
    parts = Layout().unpack(id)
    return f"{parts.time_ms - START_MS}.{parts.worker_number}.{parts.sequence}"


def _path(name):
    base, _, suffix = name.partition(".")
    path = f"{int(base):020d}.{suffix}"
    return path if suffix == "journal" else f"flights-0/{path}"


def _short(path):
    base, _, suffix = path.rpartition("/")[2].partition(".")
    return f"{int(base)}.{suffix}" if base.isdecimal() else path
