"""The commands of partition_*.txt: one PartitionManager, its log, its stored progress and its dead letters.

A message is shown as offset#ticket, offsets in braces. An ack or a fail uses the latest ticket of its offset unless it
names another. "Emitted to" and "committed to" are 0.9.3's emittedTo and committedTo.
"""

from dataclasses import replace

from broker.client.offset_spec import Earliest
from flakelog.testing import MemoryLog
from partition_manager.config import SpoutConfig
from partition_manager.manager import PartitionManager
from partition_manager.offset_document import OffsetDocument
from partition_manager.opening import open_partition
from partition_manager.ports import Fetch, Fetched, Loaded, LoadOffset, Saved, SaveOffset
from partition_manager.progress import Progress
from partition_manager.source import Source
from tests.scenarios.scenario import join_parts

COUNTED = ("already_done", "lost", "recreated", "truncations", "truncated", "stale", "expired")
DOCUMENT = OffsetDocument("id", "name", "t", 0, Progress(0))


class PartitionWorld:
    def __init__(self):
        self.output = []
        self.log = MemoryLog()
        self.now_ms = 0
        self.document = None
        self.epoch = -1
        self.manager = None
        self.latest = {}
        self.given_up = {}
        self.dead = []

    # the log

    def do_append(self, number):
        for _ in range(int(number)):
            self.log.append()
        self._say_bounds()

    def do_compact(self, *offsets):
        for offset in _offsets(offsets):
            self.log.compact(0, offset)

    def do_retain(self, start):
        self.log.retain_from(0, int(start))
        self._say_bounds()

    def do_truncate(self, end):
        self.log.truncate(0, int(end))
        self._say_bounds()

    def do_recreate(self):
        """Delete the topic and create it again."""
        self.log.recreate()
        self._say_bounds()

    def _say_bounds(self):
        self.output.append(f"the log begins at {self.log.starts[0]} and ends at {self.log.ends[0]}")

    # the spout

    def do_start(self, **settings):
        """Start a new process: it loads the stored progress, and claims the partition by storing its start."""
        typed = {f"spout_{name}": int(v) if v.isdigit() else v for name, v in settings.items()}
        config = SpoutConfig(**{"spout_retry_jitter": 0.0} | typed)
        opened = self._open(open_partition(Source("t", "id", "name", Earliest(), config), self._template()))
        start, self.epoch = opened.start, opened.document.leader_epoch
        self.manager = PartitionManager("t", 0, start.progress, config, stored=start.progress)
        counts = self.manager.counts
        counts.lost, counts.recreated, counts.truncations = start.lost, int(opened.recreated), int(start.truncated)
        self.latest, self.given_up = {}, {}
        self.output.append(f"begins at {_progress(start.progress)}: {start.why}")

    def _template(self):
        return replace(DOCUMENT, topic_id=self.log.topic_id)

    def _open(self, opening):
        """Carry the requests of an opening to the log and to the stored document; return what it returns."""
        answers = [None]
        try:
            while True:
                request = opening.send(answers.pop())
                if isinstance(request, LoadOffset):
                    answers.append(Loaded(self.document, 0 if self.document else -1))
                elif isinstance(request, SaveOffset):
                    self.document = request.document
                    answers.append(Saved(request.version + 1))
                else:
                    self.log.ask(request, answers.append)
        except StopIteration as stop:
            return stop.value

    def do_at(self, now_ms):
        self.now_ms = int(now_ms)

    def do_fetch(self):
        wanted = self.manager.wanted()
        if wanted is None:
            self.output.append("wants nothing")
            return
        held = len(self.output)
        manager = self.manager
        self.log.ask(Fetch("t", 0, wanted), lambda answer: self._fetched(manager, answer))
        if len(self.output) == held:
            self.output.append(f"waits for {wanted.offset}")

    def _fetched(self, manager, answer):
        if isinstance(answer, Fetched):
            self.epoch = answer.leader_epoch
            manager.fetched(answer.records, answer.next_offset, answer.high_watermark)
            self.output.append(f"reads {_set(record.offset for record in answer.records)}")
        else:
            manager.out_of_range(answer.log_start, answer.log_end)
            self.output.append(f"out of range, the log holds {answer.log_start} to {answer.log_end}")

    def do_next(self, number="1"):
        emitted = []
        while len(emitted) < int(number) and (message := self.manager.next(self.now_ms)) is not None:
            offset = message.record.offset
            self.latest[offset] = message.ticket
            again = f" (attempt {message.attempt})" if message.attempt > 1 else ""
            emitted.append(f"{offset}#{message.ticket}{again}")
        self.output.append(f"emits {' '.join(emitted)}" if emitted else "emits nothing")

    def do_ack(self, *offsets, ticket=None):
        for offset in _offsets(offsets):
            if not self.manager.ack(offset, self._ticket(offset, ticket)):
                self.output.append(f"ack of {offset} is stale")

    def do_fail(self, *offsets, ticket=None):
        for offset in _offsets(offsets):
            if not self.manager.fail(offset, self._ticket(offset, ticket), self.now_ms):
                self.output.append(f"fail of {offset} is stale")
        for letter in self.manager.take_dead_letters():
            self.given_up[letter.record.offset] = letter
            self.output.append(f"gives {letter.record.offset} up after attempt {letter.attempts} ({letter.reason})")

    def do_bury(self, offset):
        """Confirm that the dead-letter topic has stored the message."""
        letter = self.given_up.pop(int(offset))
        self.dead.append(letter.record.offset)
        if not self.manager.buried(letter.record.offset, letter.ticket):
            self.output.append(f"burial of {offset} is stale")

    def do_commit(self):
        progress = self.manager.commit()
        if progress is None:
            self.output.append("nothing new to store")
            return
        self.document = self._template().at(progress, self.epoch).encode()
        self.manager.stored(progress)
        self.output.append(f"stores {_progress(progress)}")

    def _ticket(self, offset, ticket):
        return self.latest[offset] if ticket is None else int(ticket)

    # the resulting state

    def state(self):
        m = self.manager
        if m is None:
            return "not started"
        m.check()
        due = f" (next at {m.next_deadline_ms()})" if m.failed else ""
        counted = [f"{name} {getattr(m.counts, name)}" for name in COUNTED if getattr(m.counts, name)]
        return join_parts(
            f"watermark {m.watermark}",
            f"emitted to {m.emitted}",
            f"committed to {m.committed}",
            f"pending {m.pending}",
            f"failed {_set(m.failed)}{due}" if m.failed else "",
            f"burying {_set(self.given_up)}" if self.given_up else "",
            f"done {_halves(m.progress().done)}" if m.progress().done else "",
            f"dead letters {_set(self.dead)}" if self.dead else "",
            f"counted {', '.join(counted)}" if counted else "",
        )


def _offsets(words):
    """Yield the offsets of "3 7-9"."""
    for word in words:
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _set(offsets):
    """Format offsets as {3, 7-9}."""
    runs = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset - 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    return f"{{{', '.join(str(first) if first == last else f'{first}-{last}' for first, last in runs)}}}"


def _halves(ranges):
    return " ".join(f"[{start},{end})" for start, end in ranges)


def _progress(progress):
    return f"{progress.offset}, done {_halves(progress.done)}" if progress.done else f"{progress.offset}"
