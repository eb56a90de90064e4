"""The offsets of one partition: settled, unsettled, or not yet read.

Every offset from the watermark to the position is in a settled range or belongs to one unsettled message. An offset
where the log has no message (compaction, transaction markers) belongs to the message before it, and is settled with it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.client.records import PoisonBatch
from partition_manager.config import SpoutConfig
from partition_manager.entry import Message
from partition_manager.ports import FetchedRecord
from partition_manager.progress import Progress, SettledRanges
from partition_manager.share import Memory


class Ledger:
    """Unsettled messages by offset, the ranges of settled offsets, and the position, where the next fetch starts.

    At most `spout_max_uncommitted` messages are unsettled at a time; their bytes count towards `memory`.
    """

    def __init__(self, start: Progress, config: SpoutConfig, memory: Memory[Any]) -> None:
        self.position = start.offset
        self.settled = SettledRanges(start)
        self.live: dict[int, Message] = {}  # ascending, because a dict keeps insertion order
        self.bytes = 0
        self._config = config
        self._memory = memory
        memory.members += 1
        self._last: Message | None = None  # admitted last
        self._ahead = self.settled.end  # where the ranges of an earlier run end

    @property
    def room(self) -> int:
        """Return the number of messages that may be admitted."""
        return self._config.spout_max_uncommitted - len(self.live)

    @property
    def space_bytes(self) -> int:
        """Return the bytes that may be admitted; the last message may overshoot them."""
        return self._memory.room_bytes(self.bytes)

    def may_open(self, offset: int, emitted: int) -> int:
        """Return the number of new messages to emit until the ranges could exceed `spout_max_settled_ranges`.

        `offset` is that of the next one; `emitted` messages are emitted and not settled. Each range lies behind one of
        them, and to settle one opens one range at most. So the ranges never exceed half of both together. The ranges of
        an earlier run that lie ahead count in full.
        """
        ahead = self.settled.count_from(offset) if offset < self._ahead else 0
        return 2 * self._config.spout_max_settled_ranges - len(self.settled) - ahead - emitted

    def admit(
        self, records: Iterable[FetchedRecord], batches: Mapping[int, PoisonBatch], admitted: deque[Message]
    ) -> tuple[int | None, int]:
        """Add the records from the position on to the unsettled messages and to `admitted`.

        `batches` are poison batches by the offset of their message. Return the offset of the first record over a limit,
        or None; and the number of records left out because an earlier run settled them.
        """
        live, ahead, settled = self.live, self._ahead, self.settled
        room, space_before = self.room, self.space_bytes
        space, done = space_before, 0
        over = None
        position, last = self.position, self._last  # kept in locals, because each record moves both
        for record in records:
            offset = record.offset
            if offset != position:
                if offset < position:
                    continue
                self.position, self._last = position, last
                self._leave_out(offset)
                position = offset
            if offset < ahead and settled.end_of(offset) is not None:
                done += 1
            elif room <= 0 or space <= 0:
                over = offset
                break
            else:
                live[offset] = last = Message(record, offset, batches.get(offset) if batches else None)
                admitted.append(last)
                room -= 1
                space -= last.size
            position = offset + 1
        self.position, self._last = position, last
        self._add_bytes(space_before - space)
        return over, done

    def skip(self, offset: int) -> None:
        """Move the position to `offset` if it is ahead, and past what an earlier run settled there.

        The log has no message in between.
        """
        if offset > self.position:
            self._leave_out(offset)
        if self.position < self._ahead:
            self.position = self.settled.end_of(self.position) or self.position

    def settle(self, entries: Sequence[Message]) -> None:
        """Remove messages from the unsettled ones."""
        live, collected = self.live, self.settled.collected
        size = 0
        for entry in entries:
            offset = entry.offset
            del live[offset]
            collected[offset] = entry.end
            size += entry.size
        self.settled.collect()
        self._add_bytes(-size)

    def replace(self, message: Message, again: Message) -> None:
        """Put the next attempt of a message in its place."""
        self.live[message.offset] = again
        if self._last is message:
            self._last = again

    def forget_settled(self, log_end: int) -> None:
        """Forget what an earlier run settled from `log_end` on, because those offsets will hold other messages."""
        if log_end < self._ahead:
            self._ahead = max(log_end, self.position)
            self.settled.cut(self._ahead)

    def truncate(self, log_end: int) -> int:
        """Move the position back to `log_end`, and forget all messages from there on; return their number."""
        truncated = [entry for offset, entry in self.live.items() if offset >= log_end]
        for entry in truncated:
            del self.live[entry.offset]
        for entry in self.live.values():
            entry.end = min(entry.end, log_end)
        self._add_bytes(-sum(entry.size for entry in truncated))
        self.position = log_end
        self._ahead = min(self._ahead, log_end)
        self.settled.cut(log_end)
        return len(truncated)

    def leave(self) -> None:
        """Release the memory, because the ledger is not used again."""
        self._memory.members -= 1
        self._add_bytes(-self.bytes)

    def _leave_out(self, end: int) -> None:
        """Move the position to `end`. The empty offsets up to there belong to the message before them."""
        start, last = self.position, self._last
        self.position = end
        if last is not None and last.end == start and self.live.get(last.offset) is last:
            last.end = start = min(end, self.settled.next_start(start)) if start < self._ahead else end
        if start < end:
            self.settled.add(start, end)

    def _add_bytes(self, size: int) -> None:
        self.bytes += size
        self._memory.used_bytes += size
