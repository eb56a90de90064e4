"""Play scripts on the broker of one source tree and write down what the broker answers and what lies in its files.

    python -P driver.py SCRIPTS REPORTS       PYTHONPATH and the working directory are the tree

The driver is a separate process, because two trees cannot be imported together. It imports `EngineBroker` only, so that
modules of the tree may move. `frames.py` documents the steps of a script.

An engine with `execute` executes nothing in its other verbs. The driver then calls `execute` after each verb, and again
until `has_work` is false, so that such an engine has done as much at each point as one that executes in `receive`.
"""

import gc
import os
import pickle
import re
import sys
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from traceback import format_exc

from crc32c import crc32c

from tests.broker.engine_client import EngineBroker, MemoryStorage

CRC_AT, CRC_COVERS_FROM = 17, 21  # in a record batch
EXECUTES_MAX = 100_000
AWAIT_STEP_MS = 50
TICK_MS, TICKS = 10, 20  # the least time between two ticks, and the most ticks of one step
AFTER_CRASH_MS = 10_000
READ_OTHERWISE = ".log", ".index"
RECEIVE_BYTES = 1 << 18  # most bytes of one receive
JOURNAL_MAGIC, JOURNAL_HEADER_BYTES = b"FLAKEJNL", 16  # the tree before has journals without a header


class Journals:
    """All paths of journals, also of those that a tree makes only with their first round."""

    def __contains__(self, path):
        return path.endswith(".journal")


METADATA_JOBS = "WriteMetadata", "PutAway"
"""Never held back, because the tree before wrote the metadata while it handled the request."""

DELETING = re.compile(rb'"deleting": \[[^]]*\], ')
"""Directories that may still be there after a crash; the tree before renamed them before it wrote the metadata."""


class Player:
    """Plays one script on one broker."""

    def __init__(self, script):
        self.settings = script["settings"]
        self.broker = EngineBroker(**self.settings)
        self.faults = []
        self.opened = 0
        self.learned = {}
        self.begin()
        for name, partitions, properties in script["topics"]:
            self.broker.create(name, partitions, **properties)
        self.pump()

    def begin(self):
        """Start with a broker that has no connections yet."""
        self.engine = self.broker.engine
        for log in self.broker.services.logs.all():  # the tree before verifies nothing, so it answers a moment earlier
            getattr(getattr(log, "segments", None), "unverified", {}).clear()
        self.broker.worker.max_ahead_ms = self.settings["max_ahead_ms"]  # `restarted` does not keep it
        self.conns = {}
        self.numbers = {}
        self.pending = {}
        self.expected = {}
        self.unread = {}
        self.unanswered = set()
        """Connections that have no answer since they sent last."""
        self.held = None
        self.lent = []
        """Buffers of the shell's that the engine may still use."""
        self.seen = []

    # --- steps ---------------------------------------------------------------------------------------------------

    def play(self, step):
        """Take one step; the list of what the broker did: (what, connection, bytes or reason)."""
        self.seen = []
        getattr(self, "do_" + step[0])(*step[1:])
        return self.seen

    def do_turn(self, *deliveries):
        """Receive all that is readable in one turn of the reactor, then execute it. A delivery is (connection, frames,
        sizes of receives, bytes held back)."""
        for number, frames, pieces, held_back in deliveries:
            conn = self.conn(number)
            self.unanswered.add(number)
            data = self.pending.pop(number, b"") + b"".join([self.filled(number, frame) for frame in frames])
            keep = min(held_back, len(data))
            if keep:
                self.pending[number] = data[len(data) - keep :]
                data = data[: len(data) - keep]
            for piece in cut(data, pieces):
                self.receive(conn, piece)
        self.work()
        self.pump()

    def do_at(self, later_ms):
        """Let time pass, with ticks at fixed moments. Overdue work runs at the next tick, whatever the reason of the
        tick; so ticks at the deadlines of a tree would make two trees differ that only have other deadlines."""
        until_ms = self.broker.now_ms + later_ms
        step_ms = max(later_ms // TICKS, TICK_MS)
        while self.broker.now_ms < until_ms:
            self.broker.now_ms = min(self.broker.now_ms + step_ms, until_ms)
            self.engine.tick(self.broker.now)
            self.work()
            self.pump()

    def do_await(self, number, most_ms):
        """Let time pass until the connection has an answer to what it sent last, or is closed."""
        end_ms = self.broker.now_ms + most_ms
        while self.broker.now_ms < end_ms and number in self.unanswered:
            self.do_at(AWAIT_STEP_MS)

    def do_close(self, number):
        """The client closes its connection."""
        conn = self.conns.pop(number, None)
        if conn is not None:
            self.forget(number, conn)
            self.engine.closed(conn)
            self.work()
            self.pump()

    def do_hold(self):
        """The disk takes its time from now on."""
        if self.held is None:
            self.held = []

    def do_release(self):
        """The disk finishes all syncs."""
        held, self.held = self.held or [], None
        for sync in held:
            self.sync(sync)
            self.pump()

    def do_disk(self, free_bytes):
        """So many bytes are free on the disk; None for no limit."""
        self.broker.storage.free_bytes = free_bytes

    def do_fail(self, fails):
        """Syncs of journals fail from now on, or succeed again."""
        storage = self.broker.storage
        storage.failing_syncs = Journals() if fails else set()

    def do_cool(self):
        """Drop files from the page cache: the next reader of each of them waits for the disk.

        Logs and offset indexes stay, because the trees differ in what they read of these: the last writes of a log are
        found without its index, and a Fetch of an unknown session is refused without a look at the log.
        """
        self.broker.storage.not_in_memory.update(
            path for path in self.broker.storage.files if not path.endswith(READ_OTHERWISE)
        )

    def do_crash(self, how):
        """The process is killed, or stops cleanly, or the power goes; another one starts on the files."""
        self.do_disk(None)
        self.do_fail(False)
        self.faults += faults_of(self.broker)
        if how == "power":
            self.broker = self.after_power_cut()
        else:
            self.broker = self.broker.restarted(AFTER_CRASH_MS, clean=how == "clean")
        self.begin()
        self.pump()

    def after_power_cut(self):
        """A broker on the files as they were at their last syncs."""
        storage = self.broker.storage.power_cut(lambda n: 0)
        return EngineBroker(storage, self.broker.now_ms + AFTER_CRASH_MS, **self.settings)

    # --- connections ---------------------------------------------------------------------------------------------

    def conn(self, number):
        """The connection of this number; a new one if the last one was closed."""
        conn = self.conns.get(number)
        if conn is None:
            self.opened += 1
            conn = self.engine.opened(f"10.0.0.{number % 250}:{50_000 + self.opened % 10_000}", self.broker.now, "")
            self.conns[number] = conn
            self.numbers[conn] = number
            self.expected[number] = {}
            self.unread[number] = bytearray()
        return conn

    def forget(self, number, conn):
        del self.numbers[conn]
        self.unanswered.discard(number)
        for by_number in (self.pending, self.expected, self.unread):
            by_number.pop(number, None)

    def filled(self, number, frame):
        """A frame with the values that earlier answers gave, and with CRCs that fit them."""
        data, fills, seals, learn = frame
        if learn is not None:
            self.expected[number][data[8:12]] = learn
        if not fills:
            return data
        out = bytearray(data)
        for position, slot in fills:
            value = self.value_of(slot)
            if value is not None and position + len(value) <= len(out):
                out[position : position + len(value)] = value
        for start, end in seals:
            crc = crc32c(memoryview(out)[start + CRC_COVERS_FROM : end])
            out[start + CRC_AT : start + CRC_COVERS_FROM] = crc.to_bytes(4, "big")
        return bytes(out)

    def value_of(self, slot):
        if slot[0] == "topic":
            topic = self.broker.services.metadata.topic(slot[1])
            return None if topic is None else topic.id.bytes
        return self.learned.get(slot)

    # --- the engine ----------------------------------------------------------------------------------------------

    def receive(self, conn, data):
        """Receive as the shell does: into the buffer of the frame that has begun, or else into one of the shell's.

        An engine with `execute` may use the shell's buffer until `execute` returns, any other until `receive` returns.
        After that the driver overwrites the buffer.
        """
        while data and conn.close_reason is None:
            decoder = getattr(conn, "decoder", None)
            room = decoder.wanted() if hasattr(decoder, "wanted") else None
            buffer = room or memoryview(bytearray(min(len(data), RECEIVE_BYTES)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.engine.receive(conn, buffer[:size], self.broker.now)
            if not room:
                self.lent.append(buffer)
            if not hasattr(self.engine, "execute"):
                self.spoil()
            data = data[size:]

    def spoil(self):
        for buffer in self.lent:
            buffer[:] = b"\xa5" * len(buffer)
        self.lent.clear()

    def work(self):
        """Let an engine that puts requests aside execute them all: one turn after each verb, and more while it has
        work."""
        engine = self.engine
        if not hasattr(engine, "execute"):
            return
        for _ in range(EXECUTES_MAX):
            engine.execute(self.broker.now)
            self.spoil()
            if not engine.has_work:
                return
        raise AssertionError(f"the engine still has work after {EXECUTES_MAX} turns")

    def pump(self):
        """Do what the shell does after each verb: send answers, close connections, run syncs."""
        self.send()
        self.close()
        while syncs := self.engine.take_syncs():
            for sync in syncs:
                if self.held is None or type(sync).__name__ in METADATA_JOBS:
                    self.sync(sync)
                else:
                    self.held.append(sync)
            self.send()
            self.close()

    def close(self):
        for conn in self.engine.take_closes():
            number = self.numbers.get(conn)
            if number is not None:
                self.seen.append(("close", number, conn.close_reason))
                del self.conns[number]
                self.forget(number, conn)
            self.engine.closed(conn)
        self.work()

    def sync(self, sync):
        self.broker.run(sync)
        self.work()

    def send(self):
        while replies := self.engine.take_replies():
            for conn, parts in replies:
                number = self.numbers.get(conn)
                if number is None:
                    continue
                data = b"".join([bytes_of(part) for part in parts])
                self.seen.append(("answer", number, data))
                self.unanswered.discard(number)
                self.learn(number, data)
                self.engine.drained(conn, len(data), self.broker.now)
                self.work()

    def learn(self, number, data):
        """Keep what later frames are filled with, from answers that say they are good."""
        expected, unread = self.expected[number], self.unread[number]
        if not expected:
            unread.clear()
            return
        unread += data
        while len(unread) >= 4:
            end = 4 + int.from_bytes(unread[:4], "big")
            if len(unread) < end:
                return
            answer = bytes(unread[4:end])
            del unread[:end]
            slot, position, length, error_at = expected.pop(answer[:4], (None, 0, 0, None))
            if slot is None or (error_at is not None and any(answer[error_at : error_at + 2])):
                continue
            if position + length <= len(answer):
                self.learned[slot] = answer[position : position + length]


def cut(data, pieces):
    """Yield the data in pieces of these sizes; the last piece is the rest."""
    start = 0
    for size in pieces:
        if start + size >= len(data):
            break
        yield data[start : start + size]
        start += size
    if start < len(data):
        yield data[start:]


def bytes_of(part):
    return part.file.read(part.position, part.length) if hasattr(part, "file") else bytes(part)


def faults_of(broker):
    return [line for line in broker.reported if "fault of the broker's own" in line]


def files_of(broker, whole):
    """By path the size and digest of each file; with `whole` its bytes.

    A journal counts without its header, and not if it has no record.
    """
    files = {}
    for path, content in sorted(broker.storage.files.items()):
        data = bytes(content.data)
        if data.startswith(JOURNAL_MAGIC):
            data = data[JOURNAL_HEADER_BYTES:]
        if not data and path.endswith(".journal"):
            continue
        if path == "metadata.json":
            data = DELETING.sub(b"", data)
        files[path] = data if whole else (len(data), blake2b(data, digest_size=16).hexdigest())
    return files


def report_of(script):
    """Play a script; return the answers and closes by step, the files by moment, and the broker's own faults."""
    report = {"steps": {}, "files": {}, "faults": [], "error": None}
    whole = script["whole_files"]
    try:
        player = Player(script)
        for number, step in enumerate(script["steps"]):
            if step[0] == "crash":
                report["files"][f"before step {number}, a crash"] = files_of(player.broker, whole)
            seen = player.play(step)
            if seen:
                report["steps"][number] = seen
        report["faults"] = player.faults + faults_of(player.broker)
        player.do_disk(None)
        player.do_fail(False)
        report["files"]["at the end"] = files_of(player.broker, whole)
        report["files"]["after a power cut"] = files_of(player.after_power_cut(), whole)
        report["files"]["after a kill"] = files_of(player.broker.restarted(AFTER_CRASH_MS, clean=False), whole)
    except Exception:
        report["error"] = format_exc()
    return report


def validate_as_before():
    """Have only headers of batches checked, and records never in a thread, because scripts send rubbish under good
    headers. A start takes the files for good, so that no fetch waits until a thread has verified them."""
    try:
        from broker.log.segment_list import SegmentList
        from broker.log.validation import opening
        from broker.settings.config import BrokerConfig
    except ImportError:
        return
    begin = SegmentList.__init__

    def verified(segments, *arguments):
        begin(segments, *arguments)
        segments.unverified.clear()
        segments.unverified_times.clear()

    SegmentList.__init__ = verified
    opening.INLINE_UNITS = None
    BrokerConfig.__init__.__kwdefaults__["validate_records"] = opening.HEADER


def start_as_before():
    """Have a start after a crash begin no leader epoch, doubt no producer id, and sync each log, as before.

    The note that no file was cut, which spares a start the syncs, is never written."""
    MemoryStorage.note_until_cut = lambda storage, path: None
    for name in ("context", "start"):  # the trees have the step in one or the other
        try:
            module = import_module(f"broker.services.{name}")
        except ImportError:
            continue
        owner = module.BrokerServices if name == "context" else module
        if hasattr(owner, "_begin_epochs"):
            owner._begin_epochs = lambda services: None


def main(scripts_path, reports_path):
    here, broker_file = Path.cwd().resolve(), Path(sys.modules[EngineBroker.__module__].__file__).resolve()
    assert broker_file.is_relative_to(here), f"{broker_file} is not of {here}"
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and name.partition(".")[0] in ("broker", "idgen"):
            assert Path(path).resolve().is_relative_to(here), f"{name} is {path}, not of {here}"
    validate_as_before()
    start_as_before()
    gc.set_threshold(50_000, 20, 100)
    with open(scripts_path, "rb") as file:
        scripts = pickle.load(file)
    with open(reports_path + ".part", "wb") as file:
        for script in scripts:
            pickle.dump(report_of(script), file)
    os.replace(reports_path + ".part", reports_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
