"""SHELL (asyncio, a group thread): what Consumer and AsyncConsumer share: one consumer on an event loop.

    while True:
        step = await engine.step(records_max, until_s)
        a Rebalance: call the program's callback, then `await engine.settle(step)`
        True: records are prepared, `engine.core.hand()` returns them; False: none came until `until_s`

Everything that the program handed out before a step counts as processed: the step commits it when the interval is over.
Separate tasks look up positions and send commits by time, so a step ends in time even if a broker does not answer.
A member of a group sends its heartbeats in a thread (broker.client.group_thread).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from broker.client.async_fetches import AsyncFetches
from broker.client.asyncio import AsyncClient
from broker.client.consumer_config import ConsumerConfig
from broker.client.consumer_core import ConsumerCore
from broker.client.consumer_figures import ConsumerFigures
from broker.client.core import Address, TopicInfo
from broker.client.errors import BrokerError, ClientError, CommitFailed, GroupRefused, Unreachable
from broker.client.fetch_session import PartitionAsk
from broker.client.group import Assigned, Event, Lost, Refused, Revoke, Trouble
from broker.client.group_protocol import Partition
from broker.client.group_requests import CommittedOffset, GroupIdentity, commit_offsets, find_coordinator
from broker.client.group_thread import GroupThread
from broker.client.positions import STARTS, committed_positions, find_positions
from broker.client.records import PoisonBatch
from broker.client.subscription import Subscription
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition

POLL_SECONDS = 1.0  # how often a step that waits shows the group that the program works
RETRY_SECONDS = 0.2
RETRIES_MAX = 25  # five seconds: a rebalance, a former owner's transaction, or a coordinator that moves
LOOKUP_SECONDS = 0.1  # pause after a failed look-up of positions

PASSING = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
_NOTHING_YET = "nothing yet: a group gives it partitions while it waits for a record"
ASSIGNED, REVOKED, LOST = "assigned", "revoked", "lost"

_log = logging.getLogger("broker.client.consumer")


class Rebalance(NamedTuple):
    """Partitions that the consumer gets, hands over, or has lost to another member."""

    kind: str
    partitions: frozenset[Partition]


class ConsumerEngine:
    """A consumer on the running event loop. Not thread-safe: all calls are made on the loop.

    Only `core.hand` and `core.hand_all` may be called in another thread, while no call is under way.
    """

    def __init__(
        self,
        servers: str,
        subscribed: Subscription,
        group: str | None,
        start: str,
        config: ConsumerConfig,
    ) -> None:
        if start not in STARTS:
            raise ValueError(f"start={start!r}: give {' or '.join(map(repr, STARTS))}")
        self.core = ConsumerCore(config, DECOMPRESSED_BYTES_MAX)
        self.config = config
        self.group = group
        self._servers = servers
        self._subscribed = subscribed
        self._start = STARTS[start]
        self._client = AsyncClient(servers)
        self._fetches = AsyncFetches(self._client, config, self.core.figures, self._answered)
        self._thread: GroupThread | None = None
        self._coordinator: Address | None = None
        self._changes: list[Rebalance] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._want_call: asyncio.Handle | None = None
        self._begun = self._commit_due = self._refresh_due = time.monotonic()
        self._is_open = self._is_closed = False

    # --- steps

    async def step(self, records_max: int, until_s: float | None) -> bool | Rebalance:
        """Work until records are prepared (True), `until_s` is over (False), or partitions come or go (Rebalance).

        Raise GroupRefused, or the error of a fetch that no retry can mend.
        """
        await self._opened()
        while True:
            self._wake.clear()
            self._follow_group()
            if self._changes:
                return self._changes[0]
            self._begin_due_work()
            is_prepared = self.core.prepare(records_max)
            self._want()
            self._report()
            now = time.monotonic()
            if is_prepared or (until_s is not None and now >= until_s):
                return is_prepared
            await self._wait(now, until_s)

    async def settle(self, change: Rebalance) -> None:
        """Finish a change after its callback: commit and release the partitions that were revoked.

        A change that is not finished, because its callback raised or the call was cancelled, comes again.
        """
        if change.kind == REVOKED:
            if self.config.auto_commit_interval_ms is not None:
                await self._commit_last(change.partitions)
            self.core.drop(change.partitions)
            if self._thread is not None:
                self._thread.released(change.partitions)
        self._changes.remove(change)

    async def _opened(self) -> None:
        """At the first call look up the topics, so that a wrong name or address is an error at once, and join."""
        if self._is_closed:
            raise ClientError("the consumer was closed")
        if self._is_open:
            return
        topics = await self._topics()
        self._is_open = True
        self._begun = time.monotonic()
        self._refresh_due = self._begun + self.config.metadata_max_age_ms / 1000
        self._commit_due = self._begun + (self.config.auto_commit_interval_ms or 0) / 1000
        if self.group is None:
            self._assign(topics)
            return
        loop = asyncio.get_running_loop()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake.set)

        names = self._subscribed.topics_of(topics)
        self._thread = GroupThread(self._servers, self.group, names, self.config, notify)
        self._thread.start()

    async def _topics(self) -> list[TopicInfo]:
        names = None if self._subscribed.pattern is not None else self._subscribed.names
        return await self._client.run(self._client.core.metadata(names))

    def _assign(self, topics: list[TopicInfo]) -> None:
        """Without a group: read all subscribed partitions that exist now."""
        wanted, owned = self._subscribed.partitions_of(topics), self.core.owned
        if wanted - owned:
            self.core.assigned(wanted - owned)
            self._changes.append(Rebalance(ASSIGNED, frozenset(wanted - owned)))
        if owned - wanted:
            self.core.drop(owned - wanted)
            self._changes.append(Rebalance(LOST, owned - wanted))

    async def _wait(self, now: float, until_s: float | None) -> None:
        """Wait for an answer, an event of the group, or the next time that something is due."""
        ends = [now + POLL_SECONDS] + ([] if until_s is None else [until_s])
        retry_ms = self.core.next_ask_ms()
        if retry_ms is not None:
            ends.append(max(now + 0.001, retry_ms / 1000))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.0, min(ends) - now))

    def _follow_group(self) -> None:
        if self._thread is not None:
            for event in self._thread.poll():
                self._happened(event)

    def _happened(self, event: Event) -> None:
        if isinstance(event, Assigned):
            self.core.assigned(event.partitions)
            self.core.figures.rebalances += 1
            self._changes.append(Rebalance(ASSIGNED, event.partitions))
        elif isinstance(event, Revoke):
            self.core.figures.rebalances += 1
            self._changes.append(Rebalance(REVOKED, event.partitions))
        elif isinstance(event, Lost):
            _log.warning("group %s: lost %s, without a commit: %s", self.group, _named(event.partitions), event.why)
            self.core.drop(event.partitions)
            self.core.figures.rebalances += 1
            self._changes.append(Rebalance(LOST, event.partitions))
        elif isinstance(event, Refused):
            raise GroupRefused(event.error)
        elif isinstance(event, Trouble):
            _log.warning("group %s: %s; it is asked again", self.group, event.error)

    # --- work in tasks

    def _begin_due_work(self) -> None:
        now = time.monotonic()
        if any(self.core.unplaced()):
            self._begin("positions", self._place_all)
        if now >= self._refresh_due and (self.group is None or self._subscribed.pattern is not None):
            self._refresh_due = now + self.config.metadata_max_age_ms / 1000
            self._begin("topics", self._refresh)
        interval_ms = self.config.auto_commit_interval_ms
        if self.group is not None and interval_ms is not None and now >= self._commit_due:
            self._commit_due = now + interval_ms / 1000
            if self.core.to_commit():
                self._begin("commit", self._commit_by_time)

    def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a task unless one of its name is under way. Raise the error with which the last one ended."""
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks.pop(name, None)
            if task is not None and not task.cancelled() and (error := task.exception()) is not None:
                raise error
            self._tasks[name] = asyncio.create_task(work())

    async def _place_all(self) -> None:
        """Find the positions of partitions that have none. Failures that may pass are logged, and tried again."""
        core = self._client.core
        try:
            fresh, reset = self.core.unplaced()
            if self.group is not None and fresh:
                at = await self._group_coordinator()
                found = await self._client.run(committed_positions(core, at, self.group, fresh))
                for key, each in found.items():
                    self.core.place(key, each.offset, each.leader_epoch, is_committed=True)
                fresh = [key for key in fresh if key not in found]
            steps = find_positions(core, fresh + reset, self._start, self.config.isolation)
            for key, offset in (await self._client.run(steps)).items():
                self.core.place(key, offset)
        except (BrokerError, Unreachable) as error:
            passes = isinstance(error, Unreachable) or error.retriable or error.code in PASSING
            if not passes:
                raise
            self._coordinator = None
            if not isinstance(error, BrokerError) or error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                _log.warning("positions of %s: %s; they are asked for again", self.group or "a consumer", error)
            await asyncio.sleep(LOOKUP_SECONDS)
        finally:
            self._wake.set()

    async def _refresh(self) -> None:
        """Look up the topics again: new ones may match, and topics may have new partitions."""
        try:
            topics = await self._topics()
        except ClientError as error:
            _log.warning("topics: %s; they are asked for again", error)
            return
        if self._thread is not None:
            self._thread.subscribe(self._subscribed.topics_of(topics))
        else:
            self._assign(topics)
        self._wake.set()

    async def _commit_by_time(self) -> None:
        try:
            await self.commit(self.core.to_commit())
        except ClientError as error:
            _log.warning("%s; the next commit tries again", error)

    # --- fetches

    def _want(self) -> None:
        self._want_call = None
        self._fetches.want(self.core.asks(_now_ms()))

    def _answered(self, ask: PartitionAsk, answer: FetchedPartition | Exception) -> None:
        self.core.answered(ask, answer, _now_ms())
        self._wake.set()
        if self._want_call is None:  # all answers of a response are followed by one look at the partitions
            self._want_call = asyncio.get_running_loop().call_soon(self._want)

    def _report(self) -> None:
        for note in self.core.take_notes():
            _log.warning("%s", note)

    def take_poison(self) -> list[PoisonBatch]:
        """Return and clear the batches that were skipped since the last call, for the program; log each."""
        poison = self.core.take_poison()
        for batch in poison:
            _log.warning("skipped a batch whose records cannot be decoded: %s", batch)
        return poison

    # --- commits

    async def commit(self, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Commit offsets for the group; wait for a rebalance that passes. Raise CommitFailed."""
        if self.group is None:
            raise CommitFailed("this consumer has no group, so it commits nothing: give it group='...'")
        left = dict(offsets)
        problem = "its coordinator is not known"
        for _ in range(RETRIES_MAX):
            if not left:
                return
            gone = [key for key in left if self._thread is not None and not self._thread.owns(key)]
            if gone:
                raise CommitFailed(f"group {self.group}: this consumer does not own {_named(gone)} now")
            try:
                at = await self._group_coordinator()
                codes = await self._client.run(commit_offsets(self._client.core, at, self.identity, left))
            except (BrokerError, Unreachable) as error:
                if isinstance(error, BrokerError) and not (error.retriable or error.code in PASSING):
                    raise
                problem = str(error)
            else:
                done = {key: each for key, each in left.items() if codes.get(key) is ErrorCode.NONE}
                self.core.committed(done)
                left = {key: each for key, each in left.items() if key not in done}
                if not left:
                    self.core.figures.commits += 1
                    return
                worst = next((code for key in left if (code := codes.get(key)) not in PASSING), None)
                problem = ", ".join(sorted({each.name for key in left if (each := codes.get(key)) is not None}))
                if worst is not None:
                    break
            self._coordinator = None
            await asyncio.sleep(RETRY_SECONDS)
        raise CommitFailed(f"group {self.group}: {_named(left)} not committed: {problem}")

    @property
    def identity(self) -> GroupIdentity:
        """The member as commits name it. Raise CommitFailed without a group."""
        if self._thread is None:
            raise CommitFailed("this consumer is in no group now")
        return self._thread.identity

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return what the group has committed, without partitions of which it has committed nothing."""
        if self.group is None:
            return {}
        at = await self._group_coordinator()
        found = await self._client.run(committed_positions(self._client.core, at, self.group, partitions))
        return {key: each.offset for key, each in found.items()}

    async def _group_coordinator(self) -> Address:
        known = self._thread.coordinator if self._thread is not None else None
        at = known or self._coordinator
        if at is None:
            at = self._coordinator = await self._client.run(find_coordinator(self._client.core, str(self.group)))
        return at

    # --- positions

    async def seek_to(self, place: int, partitions: Iterable[Partition] | None, by_id: bool = False) -> None:
        """Go on at EARLIEST, LATEST, a time or an id, in these partitions or all."""
        await self._opened()
        keys = self._owned(partitions)
        steps = find_positions(self._client.core, keys, place, self.config.isolation, by_id=by_id)
        for key, offset in (await self._client.run(steps)).items():
            if key in self.core.owned:
                self.core.seek(key, offset)

    async def seek(self, key: Partition, offset: int) -> None:
        """Go on at an offset."""
        await self._opened()
        self.core.seek(self._owned([key])[0], offset)

    async def pause(self, partitions: Iterable[Partition] | None) -> None:
        """Hold back records of these partitions, or of all."""
        await self._opened()
        self.core.pause(self._owned(partitions))

    async def resume(self, partitions: Iterable[Partition] | None) -> None:
        """End the pause of these partitions, or of all."""
        self.core.resume(self._owned(partitions))

    async def position(self, key: Partition) -> int | None:
        """Return the offset of the next record of a partition, None while it is not known."""
        return self.core.position(self._owned([key])[0])

    def figures(self) -> ConsumerFigures:
        """Return the figures until now."""
        fetches = replace(self.core.figures)
        return ConsumerFigures(time.monotonic() - self._begun, fetches, self.core.partition_figures())

    def _owned(self, partitions: Iterable[Partition] | None) -> list[Partition]:
        """Return the partitions, or all owned ones. Raise ClientError for one that is not owned."""
        owned = self.core.owned
        wanted = sorted(owned) if partitions is None else list(partitions)
        strange = [key for key in wanted if key not in owned]
        if strange:
            raise ClientError(f"this consumer does not own {_named(strange)}; it owns {_named(owned) or _NOTHING_YET}")
        return wanted

    # --- the end

    async def close(self) -> None:
        """Commit the processed records if commits are by time, and leave the group. Harmless if repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._tasks.values():
            task.cancel()
        if self._want_call is not None:
            self._want_call.cancel()
        if self._thread is not None:
            if self.config.auto_commit_interval_ms is not None:
                await self._commit_last(key for key in self.core.owned if self._thread.owns(key))
            await asyncio.to_thread(self._thread.close)
        await self._fetches.close()
        self._client.close()

    async def _commit_last(self, partitions: Iterable[Partition]) -> None:
        """Commit partitions that the consumer gives up."""
        offsets, wanted = self.core.to_commit(), set(partitions)
        try:
            await self.commit({key: each for key, each in offsets.items() if key in wanted})
        except ClientError as error:
            _log.warning("%s; records since the last commit come again", error)


def _named(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
