"""SHELL (asyncio): the Consumer for programs under asyncio."""

import inspect
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

from broker.client.checked_arguments import check_number
from broker.client.consumer_config import ConsumerConfig
from broker.client.consumer_core import OnReset
from broker.client.consumer_engine import ASSIGNED, LOST, REVOKED, ConsumerEngine, Rebalance
from broker.client.consumer_figures import ConsumerFigures
from broker.client.consumer_offsets import ConsumerOffsets
from broker.client.errors import ClientError
from broker.client.group_protocol import Partition
from broker.client.group_requests import CommittedOffset, GroupIdentity
from broker.client.log_record import Record
from broker.client.offset_spec import AtId, AtTime, Earliest, Latest, OffsetSpec
from broker.client.old_spellings import RenamedAttribute
from broker.client.records import OnPoison
from broker.client.security.client_security import Security
from broker.client.subscription import Topics, check_offset, subscription

HOUSEKEEPING_SECONDS = 1.0  # the longest time between two checks of an iterator for rebalances and commits
ASKED_TWICE = "this consumer waits for a record already: only one task or thread may, and no callback of the consumer"

OnRebalance = Callable[[frozenset[Partition]], Awaitable[object] | object]


class AsyncConsumer:
    """The asyncio version of `Consumer`, with the same arguments; rebalance callbacks may be coroutines.

        async with AsyncConsumer("127.0.0.1:9092", "greetings", group="readers") as consumer:
            async for record in consumer:
                print(record.id, record.value)

    A consumer belongs to one event loop, and one task at a time waits for a record. A cancelled wait loses no record.
    Any task may call `close`: then the iterator ends. Heartbeats go on in a thread while the loop is busy.
    """

    def __init__(
        self,
        servers: str,
        topics: Topics,
        *,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
        start: OffsetSpec = Earliest(),
        timeout_ms: int | None = None,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
        on_poison: OnPoison | None = None,
        on_reset: OnReset | None = None,
        config: ConsumerConfig | None = None,
        security: Security = None,
    ) -> None:
        config = ConsumerConfig() if config is None else config
        if timeout_ms is not None:
            check_number("timeout_ms", timeout_ms)
        self._engine = ConsumerEngine(
            servers, subscription(topics, partitions, group), group, start, config, security=security
        )
        self._on_poison = on_poison
        self._on_reset = on_reset
        self._timeout_ms = timeout_ms
        self._callbacks = {ASSIGNED: on_assigned, REVOKED: on_revoked, LOST: on_lost}
        self._records_max = config.max_poll_records
        self._housekeeping = 0.0
        self._is_asking = False
        weakref.finalize(self, _abandon, self._engine.offsets)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is not None:
            self._engine.core.give_back()
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record; end after `timeout_ms` without one."""
        until = None if self._timeout_ms is None else time.monotonic() + self._timeout_ms / 1000
        while True:
            if time.monotonic() < self._housekeeping:
                record = self._engine.core.hand()
                if record is not None:
                    return record
            if self._engine.is_closed or not await self._prepare_next(until):
                raise StopAsyncIteration
            self._housekeeping = time.monotonic() + HOUSEKEEPING_SECONDS

    async def _prepare_next(self, until_s: float | None) -> bool:
        """Prepare records for the iterator. Return False if none come until then, or `close` is called meanwhile."""
        try:
            return await self._prepare(self._records_max, until_s)
        except ClientError:
            if self._engine.is_closed:
                return False
            raise

    async def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record]:
        """Return the next records, at most `max_records`; none if none came within the timeout."""
        check_number("timeout_ms", timeout_ms)
        records_max = self._records_max if max_records is None else records_to_return(max_records)
        await self._prepare(records_max, time.monotonic() + timeout_ms / 1000)
        return self._engine.core.hand_all(records_max)

    async def _prepare(self, records_max: int, until_s: float | None) -> bool:
        if self._is_asking:
            raise ClientError(ASKED_TWICE)
        self._is_asking = True
        try:
            while True:
                step = await self._engine.step(records_max, until_s)
                for batch in self._engine.take_poison():
                    if self._on_poison is not None:
                        self._on_poison(batch)
                while (reset := self._engine.core.take_reset()) is not None:
                    if self._on_reset is not None:
                        self._on_reset(reset)
                if isinstance(step, bool):
                    return step
                await self._call_back(step)
                await self._engine.settle(step)
        finally:
            self._is_asking = False

    async def _call_back(self, change: Rebalance) -> None:
        callback = self._callbacks[change.kind]
        result = None if callback is None else callback(change.partitions)
        if inspect.isawaitable(result):
            await result

    async def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        """Commit the positions of all partitions, or these: {(topic, partition): next offset}. Raise CommitFailed."""
        await self._engine.offsets.commit(positions_to_commit(self._engine, offsets))

    async def committed(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """Return what the group has committed for these partitions or all owned ones."""
        return await self._engine.committed(self.assignment if partitions is None else partitions)

    async def position(self, topic: str, partition: int) -> int | None:
        """Return the offset after the last record handed out, None while it is not known."""
        return await self._engine.position((topic, partition))

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`."""
        await self._engine.seek((topic, partition), check_offset((topic, partition), offset))

    async def seek_to_time(self, time_ms: int, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record at or after a time, Unix ms, in these partitions or all owned ones."""
        await self._engine.seek_to(AtTime(check_number("time_ms", time_ms)), partitions)

    async def seek_to_id(self, id: int, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record whose id is at least `id`. Raise Unsupported if the broker keeps no ids."""
        await self._engine.seek_to(AtId(check_number("id", id)), partitions)

    async def seek_to_start(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record of the log."""
        await self._engine.seek_to(Earliest(), partitions)

    async def seek_to_end(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the end of the log."""
        await self._engine.seek_to(Latest(), partitions)

    async def seek_to_committed(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go back to what the group has committed, for example after a transaction was aborted. Raise CommitFailed.

        A partition of which the group has committed nothing begins at `start`.
        """
        await self._engine.seek_to_committed(partitions)

    async def pause(self, partitions: Iterable[Partition] | None = None) -> None:
        """Hold back the records of these partitions or all owned ones. The group is served as before."""
        await self._engine.pause(partitions)

    async def resume(self, partitions: Iterable[Partition] | None = None) -> None:
        """End the pause of these partitions or all owned ones."""
        await self._engine.resume(partitions)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that the consumer owns, as (topic, partition)."""
        return self._engine.core.owned

    @property
    def paused(self) -> frozenset[Partition]:
        """The partitions that are paused."""
        return self._engine.core.paused

    @property
    def identity(self) -> GroupIdentity:
        """The member of the group, for `Producer.send_offsets`. Raise CommitFailed without a group."""
        return self._engine.offsets.identity

    @property
    def uncommitted(self) -> dict[Partition, int]:
        """The positions that are not committed yet, {(topic, partition): next offset}, for `Producer.send_offsets`.

        `commit` stores these. A position is the offset after the last record that the program got.
        """
        return {key: committed.offset for key, committed in self._engine.core.to_commit().items()}

    positions = RenamedAttribute("uncommitted")

    def figures(self) -> ConsumerFigures:
        """Return requests and their times, records and bytes, and each partition's position and lag."""
        return self._engine.figures()

    async def close(self) -> None:
        """Commit the processed records if commits are by time, and leave the group. Harmless if repeated."""
        await self._engine.close()


def _abandon(offsets: ConsumerOffsets) -> None:
    """Leave the group of a consumer that was collected without a `close`. Its event loop may be closed."""
    if offsets.thread is not None:
        offsets.thread.leave()


def positions_to_commit(
    engine: ConsumerEngine, offsets: Mapping[Partition, int] | None
) -> dict[Partition, CommittedOffset]:
    """Return what `commit(offsets)` commits. Raise ValueError for an offset that cannot be one."""
    if offsets is None:
        return engine.core.to_commit()
    for key, offset in offsets.items():
        check_offset(key, offset)
    return {key: CommittedOffset(offset) for key, offset in offsets.items()}


def records_to_return(max_records: int) -> int:
    """Return `max_records`. Raise ValueError if it is not positive."""
    return check_number("max_records", max_records, 1)
