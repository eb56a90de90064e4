"""The messages of one partition between the log and the spout: fetched, in flight, retried, settled.

The states are those of storm-kafka 0.9.3's PartitionManager, with its faults fixed (the tests name them T1 to T9).

    log -- wanted/fetched --> WAITING -- next --> IN_FLIGHT -- ack --------------------> settled
                                           ^          |
                                           |         fail -- attempts left --> RETRYING -- due --+
                                           |          |                                          |
                                           |          +-- none left --> BURYING -- buried --> settled
                                           +-----------------------------------------------------+

The watermark is the least unsettled offset. Offsets settled above it are kept as ranges (SettledRanges), so one message
that stays unsettled costs one range, however many others pass it. A message is kept in memory until it is settled, so
that a retry needs no second fetch and still succeeds after retention or compaction removed the message from the log.

Each emission carries a ticket, a number that is never reused, not even by another manager of the same task. An ack or a
fail counts only with the ticket of the message's latest emission. (An attempt number would repeat after a truncation or
a reassignment, so an old ack could settle a message that was never processed.)

Not thread-safe. Times are milliseconds on the caller's clock.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any

from broker.client.records import PoisonBatch
from partition_manager.config import LATEST, SpoutConfig
from partition_manager.dead_letter import ATTEMPTS, EXPIRED, POISON, UNDECODABLE
from partition_manager.entry import Counts, Message, MessageState, Oldest
from partition_manager.invariants import check_entries, check_listing, check_progress
from partition_manager.ledger import Ledger
from partition_manager.poison import with_poison
from partition_manager.ports import DeadLetter, FetchedRecord, FetchWanted
from partition_manager.progress import Progress
from partition_manager.retry import RetrySchedule
from partition_manager.share import Listing, TaskShare
from partition_manager.standstill import Backlog, Work

SAMPLE_MAX = 20  # messages whose mean size stands for all: to weigh each one would cost more than all other counts
# To look up a member of an enum takes longer than to look up a name.
_IN_FLIGHT, _SETTLED = MessageState.IN_FLIGHT, MessageState.SETTLED


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
        share: TaskShare[Any] | None = None,
        owner: object = None,
        stored: Progress | None = None,
    ) -> None:
        """Start at `start`. All managers of a task have one `share`, where this one lists `owner` when it has work.

        A manager without a share has its own, with `tickets`. `stored` is the progress in the offset store. Raise
        ValueError if `start` is not a valid progress.
        """
        self.topic = topic
        self.partition = partition
        self.config = config
        self.counts = Counts()
        self.high_watermark = start.offset
        share = share if share is not None else TaskShare(config.spout_max_pending_bytes, tickets)
        self._share = share
        self._tickets = share.tickets
        self._listing = Listing(share, owner if owner is not None else self)
        self._ledger = Ledger(start.check(), config, share.memory)
        self._live = self._ledger.live
        self._stored = stored
        self._waiting: deque[Message] = deque()
        self._retries = RetrySchedule(self._is_retrying)
        self._policy = config.retry_policy()
        self._retries_in_row = 0
        self._letters: list[DeadLetter] = []
        self._fetching = False
        self._fetch_at = config.spout_fetch_max_records // 2  # messages that wait when the next fetch begins
        self._may_open = 0  # new messages that may be emitted before the ranges are counted again
        self._is_full = False  # the next fetch waits until a message is settled
        self._is_held = False  # new messages wait until a message is settled
        self._listing.fetch()

    # --- state

    @property
    def emitted(self) -> int:
        """Return the offset where the next fetch starts; every lower offset has been read (0.9.3's emittedTo)."""
        return self._ledger.position

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
    def unread(self) -> int:
        """Return the offset of the first message that was never emitted."""
        return self._waiting[0].offset if self._waiting else self._ledger.position

    @property
    def failed(self) -> tuple[int, ...]:
        """Return the offsets scheduled for another attempt, ascending; O(pending)."""
        return tuple(offset for offset, entry in self._live.items() if entry.state is MessageState.RETRYING)

    @property
    def watermark(self) -> int:
        """Return the least unsettled offset; every offset below it is settled."""
        return self._ledger.settled.watermark

    # --- reading

    def wanted(self) -> FetchWanted | None:
        """Return the next fetch to make, or None if enough messages wait, a limit is reached or a fetch is outstanding.

        The caller must answer a returned fetch with `fetched` or `out_of_range`, retrying it until that succeeds. Until
        then this method returns None.
        """
        self._listing.is_fetching = False
        if self._fetching or len(self._waiting) > self._fetch_at:
            return None
        room, space = self._ledger.room, self._ledger.space_bytes
        if room <= 0:
            self._is_full = True
            return None
        if self._share.memory.is_low(space, self.config.spout_fetch_max_bytes):
            self._listing.await_memory()
            return None
        self._fetching = True
        records = min(self.config.spout_fetch_max_records, room)
        return FetchWanted(self._ledger.position, records, min(self.config.spout_fetch_max_bytes, space))

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
        ledger, waiting = self._ledger, len(self._waiting)
        ledger.forget_settled(high_watermark)  # the log was truncated, if it ends below what an earlier run settled
        batches: Mapping[int, PoisonBatch] = {}
        if poison:
            records, batches = with_poison(records, poison, ledger.position)
        over, done = ledger.admit(records, batches, self._waiting)
        ledger.skip(next_offset if over is None else over)
        self.counts.already_done += done
        self.counts.fetched += len(self._waiting) - waiting
        if batches:
            self.counts.poison_batches += sum(offset in self._live for offset in batches)
        if self._waiting:
            self._listing.ready(len(self._waiting))
        self._listing.change()  # offsets without a message are settled, or what an earlier run settled is forgotten
        self._listing.fetch()

    def out_of_range(self, log_start: int, log_end: int) -> None:
        """Move the position into the log's range.

        Below the log's start, retention was faster than reading: continue at the start (or at the end, if configured
        so) and count the messages in between as lost. Past the end, the log was truncated: continue at the end and
        forget the messages fetched from beyond it. Their acks become stale because their offsets will hold other
        messages.
        """
        self._fetching = False
        self.high_watermark = log_end
        ledger = self._ledger
        if ledger.position < log_start:
            to = log_end if self.config.spout_out_of_range == LATEST else log_start
            self.counts.lost += to - ledger.position - ledger.settled.count_in(ledger.position, to)
            ledger.skip(to)
        elif ledger.position > log_end:
            self.counts.truncated += ledger.truncate(log_end)
            self._waiting = deque(entry for entry in self._waiting if entry.offset < log_end)
            self._listing.count(len(self._waiting))
            self._letters = [letter for letter in self._letters if letter.record.offset < log_end]
            self._listing.memory_released()
        self._listing.change()
        self._listing.fetch()

    # --- emitting

    def next(self, now_ms: int) -> Message | None:
        """Return the next message to emit: a due retry or the next one in order, or None if neither exists.

        Retries go first, but one of `retry_share` + 1 turns is for new messages, so that many failures do not delay
        them.
        """
        entry = None
        waiting, retries = self._waiting, self._retries
        if retries.earliest_ms <= now_ms:
            share = 0 if self._share.prefers_new else self.config.spout_retry_share
            if not waiting or self._retries_in_row < share:
                entry = self._pop_retry(now_ms)
        if entry is None:
            self._retries_in_row = 0
            if waiting and (self._may_open > 0 or self._may_emit(waiting[0].offset)):
                self._may_open -= 1
                entry = waiting.popleft()
                if len(waiting) == self._fetch_at:
                    self._listing.fetch()
            else:
                entry = self._pop_retry(now_ms) if retries.earliest_ms <= now_ms else None
                if entry is None:
                    self._listing.unlist(retries.next_due_ms() if retries.earliest_ms < inf else None)
                    return None
        entry.state = _IN_FLIGHT
        entry.ticket = next(self._tickets)
        self.counts.emitted += 1
        return entry

    def end_turn(self) -> None:
        """Count the messages that still wait, because other partitions emit now."""
        self._listing.count(len(self._waiting))

    def stop_emitting(self) -> None:
        """Emit nothing more, because the partition is handed over. The caller has removed it from the ready ones."""
        self._listing.unlist(None)

    def message(self, offset: int, ticket: int) -> Message | None:
        """Return the message in flight, or None if the ticket is stale."""
        entry = self._live.get(offset)
        if entry is None or entry.ticket != ticket or entry.state is not _IN_FLIGHT:
            return None
        return entry

    def fan_out(self, offset: int, ticket: int, tuples: int) -> bool:
        """Set the number of tuples the message became, before the first can be acked; 0 settles it at once.

        Return False if the ticket is stale.
        """
        entry = self._in_flight(offset, ticket)
        if entry is None:
            return False
        entry.unacked = tuples
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
        entry.unacked -= 1
        if entry.unacked == 0:
            self.counts.acked += 1
            self._settle(entry)
        return True

    def ack_many(self, acks: Iterable[tuple[int, int]]) -> int:
        """Ack each (offset, ticket), faster than one by one; return the number of stale ones."""
        live, settled = self._live, []
        stale = 0
        for offset, ticket in acks:
            entry = live.get(offset)
            if entry is None or entry.ticket != ticket or entry.state is not _IN_FLIGHT:
                stale += 1
            elif entry.unacked > 1:
                entry.unacked -= 1
            else:
                entry.state = _SETTLED  # so that a second ack is stale
                settled.append(entry)
        self.counts.stale += stale
        self.counts.acked += len(settled)
        self._settle(*settled)
        return stale

    def fail(self, offset: int, ticket: int, now_ms: int, error: str = "", *, unavailable: bool = False) -> bool:
        """Fail the whole message because one of its tuples failed: schedule a retry or give it up.

        If something that the bolts need is unavailable, the attempt does not count and the message is not given up.
        Return False if the ticket is stale.
        """
        entry = self._in_flight(offset, ticket)
        if entry is None:
            return False
        self.counts.failed += 1
        behind, attempts = self.config.spout_max_offset_behind, self.config.spout_max_attempts
        if unavailable:
            self._retry(entry, now_ms, counts=False)
        elif behind is not None and offset < self._ledger.position - behind:
            self._give_up(entry, EXPIRED, error, now_ms)
        elif attempts and entry.attempt >= attempts:
            self._give_up(entry, ATTEMPTS, error, now_ms)
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
        self._give_up(entry, UNDECODABLE if entry.poison is None else POISON, error, now_ms)
        return True

    def drop(self, offset: int, ticket: int) -> bool:
        """Settle a failed message without another attempt. Return False if the ticket is stale."""
        if (entry := self._in_flight(offset, ticket)) is not None:
            self.counts.failed += 1
            self.counts.dropped += 1
            self._settle(entry)
        return entry is not None

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return the messages given up since the last call; each stays pending until `buried` confirms it."""
        letters, self._letters = self._letters, []
        return letters

    def buried(self, offset: int, ticket: int, *, refused: bool = False) -> bool:
        """Settle a message whose dead letter is stored safely, or is `refused`. Return False if the ticket is stale."""
        if (entry := self._current(offset, ticket, MessageState.BURYING)) is None:
            return False
        self.counts.refused += refused
        if not refused:
            self.counts.dead_lettered += 1
            self.counts.expired += entry.reason == EXPIRED
            self.counts.undecodable += entry.reason == UNDECODABLE
        self._settle(entry)
        return True

    # --- progress

    def progress(self) -> Progress:
        """Return the watermark and the lowest `done_ranges_max` ranges settled above it; O(done_ranges_max)."""
        return self._ledger.settled.lowest(self.config.spout_done_ranges_max)

    def commit(self) -> Progress | None:
        """Return the progress to store, or None if it is stored already."""
        self._listing.is_changed = False
        progress = self.progress()
        return None if progress == self._stored else progress

    def stored(self, progress: Progress) -> None:
        """Record that the offset store has saved `progress`."""
        self._stored = progress

    def next_deadline_ms(self) -> int | None:
        """Return the time the next retry is due, or None if none is scheduled."""
        return self._retries.next_due_ms()

    def leave(self) -> None:
        """Release the partition's memory to the other partitions of the task; the manager is not used again."""
        self._ledger.leave()
        self._listing.count(0)
        self._listing.memory_released()

    def check(self) -> None:
        """Raise AssertionError naming the first broken invariant; O(pending), for tests and simulation."""
        check_entries(self._live, self._waiting, self._retries.current(), self._ledger.bytes)
        check_progress(self._ledger.settled.progress, self._live, self._ledger.position, self.counts)
        assert self._ledger.room >= 0, f"{len(self._live)} messages are not settled, too many"
        enough = self._fetching or len(self._waiting) > self._fetch_at or (self._is_full and bool(self._live))
        check_listing(self._listing, may_emit=bool(self._waiting) and not self._is_held, has_enough=enough)

    # --- figures and outages

    def oldest(self) -> Oldest | None:
        """Return figures of the oldest unsettled messages, for the lag; None if none is fetched."""
        records = [entry.record for entry in islice(self._live.values(), SAMPLE_MAX)]
        if not records:
            return None
        size = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        return Oldest(records[0].timestamp_ms, size / len(records))

    def has_in_flight(self) -> bool:
        """Return True if an emitted message is neither acked nor failed; O(emitted)."""
        live = self._live
        return any(entry.state is _IN_FLIGHT for entry in islice(live.values(), len(live) - self.waiting))

    def park(self, offset: int, ticket: int) -> bool:
        """Let a message that has failed wait for `release`.

        Return False if the attempt with this ticket is not its last.
        """
        return self._retries.park(offset, ticket)

    def release(self, offset: int, ticket: int, now_ms: int) -> bool:
        """Emit a parked message soon. Return False if it is not parked any longer."""
        released = self._retries.release(offset, ticket, now_ms)
        if released:
            self._listing.wake_by(now_ms)
        return released

    def work(self) -> Work:
        """Return how much is settled, emitted and owed, to tell whether there is progress."""
        c, watermark = self.counts, self.watermark
        outcomes = c.acked + c.filtered + c.failed + c.dead_lettered + c.refused + c.dropped + c.truncated + c.lost
        settled = outcomes + c.already_done + watermark + (self.committed or 0)
        return Work(settled, c.emitted, bool(self._live) or self.high_watermark > watermark)

    def backlog(self) -> Backlog:
        """Return the messages by what should happen to them next; O(pending)."""
        states = Counter(entry.state for entry in self._live.values())
        listing = self._listing
        emits, fetches = listing.is_ready or listing.is_due, listing.is_fetching or listing.awaits_memory
        retrying, waiting = states[MessageState.RETRYING], states[MessageState.WAITING]
        return Backlog(
            in_flight=states[MessageState.IN_FLIGHT],
            burying=states[MessageState.BURYING],
            retrying=retrying,
            waiting=waiting,
            unread=max(self.high_watermark - self.emitted, 0),
            retry_ms=self.next_deadline_ms(),
            is_in_line=emits if retrying or waiting else fetches and not states,
            is_fetching=self._fetching and not states,
        )

    # --- internals

    def _may_emit(self, offset: int) -> bool:
        """Return True unless the ranges could exceed their limit when this new message settles."""
        self._may_open = self._ledger.may_open(offset, len(self._live) - len(self._waiting))
        # A message right behind a settled offset opens no range.
        self._is_held = self._may_open <= 0 and self._ledger.settled.end_of(offset - 1) is None
        return not self._is_held

    def _pop_retry(self, now_ms: int) -> Message | None:
        offset = self._retries.pop_due(now_ms)
        if offset is None:
            return None
        self._retries_in_row += 1
        self.counts.retried += 1
        return self._live[offset]

    def _current(self, offset: int, ticket: int, state: MessageState) -> Message | None:
        entry = self._live.get(offset)
        if entry is None or entry.state is not state or entry.ticket != ticket:
            self.counts.stale += 1
            return None
        return entry

    def _in_flight(self, offset: int, ticket: int) -> Message | None:
        return self._current(offset, ticket, _IN_FLIGHT)

    def _is_retrying(self, offset: int, ticket: int) -> bool:
        entry = self._live.get(offset)
        return entry is not None and entry.state is MessageState.RETRYING and entry.ticket == ticket

    def _retry(self, entry: Message, now_ms: int, *, counts: bool = True, delay_min_ms: int = 0) -> None:
        again = entry.retry(counts=counts)
        self._ledger.replace(entry, again)
        due_ms = now_ms + max(delay_min_ms, self._policy.delay_ms(again.failures, entry.offset))
        self._retries.add(due_ms, entry.offset, entry.ticket)
        self._listing.wake_by(due_ms)

    def _give_up(self, entry: Message, reason: str, error: str, now_ms: int) -> None:
        if not self.config.spout_dead_letter_topic:
            self._retry(entry, now_ms, delay_min_ms=1)  # with 0, a caller that rejects it at once would never return
            return
        entry.state, entry.reason = MessageState.BURYING, reason
        self._letters.append(
            DeadLetter(self.topic, self.partition, entry.record, entry.ticket, reason, entry.attempt, error)
        )

    def _settle(self, *entries: Message) -> None:
        self._ledger.settle(entries)
        self._listing.change()
        if self._share.memory.waiting:
            self._listing.memory_released()
        if self._is_full:
            self._is_full = False
            self._listing.fetch()
        if self._is_held:
            self._is_held = False
            self._listing.ready(len(self._waiting))
