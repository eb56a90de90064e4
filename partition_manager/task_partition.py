"""A partition of a task, from the claim to the last commit.

    OPENING -- claimed --> RUNNING -- released --> CLOSING -- last commit stored --> gone
       |                      |
       +-- unusable document  +-- another owner wrote
           --> BROKEN             --> FENCED

FENCED and BROKEN stay until the partition is released. Continuing would process what another owner processes, or
overwrite a document that could not be understood.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from broker.client.records import PoisonBatch
from partition_manager.asks import Asks
from partition_manager.entry import Counts, Message
from partition_manager.manager import PartitionManager
from partition_manager.offset_document import BadOffsetDocument, OffsetDocument
from partition_manager.opening import Opened, open_partition
from partition_manager.ports import Answer, Bury, DeadLetter, Fenced, Fetch, Fetched, OutOfRange, Saved, SaveOffset
from partition_manager.progress import Progress
from partition_manager.source import Source


class Phase(Enum):
    """Phase of a partition in this task."""

    OPENING = "opening"
    RUNNING = "running"
    CLOSING = "closing"
    FENCED = "fenced"
    BROKEN = "broken"


class PartitionStatus(NamedTuple):
    """The status of a partition, for people and metrics; offsets are None until it is opened."""

    partition: int
    phase: Phase
    watermark: int | None
    position: int | None
    high_watermark: int | None
    pending: int
    counts: Counts
    error: str


class TaskPartition:
    """An assigned partition. `document` names its owner; when `gone` is True the coordinator may drop it."""

    def __init__(
        self, source: Source, document: OffsetDocument, tickets: Iterator[int], asks: Asks, note: Callable[[str], None]
    ) -> None:
        self.number = document.partition
        self.phase = Phase.OPENING
        self.gone = False
        self.error = ""
        self.manager: PartitionManager | None = None
        self._source = source
        self._document = document
        self._version = -1  # version of the stored document, as last seen
        self._tickets = tickets
        self._asks = asks
        self._note_line = note
        self._opening = open_partition(source, document)
        self._saving = False
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """Return the counts of its messages' outcomes so far."""
        return self.manager.counts if self.manager else self._counts

    def next(self, now_ms: int) -> Message | None:
        """Return the next message to emit, or None if there is no message or the phase is not RUNNING.

        Poison batches are not emitted: they go to the dead letters.
        """
        manager = self.manager if self.phase is Phase.RUNNING else None
        while manager is not None and (message := manager.next(now_ms)) is not None:
            if message.poison is None:
                return message
            self._reject(manager, message, message.poison, now_ms)
        return None

    def next_deadline_ms(self) -> int | None:
        """Return the time the next retry is due, or None if none is scheduled or the phase is not RUNNING."""
        return self.manager.next_deadline_ms() if self.manager and self.phase is Phase.RUNNING else None

    def status(self) -> PartitionStatus:
        """Return the current status."""
        m = self.manager
        if m is None:
            return PartitionStatus(self.number, self.phase, None, None, None, 0, self.counts, self.error)
        return PartitionStatus(
            self.number, self.phase, m.watermark, m.emitted, m.high_watermark, m.pending, m.counts, self.error
        )

    # --- opening

    def open(self, now_ms: int, answer: Answer | None = None) -> None:
        """Take the next step towards RUNNING; `answer` is the answer to the previous step's request."""
        if self.phase is not Phase.OPENING:
            return
        try:
            request = self._opening.send(answer)
        except StopIteration as stop:
            self._opened(stop.value)
        except BadOffsetDocument as error:
            self._shut(Phase.BROKEN, str(error))
        else:
            self._asks.ask(self, request, lambda answer, at_ms: self.open(at_ms, answer), now_ms)

    def _opened(self, opened: Opened) -> None:
        start = opened.start
        self._document, self._version = opened.document, opened.version
        self.phase = Phase.RUNNING
        self.error = ""
        self.manager = PartitionManager(
            self._source.topic,
            self.number,
            start.progress,
            self._source.config,
            tickets=self._tickets,
            stored=start.progress,
        )
        self.manager.counts.lost = start.lost
        lost = f", {start.lost} messages lost" if start.lost else ""
        self._note(f"begins at offset {start.progress.offset}: {start.why}{lost}")

    # --- reading

    def fetch(self, now_ms: int) -> None:
        """Send the fetch the manager wants, if any."""
        wanted = self.manager.wanted() if self.manager and self.phase is Phase.RUNNING else None
        if wanted is not None:
            request = Fetch(self._source.topic, self.number, wanted)
            self._asks.ask(self, request, lambda answer, at_ms: self._fetched(answer), now_ms)

    def _fetched(self, answer: Answer) -> None:
        manager = self.manager
        if manager is None:
            return
        self.error = ""
        if isinstance(answer, Fetched):
            manager.fetched(answer.records, answer.next_offset, answer.high_watermark, answer.poison)
        elif isinstance(answer, OutOfRange):
            before, lost = manager.emitted, manager.counts.lost
            manager.out_of_range(answer.log_start, answer.log_end)
            lost = manager.counts.lost - lost
            self._note(f"offset {before} out of range: goes on at {manager.emitted}, {lost} messages lost")

    # --- dead letters

    def _reject(self, manager: PartitionManager, message: Message, batch: PoisonBatch, now_ms: int) -> None:
        if message.attempt == 1:
            has_topic = self._source.config.spout_dead_letter_topic
            outcome = "it goes to the dead letters" if has_topic else "it stays, because there is no dead-letter topic"
            offsets = f"offsets {batch.base_offset} to {batch.last_offset}"
            self._note(f"the batch of {offsets} cannot be decoded, {outcome}: {batch.reason}")
        manager.reject(message.record.offset, message.ticket, now_ms, batch.reason)
        self.bury(now_ms)

    def bury(self, now_ms: int) -> None:
        """Send the messages that the manager has given up to the dead letters."""
        for letter in self.manager.take_dead_letters() if self.manager else ():
            self._bury(letter, now_ms)

    def _bury(self, letter: DeadLetter, now_ms: int) -> None:
        self._asks.ask(self, Bury(letter), lambda answer, at_ms: self._buried(letter), now_ms)

    def _buried(self, letter: DeadLetter) -> None:
        if self.manager:
            self.manager.buried(letter.record.offset, letter.ticket)

    # --- committing

    def save(self, now_ms: int) -> None:
        """Store the progress if it has changed.

        One write is outstanding at a time, because each write names the version of the one before.
        """
        progress = self.manager.commit() if self.manager and not self._saving else None
        if progress is None:
            return
        self._saving = True
        document = self._document.at(progress).encode()
        request = SaveOffset(self._source.topic, self.number, document, self._version)
        self._asks.ask(self, request, lambda answer, at_ms: self._saved(progress, answer, at_ms), now_ms)

    def _saved(self, progress: Progress, answer: Answer, now_ms: int) -> None:
        self._saving = False
        if isinstance(answer, Saved) and self.manager:
            self._version = answer.version
            self.manager.stored(progress)
        elif isinstance(answer, Fenced):
            self._shut(Phase.FENCED, answer.error, closing=self.phase is Phase.CLOSING)
        if self.phase is Phase.CLOSING:
            self._close(now_ms)

    # --- release

    def release(self, now_ms: int) -> None:
        """Stop emitting and store the progress; `gone` becomes True after the last write.

        Messages in flight are emitted again by the next owner.
        """
        running = self.phase is Phase.RUNNING
        self.phase = Phase.CLOSING
        if running or self._saving:
            self._close(now_ms)
        else:
            self._go()

    def _close(self, now_ms: int) -> None:
        self.save(now_ms)  # save again if more was settled during the previous write
        if not self._saving:
            self._go()

    def _go(self) -> None:
        self.gone = True
        self._asks.forget(self)

    def _note(self, text: str) -> None:
        self._note_line(f"{self._source.topic}-{self.number} {text}")

    def _shut(self, phase: Phase, error: str, *, closing: bool = False) -> None:
        self._counts = self.counts
        self.manager = None
        self.phase = Phase.CLOSING if closing else phase
        self.error = error
        self._asks.forget(self)
        self._note(f"{phase.value}: {error}")
