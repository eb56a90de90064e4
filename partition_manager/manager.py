"""The messages of one partition between the log and the spout: fetched, in flight, retried, settled.

The states are those of storm-kafka 0.9.3's PartitionManager, with its faults fixed (the tests name them T1 to T9).

    log -- wanted/fetched --> WAITING -- next --> IN_FLIGHT -- ack --------------------> settled
                                           ^          |
                                           |         fail -- attempts left --> RETRYING -- due --+
                                           |          |                                          |
                                           |          +-- none left --> BURYING -- buried --> settled
                                           +-----------------------------------------------------+

The watermark is the least unsettled offset. Offsets are first fetched in ascending order, so a deque of fetched offsets
finds the watermark by dropping settled offsets from its head. This costs O(1) for each message over its life, where a
sorted set costs O(log n) for each change. A message is kept in memory until it is settled, so that a retry needs no
second fetch and still succeeds after retention or compaction removed the message from the log.

Each emission carries a ticket, a number that is never reused, not even by another manager of the same task. An ack or a
fail counts only with the ticket of the message's latest emission. (An attempt number would repeat after a truncation or
a reassignment, so an old ack could settle a message that was never processed.)

Not thread-safe. Times are milliseconds on the caller's clock.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

from broker.client.records import PoisonBatch
from partition_manager.config import LATEST, SpoutConfig
from partition_manager.dead_letter import ATTEMPTS, EXPIRED, POISON, UNDECODABLE
from partition_manager.entry import Counts, Entry, Message, State
from partition_manager.invariants import check_entries, check_progress
from partition_manager.poison import with_poison
from partition_manager.ports import DeadLetter, FetchedRecord, FetchWanted
from partition_manager.progress import DoneRanges, Progress, Range
from partition_manager.retry import RetrySchedule


class PartitionManager:
    """Progress of one partition from `start`; messages in `start.done` were settled earlier and are not emitted."""

    def __init__(
        self,
        topic: str,
        partition: int,
        start: Progress,
        config: SpoutConfig,
        *,
        tickets: Iterator[int] | None = None,
        stored: Progress | None = None,
    ) -> None:
        """Start at `start`. All managers of a task share `tickets`; `stored` is the progress in the offset store.

        Raise ValueError if `start` is not a valid progress.
        """
        self.topic = topic
        self.partition = partition
        self.config = config
        self.counts = Counts()
        self.high_watermark = start.offset
        self._position = start.check().offset
        self._done = DoneRanges(start.done)
        self._stored = stored
        self._tickets = tickets if tickets is not None else count(1)
        self._live: dict[int, Entry] = {}  # by offset, ascending: a dict keeps insertion order
        self._order: deque[int] = deque()  # every fetched offset from the watermark up, settled or not
        self._waiting: deque[Entry] = deque()
        self._retries = RetrySchedule(self._is_retrying)
        self._policy = config.retry_policy()
        self._retries_in_row = 0
        self._letters: list[DeadLetter] = []
        self._pending_bytes = 0
        self._fetching = False

    # --- state

    @property
    def emitted(self) -> int:
        """Return the offset where the next fetch starts; every lower offset has been read (0.9.3's emittedTo)."""
        return self._position

    @property
    def committed(self) -> int | None:
        """Return the offset last stored, or None before the first commit (0.9.3's committedTo)."""
        return None if self._stored is None else self._stored.offset

    @property
    def pending(self) -> int:
        """Return the number of messages fetched but not settled."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """Return the number of messages fetched but not yet emitted."""
        return len(self._waiting)

    @property
    def failed(self) -> tuple[int, ...]:
        """Return the offsets scheduled for another attempt, ascending; O(pending)."""
        return tuple(offset for offset, entry in self._live.items() if entry.state is State.RETRYING)

    @property
    def watermark(self) -> int:
        """Return the least unsettled offset; every offset below it is settled."""
        self._drop_settled_heads()
        return self._order[0] if self._order else self._position

    # --- reading

    def wanted(self) -> FetchWanted | None:
        """Return the next fetch to make, or None if enough messages wait, a limit is reached or a fetch is outstanding.

        The caller must answer a returned fetch with `fetched` or `out_of_range`, retrying it until that succeeds. Until
        then this method returns None.
        """
        if self._fetching or len(self._waiting) > self.config.spout_fetch_max_records // 2:
            return None
        records = min(self.config.spout_fetch_max_records, self._room())
        size = min(self.config.spout_fetch_max_bytes, self.config.spout_max_pending_bytes - self._pending_bytes)
        if records <= 0 or size <= 0:
            return None
        self._fetching = True
        return FetchWanted(self._position, records, size)

    def fetched(
        self,
        records: Sequence[FetchedRecord],
        next_offset: int,
        high_watermark: int,
        poison: Sequence[PoisonBatch] = (),
    ) -> None:
        """Add the fetched records, and a message for each poison batch. Both come in order of offset.

        Skip records below the wanted offset (their batch begins earlier) and records already done. Stop at the first
        record over a limit; it will be fetched again.
        """
        self._fetching = False
        self.high_watermark = high_watermark
        self._done.cut(high_watermark)  # nothing past the log's end is done, because a shorter log has been truncated
        room = self._room()
        records, batches = with_poison(records, poison, self._position)
        for record in records:
            offset = record.offset
            if offset < self._position:
                continue
            if self._done.holds(offset):
                self.counts.already_done += 1
            elif room <= 0 or self._pending_bytes >= self.config.spout_max_pending_bytes:
                next_offset = offset
                break
            else:
                self._admit(record, batches.get(offset))
                room -= 1
            self._position = offset + 1
        self._move_to(max(self._position, next_offset))

    def out_of_range(self, log_start: int, log_end: int) -> None:
        """Move the position into the log's range.

        Below the log's start, retention was faster than reading: continue at the start (or at the end, if configured
        so) and count the messages in between as lost. Past the end, the log was truncated: continue at the end and
        forget the messages fetched from beyond it. Their acks become stale because their offsets will hold other
        messages.
        """
        self._fetching = False
        self.high_watermark = log_end
        if self._position < log_start:
            to = log_end if self.config.spout_out_of_range == LATEST else log_start
            self.counts.lost += to - self._position - self._done.count_in(self._position, to)
            self._move_to(to)
        elif self._position > log_end:
            self._truncate(log_end)

    # --- emitting

    def next(self, now_ms: int) -> Message | None:
        """Return the next message to emit: a due retry or the next one in order, or None if neither exists.

        Retries go first, but one of `retry_share` + 1 turns is for new messages, so that many failures do not delay
        them.
        """
        entry = None
        if not self._waiting or self._retries_in_row < self.config.spout_retry_share:
            entry = self._pop_retry(now_ms)
        if entry is None:
            entry = self._pop_waiting()
        return None if entry is None else self._emit(entry)

    def message(self, offset: int, ticket: int) -> Message | None:
        """Return the message in flight, for the log, or None if the ticket is stale."""
        entry = self._in_flight(offset, ticket)
        return None if entry is None else Message(entry.record, ticket, entry.attempts, entry.poison)

    def fan_out(self, offset: int, ticket: int, tuples: int) -> bool:
        """Set the number of tuples the message became, before the first can be acked; 0 settles it at once.

        Return False if the ticket is stale.
        """
        entry = self._in_flight(offset, ticket)
        if entry is None:
            return False
        entry.left = tuples
        if tuples == 0:
            self.counts.filtered += 1
            self._settle(entry)
        return True

    # --- settling

    def ack(self, offset: int, ticket: int) -> bool:
        """Count one of the message's tuples as fully processed; the last one settles the message.

        Return False if the ticket is stale.
        """
        entry = self._in_flight(offset, ticket)
        if entry is None:
            return False
        entry.left -= 1
        if entry.left == 0:
            self.counts.acked += 1
            self._settle(entry)
        return True

    def fail(self, offset: int, ticket: int, now_ms: int, error: str = "") -> bool:
        """Fail the whole message because one of its tuples failed: schedule a retry or give it up.

        Return False if the ticket is stale.
        """
        entry = self._in_flight(offset, ticket)
        if entry is None:
            return False
        self.counts.failed += 1
        entry.error = error
        behind, attempts = self.config.spout_max_offset_behind, self.config.spout_max_attempts
        if behind is not None and offset < self._position - behind:
            self._give_up(entry, EXPIRED, now_ms)
        elif attempts and entry.attempts >= attempts:
            self._give_up(entry, ATTEMPTS, now_ms)
        else:
            self._retry(entry, now_ms)
        return True

    def reject(self, offset: int, ticket: int, now_ms: int, error: str = "") -> bool:
        """Give up a message that cannot be decoded, or a poison batch, since no attempt can succeed.

        Return False if the ticket is stale.
        """
        entry = self._in_flight(offset, ticket)
        if entry is None:
            return False
        self.counts.failed += 1
        entry.error = error
        self._give_up(entry, UNDECODABLE if entry.poison is None else POISON, now_ms)
        return True

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return the messages given up since the last call; each stays pending until `buried` confirms it."""
        letters, self._letters = self._letters, []
        return letters

    def buried(self, offset: int, ticket: int) -> bool:
        """Settle a message whose dead letter is stored safely. Return False if the ticket is stale."""
        entry = self._current(offset, ticket, State.BURYING)
        if entry is None:
            return False
        self.counts.dead_lettered += 1
        self.counts.expired += entry.reason == EXPIRED
        self.counts.undecodable += entry.reason == UNDECODABLE
        self._settle(entry)
        return True

    # --- progress

    def progress(self) -> Progress:
        """Return the watermark and the lowest `done_ranges_max` ranges settled above it; O(pending)."""
        offset = self.watermark
        done: list[Range] = []
        for settled in self._settled_from(offset):
            if len(done) == self.config.spout_done_ranges_max:
                break
            done.append(settled)
        return Progress(offset, tuple(done))

    def commit(self) -> Progress | None:
        """Return the progress to store, or None if it is stored already."""
        progress = self.progress()
        return None if progress == self._stored else progress

    def stored(self, progress: Progress) -> None:
        """Record that the offset store has saved `progress`."""
        self._stored = progress

    def next_deadline_ms(self) -> int | None:
        """Return the time the next retry is due, or None if none is scheduled."""
        return self._retries.next_due_ms()

    def check(self) -> None:
        """Raise AssertionError naming the first broken invariant; O(pending), for tests and simulation."""
        check_entries(self._live, self._order, self._waiting, self._retries.current(), self._pending_bytes)
        check_progress(self.progress(), self._live, self._position, self.counts)
        assert len(self._order) <= self.config.spout_max_uncommitted, f"{len(self._order)} offsets uncommitted"

    # --- internals

    def _room(self) -> int:
        # The limit is on the span of offsets, not the number in flight, because settled offsets above the watermark
        # also take memory.
        self._drop_settled_heads()
        return self.config.spout_max_uncommitted - len(self._order)

    def _drop_settled_heads(self) -> None:
        order, live = self._order, self._live
        while order and order[0] not in live:
            order.popleft()

    def _move_to(self, offset: int) -> None:
        self._position = self._done.skip(offset)

    def _admit(self, record: FetchedRecord, poison: PoisonBatch | None) -> None:
        entry = Entry(record, poison)
        self._live[entry.offset] = entry
        self._order.append(entry.offset)
        self._waiting.append(entry)
        self._pending_bytes += entry.size
        self.counts.fetched += 1
        self.counts.poison_batches += poison is not None

    def _truncate(self, log_end: int) -> None:
        gone = [offset for offset in self._live if offset >= log_end]
        for offset in gone:
            self._pending_bytes -= self._live.pop(offset).size
        self.counts.truncated += len(gone)
        self._order = deque(offset for offset in self._order if offset < log_end)
        self._waiting = deque(entry for entry in self._waiting if entry.offset < log_end)
        self._letters = [letter for letter in self._letters if letter.record.offset < log_end]
        self._done.cut(log_end)
        self._position = log_end

    def _pop_waiting(self) -> Entry | None:
        self._retries_in_row = 0
        return self._waiting.popleft() if self._waiting else None

    def _pop_retry(self, now_ms: int) -> Entry | None:
        offset = self._retries.pop_due(now_ms)
        if offset is None:
            return None
        self._retries_in_row += 1
        self.counts.retried += 1
        return self._live[offset]

    def _emit(self, entry: Entry) -> Message:
        entry.state = State.IN_FLIGHT
        entry.ticket = next(self._tickets)
        entry.attempts += 1
        entry.left = 1
        self.counts.emitted += 1
        return Message(entry.record, entry.ticket, entry.attempts, entry.poison)

    def _current(self, offset: int, ticket: int, state: State) -> Entry | None:
        entry = self._live.get(offset)
        if entry is None or entry.state is not state or entry.ticket != ticket:
            self.counts.stale += 1
            return None
        return entry

    def _in_flight(self, offset: int, ticket: int) -> Entry | None:
        return self._current(offset, ticket, State.IN_FLIGHT)

    def _is_retrying(self, offset: int, ticket: int) -> bool:
        entry = self._live.get(offset)
        return entry is not None and entry.state is State.RETRYING and entry.ticket == ticket

    def _retry(self, entry: Entry, now_ms: int, delay_min_ms: int = 0) -> None:
        entry.state = State.RETRYING
        due_ms = now_ms + max(delay_min_ms, self._policy.delay_ms(entry.attempts, entry.offset))
        self._retries.add(due_ms, entry.offset, entry.ticket)

    def _give_up(self, entry: Entry, reason: str, now_ms: int) -> None:
        if not self.config.spout_dead_letter_topic:
            self._retry(entry, now_ms, delay_min_ms=1)  # with 0, a caller that rejects it at once would never return
            return
        entry.state = State.BURYING
        entry.reason = reason
        self._letters.append(
            DeadLetter(self.topic, self.partition, entry.record, entry.ticket, reason, entry.attempts, entry.error)
        )

    def _settle(self, entry: Entry) -> None:
        del self._live[entry.offset]
        self._pending_bytes -= entry.size

    def _settled_from(self, start: int) -> Iterator[Range]:
        """Iterate over the settled ranges: gaps between live messages from `start`, then ranges of an earlier run."""
        for offset in self._live:
            if offset > start:
                yield start, offset
            start = offset + 1
        if self._position > start:
            yield start, self._position
        yield from self._done
