"""The partitions of a consumer, without sockets: positions, records fetched ahead, and records handed out.

    assigned --> unplaced --> set_position --> asks --> answered --> prepare --> hand --> to_commit
                                 ^                          |
                                 +--- reset, if the log no longer has the position

A partition's position is the offset after the last record that was handed to the program. A commit stores the
position. The fetch offset runs ahead of it. Answers wait as bytes, because decoded records take many times as much
memory: a batch of a few kilobytes may unpack to a hundred megabytes. So `prepare` unpacks as many batches as it hands
out, and at most one partition has a batch that is handed out in part: the next `prepare` begins with it. Otherwise the
partitions take turns, the longest waiting first. `seek` drops the records that were fetched ahead, and `answered`
ignores an answer to an ask from before the seek.

The records that were handed out last count as processed when the program asks for more (`processed`). If the program
fails before that, the shell gives them back (`give_back`), so that they are not committed.

One thread may call `hand`, `hand_all` and `give_back` while another thread calls the other methods, except during
`prepare`, `seek`, `pause` and `drop`.

Times are in ms on the caller's clock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from broker.client.consumer_figures import FetchFigures, PartitionFigures
from broker.client.errors import BrokerError, MissingId, TopicRecreated, Unreachable
from broker.client.fetch_config import FetchConfig
from broker.client.fetch_session import PartitionAsk, end_of
from broker.client.group_protocol import Partition
from broker.client.group_requests import CommittedOffset
from broker.client.records import NO_EPOCH, AnswerReader, PoisonBatch, Record, verify_batches
from broker.record.batch import CorruptBatch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition
from broker.wire.frame import FileRegion

RETRY_MS, RETRY_MS_MAX = 100, 1_000  # pause after a failed fetch, doubled at each failure in a row
NOTES_MAX = 1_000  # lines that wait for `take_notes`


class _Chunk:
    """The answer to one ask, up to the offset `following`. `epoch` is the leader epoch of its last batch.

    `reader` unpacks its batches when `prepare` gets to them. `records` are those unpacked last, and `next` is the index
    of the first that is not prepared yet. `size` is the memory that the chunk takes: its bytes, and the unpacked bytes
    of such records.
    """

    __slots__ = ("reader", "following", "epoch", "size", "records", "next", "unpacked_bytes")

    def __init__(self, answer: FetchedPartition, reader: AnswerReader, following: int, epoch: int) -> None:
        self.reader = reader
        self.following = following
        self.epoch = epoch
        self.size = answer.size
        self.records: list[Record] = []
        self.next = 0
        self.unpacked_bytes = 0


@dataclass(slots=True)
class _OwnedPartition:
    """The state of one partition."""

    position: int | None = None
    epoch: int = NO_EPOCH
    fetch_offset: int = 0
    fetch_epoch: int = NO_EPOCH
    committed: int | None = None
    resets: int = 0
    chunks: deque[_Chunk] = field(default_factory=deque)
    asked: PartitionAsk | None = None
    must_reset: bool = False
    is_paused: bool = False
    failures: int = 0
    retry_ms: int = 0
    figures: PartitionFigures = field(default_factory=PartitionFigures)

    def go_to(self, offset: int, epoch: int) -> None:
        """Fetch from `offset` on; `epoch` is the leader epoch of the record before it."""
        self.position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.asked, self.must_reset, self.retry_ms = None, False, 0


class Gap(NamedTuple):
    """A partition, as (topic, number), whose log no longer has the position `offset`, and why."""

    key: Partition
    offset: int
    reason: str


OnReset = Callable[[Gap], object]


class ConsumerCore:
    """The partitions that a consumer owns."""

    def __init__(
        self,
        config: FetchConfig,
        max_unpacked_bytes: int,
        reader: type[AnswerReader] = AnswerReader,
        *,
        stops_at_gaps: bool = False,
    ) -> None:
        """Own no partitions yet. `reader` reads the answers of fetches.

        With `stops_at_gaps`, the core pauses a partition whose position is gone, and `take_gaps` returns it.
        """
        self.figures = FetchFigures()
        self._reader = reader
        self._stops_at_gaps = stops_at_gaps
        self._gaps: list[Gap] = []
        self._resets: deque[Gap] = deque()
        self._config = config
        self._max_unpacked_bytes = max_unpacked_bytes
        self._partitions: dict[Partition, _OwnedPartition] = {}
        self._ready: dict[Partition, None] = {}  # partitions with chunks, the longest waiting first
        self._bytes_ahead = 0
        self._prepared: deque[Record] = deque()
        self._after: dict[Partition, tuple[int, int]] = {}  # position and epoch once all prepared are handed
        self._last: Sequence[Record] = ()  # handed out, and not known to be processed
        self._error: Exception | None = None
        self._notes: list[str] = []
        self._poison: list[PoisonBatch] = []

    # --- the assignment

    @property
    def owned(self) -> frozenset[Partition]:
        """The partitions that are read."""
        return frozenset(self._partitions)

    @property
    def paused(self) -> frozenset[Partition]:
        """The partitions whose records are held back."""
        return frozenset(key for key, partition in list(self._partitions.items()) if partition.is_paused)

    def assigned(self, partitions: Iterable[Partition]) -> None:
        """Add partitions, without positions."""
        for key in partitions:
            self._partitions.setdefault(key, _OwnedPartition())

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Remove partitions, and their records that were not handed out."""
        for key in partitions:
            if key in self._partitions:
                self._forget_ahead(key)
                del self._partitions[key]

    def unplaced(self) -> tuple[list[Partition], list[Partition]]:
        """Return the partitions without a position: those that go on from a commit, and those that are reset."""
        lacking = [(key, partition) for key, partition in self._partitions.items() if partition.position is None]
        fresh = [key for key, partition in lacking if not partition.must_reset]
        return fresh, [key for key, partition in lacking if partition.must_reset]

    def set_position(self, key: Partition, offset: int, epoch: int = NO_EPOCH, is_committed: bool = False) -> None:
        """Set the position of a partition that has none. `epoch` is the leader epoch of the record before it."""
        partition = self._partitions.get(key)
        if partition is not None and partition.position is None:
            partition.go_to(offset, epoch)
            partition.committed = offset if is_committed else partition.committed

    def seek(self, key: Partition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on at `offset`, and drop the records fetched ahead. Raise KeyError if the partition is not owned."""
        partition = self._partitions[key]
        self._forget_ahead(key)
        self._last = [record for record in self._last if (record.topic, record.partition) != key]
        partition.go_to(offset, epoch)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hand out no more records of these partitions. Raise KeyError for one that is not owned."""
        for key in partitions:
            self._partitions[key].is_paused = True
            self._put_back(key)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hand out records of these partitions again. Raise KeyError for one that is not owned."""
        for key in partitions:
            self._partitions[key].is_paused = False

    def position(self, key: Partition) -> int | None:
        """Return the offset after the last record handed out, None while it is not known. Raise KeyError."""
        return self._partitions[key].position

    # --- fetching

    def asks(self, now_ms: int) -> list[PartitionAsk]:
        """Return what to fetch now: partitions with a position, no ask under way, and less than a fetch ahead."""
        limit = self._config.max_partition_fetch_bytes
        asks = []
        for key, partition in self._to_ask():
            if now_ms >= partition.retry_ms:
                partition.asked = PartitionAsk(*key, partition.fetch_offset, limit, last_epoch=partition.fetch_epoch)
                asks.append(partition.asked)
        return asks

    def _to_ask(self) -> list[tuple[Partition, _OwnedPartition]]:
        """Return the partitions that may be fetched as soon as the pause after a failure is over."""
        if self._bytes_ahead >= self._config.consumer_prefetch_bytes or self._error is not None:
            return []
        limit = self._config.max_partition_fetch_bytes
        return [
            (key, partition)
            for key, partition in self._partitions.items()
            if partition.position is not None
            and partition.asked is None
            and not partition.is_paused
            and sum(chunk.size for chunk in partition.chunks) < limit
        ]

    def next_ask_ms(self) -> int | None:
        """Return when the first partition that failed may be asked for again, None if none waits so.

        A partition that waits for something else, such as room for its records, is none of them.
        """
        return min((partition.retry_ms for _, partition in self._to_ask() if partition.retry_ms), default=None)

    def answered(self, ask: PartitionAsk, answer: FetchedPartition | Exception, now_ms: int) -> None:
        """Take the answer to an ask. Ignore it if `seek` or `drop` has ended the ask."""
        partition = self._partitions.get(ask.key)
        if partition is None or partition.asked is None or partition.asked[:3] != ask[:3]:
            return
        partition.asked = None
        if isinstance(answer, Exception):
            self._failed(ask, partition, answer, now_ms)
            return
        partition.failures = partition.retry_ms = 0
        if answer.diverging is not None:
            self._diverged(ask.key, answer.diverging)
            return
        try:
            following, epoch = verify_batches(answer, ask.offset)
        except CorruptBatch as error:
            self._error = error
            return
        partition.figures.end = end_of(answer, self._config.isolation)
        if following != ask.offset:
            assert not isinstance(answer.records, FileRegion), "regions are the broker's; a client has bytes"
            answer.records = bytes(answer.records)  # a copy, because a view keeps the answers of all partitions
            reader = self._reader(answer, ask.offset, self._max_unpacked_bytes, check=False)
            partition.chunks.append(_Chunk(answer, reader, following, epoch))
            partition.fetch_offset, partition.fetch_epoch = following, epoch
            self._bytes_ahead += answer.size
            self._ready[ask.key] = None

    def _failed(self, ask: PartitionAsk, partition: _OwnedPartition, error: Exception, now_ms: int) -> None:
        name = f"{ask.topic}-{ask.partition}"
        code = error.code if isinstance(error, BrokerError) else None
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and partition.position != ask.offset:
            partition.retry_ms = now_ms + RETRY_MS  # until the program has received the records fetched before
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE or isinstance(error, TopicRecreated):
            why = "its log does not have that offset" if code else str(error)
            if self._stops_at_gaps:
                partition.is_paused = True
                self._gaps.append(Gap(ask.key, ask.offset, why))
                return
            position = ask.offset if partition.position is None else partition.position
            self._note(f"{name}: position {position} is gone, so it begins again by `start`: {why}")
            self._note_reset(Gap(ask.key, position, why))
            self._forget_ahead(ask.key)
            partition.position, partition.must_reset = None, True
            partition.committed = None  # a topic that was made again has lost it, though the same offset may come
            partition.resets += 1
        elif isinstance(error, Unreachable) or (isinstance(error, BrokerError) and error.retriable):
            if not partition.failures:
                self._note(f"{name}: {error}; it is asked for again")
            partition.retry_ms = now_ms + min(RETRY_MS << min(partition.failures, 10), RETRY_MS_MAX)
            partition.failures += 1
            self.figures.failed_requests += 1
        else:
            self._error = error

    def _diverged(self, key: Partition, diverging: tuple[int, int]) -> None:
        """Go back to the end of the last epoch that the log and the consumer agree on (KIP-320)."""
        epoch, end = diverging
        partition = self._partitions[key]
        position = partition.position or 0
        if end < position:
            why = f"its log was cut at offset {end}"
            self._note(f"{key[0]}-{key[1]}: {why}; the consumer goes back from {position}")
            self._note_reset(Gap(key, position, why))
            self.seek(key, end, epoch)
        else:
            self.seek(key, position, partition.epoch)

    def _forget_ahead(self, key: Partition) -> None:
        partition = self._partitions[key]
        self._bytes_ahead -= sum(chunk.size for chunk in partition.chunks)
        partition.chunks.clear()
        self._ready.pop(key, None)
        self._after.pop(key, None)
        if any((record.topic, record.partition) == key for record in self._prepared):
            self._prepared = deque(record for record in self._prepared if (record.topic, record.partition) != key)

    def _put_back(self, key: Partition) -> None:
        """Fetch a paused partition's prepared records again later."""
        partition = self._partitions[key]
        if key in self._after and partition.position is not None:
            self.seek(key, partition.position, partition.epoch)

    # --- handing out

    def prepare(self, records_max: int) -> bool:
        """Prepare up to `records_max` records, if none are prepared. Return True if there are some now.

        Without records, raise the error of a fetch that no retry can mend. The partition is then asked for again.
        """
        if self._prepared:
            return True
        self._settle_positions()
        room, room_bytes = records_max, self._config.max_partition_fetch_bytes
        for key in [key for key in self._ready if not self._partitions[key].is_paused]:
            if room <= 0 or room_bytes <= 0:
                break
            room, room_bytes = self._prepare_some(key, room, room_bytes)
        if self._prepared:
            return True
        self._settle_positions()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return False

    def _prepare_some(self, key: Partition, room: int, room_bytes: int) -> tuple[int, int]:
        """Prepare records of one partition, and return the room that is left. A batch may take more than there is."""
        partition = self._partitions[key]
        while partition.chunks and room > 0 and room_bytes > 0:
            chunk = partition.chunks[0]
            if not chunk.records and not self._unpack(partition, chunk, room, room_bytes):
                break
            some = chunk.records[chunk.next : chunk.next + room]
            self._prepared += some
            room -= len(some)
            if chunk.records:
                room_bytes -= chunk.unpacked_bytes * len(some) // len(chunk.records)
            chunk.next += len(some)
            if chunk.next < len(chunk.records):
                self._after[key] = some[-1].offset + 1, chunk.reader.leader_epoch
                return 0, 0  # the partition stays the first in turn, so that no other is unpacked beside it
            self._unpacked(chunk, [], 0)
            self._after[key] = chunk.reader.next_offset, chunk.reader.leader_epoch
            if chunk.reader.is_over:
                self._after[key] = chunk.following, chunk.epoch
                self._bytes_ahead -= chunk.size
                partition.chunks.popleft()
        del self._ready[key]
        if partition.chunks:
            self._ready[key] = None
        return room, room_bytes

    def _unpack(self, partition: _OwnedPartition, chunk: _Chunk, room: int, room_bytes: int) -> bool:
        """Unpack the next batches of a chunk. If a record has no id, keep the error for `prepare`, and return False.

        The rest of the chunk is then asked for again.
        """
        reader, counted_bytes = chunk.reader, chunk.reader.packed_bytes
        try:
            records = reader.read(room_bytes, room)
        except MissingId as error:
            self._error = error
            self._bytes_ahead -= sum(chunk.size for chunk in partition.chunks)
            partition.chunks.clear()
            partition.fetch_offset, partition.fetch_epoch, partition.asked = reader.next_offset, NO_EPOCH, None
            return False
        self._unpacked(chunk, records, reader.unpacked_bytes)
        for figures in (self.figures, partition.figures):
            figures.fetched(len(records), reader.packed_bytes - counted_bytes)
        if reader.poison:
            self._poison += reader.poison
            self.figures.poison_batches += len(reader.poison)
            reader.poison.clear()
        return True

    def _unpacked(self, chunk: _Chunk, records: list[Record], unpacked_bytes: int) -> None:
        """Keep the records of a chunk that were unpacked last, and count their bytes instead of those before."""
        self._bytes_ahead += unpacked_bytes - chunk.unpacked_bytes
        chunk.size += unpacked_bytes - chunk.unpacked_bytes
        chunk.records, chunk.next, chunk.unpacked_bytes = records, 0, unpacked_bytes

    def _settle_positions(self) -> None:
        """All prepared records are handed out: move the positions past what follows them, such as markers."""
        for key, (position, epoch) in self._after.items():
            self._partitions[key].position, self._partitions[key].epoch = position, epoch
        self._after.clear()

    def hand(self) -> Record | None:
        """Hand out the next prepared record, None without one."""
        if not self._prepared:
            return None
        record = self._prepared.popleft()
        self._last = (record,)
        partition = self._partitions[record.topic, record.partition]
        partition.position = record.offset + 1
        if not self._prepared:
            self._settle_positions()
        return record

    def hand_all(self, records_max: int) -> list[Record]:
        """Hand out the prepared records, at most `records_max`."""
        if len(self._prepared) > records_max:
            records = [record for record in (self.hand() for _ in range(records_max)) if record is not None]
        else:
            records = list(self._prepared)
            self._prepared.clear()
            self._settle_positions()
        self._last = tuple(records)
        return records

    def processed(self) -> None:
        """Count the records handed out last as processed, because the program asks for more or commits."""
        self._last = ()

    def give_back(self) -> None:
        """Take back the records that were handed out last, because the program has not processed them.

        Offsets that the program has committed stay committed.
        """
        for record in reversed(self._last):
            partition = self._partitions.get((record.topic, record.partition))
            if partition is not None and (partition.committed is None or record.offset >= partition.committed):
                partition.position, partition.epoch = record.offset, NO_EPOCH
        self._last = ()

    # --- commits, notes, figures

    def to_commit(self) -> dict[Partition, CommittedOffset]:
        """Return the positions that are not committed yet."""
        return {
            key: CommittedOffset(partition.position, partition.epoch)
            for key, partition in list(self._partitions.items())  # a copy, because another thread may ask
            if partition.position is not None and partition.position != partition.committed
        }

    def resets_of(self, key: Partition) -> int:
        """Return how often a partition has begun again by `start`: a commit from before is of another log."""
        partition = self._partitions.get(key)
        return 0 if partition is None else partition.resets

    def committed(self, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Take note of offsets that the group has committed."""
        for key, committed in offsets.items():
            if key in self._partitions:
                self._partitions[key].committed = committed.offset

    def take_notes(self) -> list[str]:
        """Return and clear what the shell logs: failures, resets."""
        notes, self._notes = self._notes, []
        return notes

    def take_gaps(self) -> list[Gap]:
        """Return and clear the partitions that were paused because their positions are gone."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def _note_reset(self, reset: Gap) -> None:
        self.figures.resets += 1
        if len(self._resets) < NOTES_MAX:
            self._resets.append(reset)

    def take_reset(self) -> Gap | None:
        """Return and forget the first of the partitions that go on elsewhere, because their positions are gone."""
        return self._resets.popleft() if self._resets else None

    def take_poison(self) -> list[PoisonBatch]:
        """Return and clear the batches that were skipped."""
        poison, self._poison = self._poison, []
        return poison

    def partition_figures(self) -> dict[Partition, PartitionFigures]:
        """Return the figures of each partition, with its position."""
        return {
            key: replace(partition.figures, position=partition.position, committed=partition.committed)
            for key, partition in list(self._partitions.items())  # a copy, because another thread may ask
        }

    def _note(self, note: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(note)
