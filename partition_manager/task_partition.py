"""A partition of a task, from the claim to the last commit.

    OPENING -- claimed --> RUNNING -- released --> CLOSING -- last commit stored --> end
       |                      |                       ^
       |                      +-- revoked --> HANDING_OVER, until no message is in flight or its time is over
       |                      |
       +-- unusable document  +-- another owner wrote
           --> BROKEN             --> FENCED

FENCED and BROKEN stay until the partition is released. Continuing would process what another owner processes, or
overwrite a document that could not be understood.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from broker.client.records import PoisonBatch
from partition_manager.asks import Asks
from partition_manager.config import AT_LEAST_ONCE, AT_MOST_ONCE
from partition_manager.entry import Counts, Message, Oldest
from partition_manager.manager import PartitionManager
from partition_manager.notes import BEGUN, GIVEN_UP, INFO, WARN, Note, Notes
from partition_manager.offset_document import BadOffsetDocument, OffsetDocument, node_of
from partition_manager.opening import Opened, Opening, open_partition
from partition_manager.ports import (
    Answer,
    Bury,
    DeadLetter,
    EpochEnd,
    Fenced,
    Fetch,
    Fetched,
    FindEpochEnd,
    LetterRefused,
    OutOfRange,
    Recreated,
    Saved,
    SaveOffset,
)
from partition_manager.problems import Problems
from partition_manager.progress import Progress
from partition_manager.share import HeldAnswer, TaskShare
from partition_manager.source import Source
from partition_manager.standstill import Backlog, Work


class Phase(Enum):
    """Phase of a partition in this task."""

    OPENING = "opening"
    RUNNING = "running"
    HANDING_OVER = "handing over"
    CLOSING = "closing"
    FENCED = "fenced"
    BROKEN = "broken"


class PartitionStatus(NamedTuple):
    """The status of a partition, for people and metrics; offsets are None until it is opened."""

    topic: str
    partition: int
    phase: Phase
    watermark: int | None
    position: int | None
    high_watermark: int | None
    pending: int
    counts: Counts
    error: str
    oldest: Oldest | None = None


class Keeper(Protocol):
    """The coordinator, as far as its partitions call it."""

    def opened(self, partition: "TaskPartition", former: str) -> None: ...

    def released(self) -> None: ...

    def fenced(self, partition: "TaskPartition") -> None: ...

    def recreated(self, partition: "TaskPartition", topic_id: str, now_ms: int) -> None: ...

    def discarded(self, partition: "TaskPartition", error: str, now_ms: int) -> None: ...


class TaskPartition:
    """An assigned partition. `document` names its owner; when `is_released` is True the coordinator may drop it."""

    def __init__(
        self,
        source: Source,
        document: OffsetDocument,
        share: "TaskShare[TaskPartition]",
        asks: Asks,
        notes: Notes,
        keeper: Keeper,
    ) -> None:
        self.topic = document.topic
        self.topic_id = document.topic_id
        self.number = document.partition
        self.phase = Phase.OPENING
        self.is_released = False
        self.problems = Problems()
        self._fault = ""  # the reason why it is FENCED or BROKEN
        self.manager: PartitionManager | None = None
        self._source = source
        self._document = document
        self._version = -1  # version of the stored document, as last seen
        self._share = share
        self._asks = asks
        self._notes = notes
        self._keeper = keeper
        self._epoch = -1  # leader epoch of the last record read, stored with the progress
        self._held = HeldAnswer(share.memory)  # its epoch is not checked, or at most once, progress past it not stored
        self._at_most_once = source.config.spout_guarantee == AT_MOST_ONCE
        self._opening: Opening | None = open_partition(source, document)  # None once it is open
        self._saving = False
        self._counts = Counts()
        self.release_at_ms: int | None = None  # when it is released at the latest, while it is handed over

    @property
    def counts(self) -> Counts:
        """Return the counts of its messages' outcomes so far."""
        return self.manager.counts if self.manager else self._counts

    def next(self, now_ms: int) -> Message | None:
        """Return the next message to emit, or None if there is no message or the phase is not RUNNING.

        Poison batches are not emitted: they go to the dead letters.
        """
        manager = self.manager
        if manager is None:
            return None
        if self.phase is not Phase.RUNNING:
            manager.stop_emitting()
            return None
        while (message := manager.next(now_ms)) is not None:
            if message.poison is None:
                return message
            self._reject(message, message.poison, now_ms)
        return None

    def end_turn(self) -> None:
        """Note that another partition emits next."""
        if self.manager is not None:
            self.manager.end_turn()

    def status(self) -> PartitionStatus:
        """Return the current status."""
        m = self.manager
        if m is None:
            return PartitionStatus(self.topic, self.number, self.phase, None, None, None, 0, self.counts, self.error)
        identity = self.topic, self.number, self.phase
        offsets = m.watermark, m.emitted, m.high_watermark
        return PartitionStatus(*identity, *offsets, m.pending, m.counts, self.error, m.oldest())

    def work(self) -> Work:
        """Return a quick look at it, to tell whether it makes progress."""
        if self.manager is not None and self.phase is Phase.RUNNING:
            work = self.manager.work()
            return work._replace(is_owed=True) if self._saving else work
        return Work(0, 0, self.phase is Phase.OPENING)

    def backlog(self) -> Backlog:
        """Return its messages by what should happen to them next; O(pending)."""
        if self.manager is None:
            return Backlog(is_opening=True)
        return self.manager.backlog()._replace(is_saving=self._saving)

    @property
    def error(self) -> str:
        """Return what is wrong with it, "" if nothing is: why it is not read, or the errors of failing requests."""
        return self._fault or self.problems.text

    @property
    def broker(self) -> tuple[str, int]:
        """Return the broker's host and port in the stored document."""
        return self._document.host, self._document.port

    @property
    def name(self) -> str:
        """Return topic-partition."""
        return f"{self.topic}-{self.number}"

    # --- opening

    def open(self, now_ms: int, answer: Answer | None = None) -> None:
        """Take the next step towards RUNNING; `answer` is the answer to the previous step's request."""
        if self.phase is not Phase.OPENING or self._opening is None:
            return
        try:
            request = self._opening.send(answer)
        except StopIteration as stop:
            self._opened(stop.value)
        except BadOffsetDocument as error:
            self._shut(Phase.BROKEN, str(error))
            self._notes.error(f"{self.name} is not read: {error}. {self._remedy()}")
        else:
            self._asks.ask(self, request, lambda answer, at_ms: self.open(at_ms, answer), now_ms)

    def _opened(self, opened: Opened) -> None:
        start = opened.start
        self._opening = None
        self._document, self._version, self._epoch = opened.document, opened.version, opened.document.leader_epoch
        self.topic_id = opened.document.topic_id
        self.phase = Phase.RUNNING
        self.manager = PartitionManager(
            self.topic,
            self.number,
            start.progress,
            self._source.config,
            share=self._share,
            owner=self,
            stored=start.progress,
        )
        counts = self.manager.counts
        counts.lost, counts.recreated, counts.truncations = start.lost, int(opened.recreated), int(start.truncated)
        lost = f", {start.lost} messages lost" if start.lost else ""
        text = f"{self.name} begins at offset {start.progress.offset}: {start.why}{lost}"
        if lost or opened.recreated or start.truncated:
            self._notes.warn(text)
        else:
            self._notes.similar(BEGUN, Note(INFO, text))
        self._keeper.opened(self, opened.former)

    def _remedy(self) -> str:
        stored_at = self._source.stored_at
        if self._source.in_group:
            return f"It is not overwritten: stop the topology, then set {stored_at} with `flakelog group reset-offsets`"
        node = node_of(self.topic, self.number, self._source.by_topic)
        return (
            "It is not overwritten, and `flakelog spout progress show` shows it. To begin as `start` says, stop the "
            f"topology and delete {stored_at}/{node}"
        )

    # --- reading

    def fetch(self, now_ms: int) -> None:
        """Send the fetch the manager wants, if any."""
        wanted = self.manager.wanted() if self.manager and self.phase is Phase.RUNNING else None
        if wanted is not None:
            request = Fetch(self.topic, self.number, wanted, self.topic_id)
            self._asks.ask(self, request, self._fetched, now_ms)

    def _fetched(self, answer: Answer, now_ms: int) -> None:
        manager = self.manager
        if manager is None or self.phase is not Phase.RUNNING:  # it is released: the next owner reads this again
            return
        if isinstance(answer, Fetched):
            if self._epoch == -1 or answer.leader_epoch <= self._epoch:
                self._read(answer, now_ms)
            else:
                self._held.keep(answer)
                self._asks.ask(self, FindEpochEnd(self.topic, self.number, self._epoch), self._epoch_ended, now_ms)
        elif isinstance(answer, OutOfRange):
            if manager.emitted < answer.log_start:
                self._epoch = -1  # retention removed the records that the epoch is about
            self._out_of_range(manager, answer)
        elif isinstance(answer, Recreated):
            self._keeper.recreated(self, answer.topic_id, now_ms)

    def _epoch_ended(self, answer: Answer, now_ms: int) -> None:
        """Read what a new leader sent, unless the log was truncated below it (KIP-320)."""
        manager, fetched = self.manager, self._held.take()
        if manager is None or self.phase is not Phase.RUNNING or not isinstance(answer, EpochEnd):
            return
        if 0 <= answer.end_offset < manager.emitted:
            self._epoch = answer.leader_epoch
            self._out_of_range(manager, OutOfRange(0, answer.end_offset))
        elif fetched is not None:
            self._read(fetched, now_ms)

    def _out_of_range(self, manager: PartitionManager, bounds: OutOfRange) -> None:
        before, lost = manager.emitted, manager.counts.lost
        truncated = before > bounds.log_end
        manager.counts.truncations += truncated
        manager.out_of_range(bounds.log_start, bounds.log_end)
        why = f"the log was truncated at {bounds.log_end}" if truncated else "out of range"
        self._notes.warn(
            f"{self.name} offset {before}: {why}, goes on at {manager.emitted}, "
            f"{manager.counts.lost - lost} messages lost"
        )

    def _read(self, answer: Fetched, now_ms: int) -> None:
        """Pass records to the manager; at most once, after progress past them is stored."""
        if answer.leader_epoch >= 0:
            self._epoch = max(self._epoch, answer.leader_epoch)  # stored ranges may be of a later epoch
        if self._at_most_once and (answer.records or answer.poison):
            self._held.keep(answer)
            self._store(self._past(answer.next_offset), now_ms)
        else:
            self._admit(answer)

    def _admit(self, answer: Fetched) -> None:
        if self.manager is not None:
            self.manager.fetched(answer.records, answer.next_offset, answer.high_watermark, answer.poison)

    # --- dead letters

    def _reject(self, message: Message, batch: PoisonBatch, now_ms: int) -> None:
        subject = f"the batch of offsets {batch.base_offset} to {batch.last_offset}"
        self.reject(message.record.offset, message.ticket, now_ms, batch.reason, subject)

    def reject(self, offset: int, ticket: int, now_ms: int, error: str, subject: str = "") -> bool:
        """Give up a message that cannot be decoded, without a retry. Return False if the ticket is stale.

        Without a dead-letter topic it is tried again for ever, or dropped if the guarantee repeats no message.
        """
        manager = self.manager
        if manager is None:
            return False
        has_topic = bool(self._source.config.spout_dead_letter_topic)
        drops = not has_topic and self._source.config.spout_guarantee != AT_LEAST_ONCE
        if not (manager.drop(offset, ticket) if drops else manager.reject(offset, ticket, now_ms, error)):
            return False
        stays = f"it {'is dropped' if drops else 'stays'}, because there is no dead-letter topic"
        outcome = "it goes to the dead letters" if has_topic else stays
        text = f"{self.name} {subject or f'offset {offset}'} cannot be decoded, {outcome}: {error}"
        self._notes.similar(GIVEN_UP, Note(WARN, text))
        self.bury(now_ms)
        return True

    def fail(self, offset: int, ticket: int, now_ms: int, error: str, unavailable: bool) -> bool:
        """Fail a message: retry it or give it up, as the guarantee says. Return False if the ticket is stale."""
        manager = self.manager
        if manager is None:
            return False
        if self._at_most_once:
            return manager.drop(offset, ticket)
        failed = manager.fail(offset, ticket, now_ms, error, unavailable=unavailable)
        for letter in manager.take_dead_letters():
            text = f"failed {letter.attempts} times and goes to the dead letters ({letter.reason}): {letter.error}"
            self._notes.similar(GIVEN_UP, Note(WARN, f"{self.name} offset {offset} {text}"))
            self._bury(letter, now_ms)
        return failed

    def park(self, offset: int, ticket: int) -> bool:
        """Let a message that has failed wait for `unpark`. Return False if it is not retried."""
        return self.manager is not None and self.manager.park(offset, ticket)

    def unpark(self, offset: int, ticket: int, now_ms: int) -> bool:
        """Emit a parked message soon. Return False if it is not parked, or if nothing is emitted."""
        if self.manager is None or self.phase is not Phase.RUNNING:
            return False
        return self.manager.release(offset, ticket, now_ms)

    def bury(self, now_ms: int) -> None:
        """Send the messages that the manager has given up to the dead letters."""
        for letter in self.manager.take_dead_letters() if self.manager else ():
            self._bury(letter, now_ms)

    def _bury(self, letter: DeadLetter, now_ms: int) -> None:
        self._asks.ask(self, Bury(letter), lambda answer, at_ms: self._buried(letter, answer), now_ms)

    def _buried(self, letter: DeadLetter, answer: Answer) -> None:
        refused = isinstance(answer, LetterRefused)
        if isinstance(answer, LetterRefused):
            self._notes.error(f"{self.name} offset {letter.record.offset} has no dead letter: {answer.error}")
        if self.manager is not None:
            self.manager.buried(letter.record.offset, letter.ticket, refused=refused)

    # --- committing

    def save(self, now_ms: int) -> None:
        """Store the progress if it has changed.

        One write is outstanding at a time, because each write names the version of the one before.
        """
        if self.manager is None:
            return
        if self._saving:
            self._share.changed.append(self)  # it may have changed again since
            return
        progress = self._unread() if self._at_most_once else self.manager.commit()
        if progress is not None:
            self._store(progress, now_ms)

    def _store(self, progress: Progress, now_ms: int) -> None:
        self._saving = True
        document = self._document.at(progress, self._epoch).encode()
        request = SaveOffset(self.topic, self.number, document, self._version, self._source.by_topic)
        self._asks.ask(self, request, lambda answer, at_ms: self._saved(progress, answer, at_ms), now_ms)

    def _saved(self, progress: Progress, answer: Answer, now_ms: int) -> None:
        self._saving = False
        if isinstance(answer, Saved) and self.manager:
            self._version = answer.version
            self.manager.stored(progress)
            if self._at_most_once and (held := self._held.take()) is not None:
                self._admit(held)
        elif isinstance(answer, Fenced) and self._source.in_group:
            self._keeper.discarded(self, answer.error, now_ms)
            return
        elif isinstance(answer, Fenced):
            self._shut(Phase.FENCED, answer.error, closing=self.phase is Phase.CLOSING)
            self._keeper.fenced(self)
        if self.phase is Phase.CLOSING:
            self._close(now_ms)

    def _unread(self) -> Progress | None:
        """Return the progress to store at the end, at most once; until then the stored progress is ahead."""
        if self.phase is not Phase.CLOSING or self.manager is None:
            return None
        progress = self._past(self.manager.unread)
        return None if progress.offset == self.manager.committed else progress

    def _past(self, offset: int) -> Progress:
        """Return the progress at `offset`, with the ranges above it that the progress of the start has."""
        done = [(first, last) for first, last in self._document.progress.done if last > offset]
        if done and done[0][0] <= offset:
            offset = done.pop(0)[1]
        return Progress(offset, tuple(done))

    # --- release

    def hand_over(self, now_ms: int) -> None:
        """Stop emitting, and release the partition when no message is in flight, at the latest after `handover.ms`."""
        if self.phase is Phase.RUNNING:
            self.phase = Phase.HANDING_OVER
            self.release_at_ms = now_ms + self._source.config.spout_handover_ms
        elif self.phase is not Phase.HANDING_OVER and not self.is_released:
            self.release(now_ms)

    def check_handover(self, now_ms: int) -> None:
        """Release a partition that is handed over, if nothing keeps it any longer."""
        if self.release_at_ms is None or self.phase is not Phase.HANDING_OVER or self.manager is None:
            return
        if now_ms >= self.release_at_ms or not self.manager.has_in_flight():
            self.release(now_ms)

    def release(self, now_ms: int) -> None:
        """Stop emitting and store the progress; `is_released` becomes True after the last write.

        Messages in flight are emitted again by the next owner.
        """
        self.release_at_ms = None
        running = self.phase in (Phase.RUNNING, Phase.HANDING_OVER)
        self.phase = Phase.CLOSING
        if running or self._saving:
            self._close(now_ms)
        else:
            self._end()

    def _close(self, now_ms: int) -> None:
        self.save(now_ms)  # save again if more was settled during the previous write
        if not self._saving:
            self._end()

    def drop(self) -> None:
        """Forget the partition without storing progress, because its topic was deleted; `is_released` becomes True.

        Its messages are counted as truncated.
        """
        if self.manager is not None:
            self.manager.counts.truncated += self.manager.pending
        self._release_memory()
        self._end()

    def lose(self) -> None:
        """Forget the partition without storing progress, because another process may read it; it is released."""
        self._end()

    def _end(self) -> None:
        self._release_memory()
        self.is_released = True
        self._asks.forget(self)
        self._keeper.released()

    def _release_memory(self) -> None:
        self._held.take()
        if self.manager is not None:
            self._counts = self.manager.counts
            self.manager.leave()
            self.manager = None

    def _shut(self, phase: Phase, error: str, *, closing: bool = False) -> None:
        self._release_memory()
        self.phase = Phase.CLOSING if closing else phase
        self._fault = error
        self.problems.clear()
        self._asks.forget(self)
