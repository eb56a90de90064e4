"""SHELL (asyncio, a group thread): a consumer on an event loop, which Consumer and AsyncConsumer wrap.

    while True:
        step = await engine.step(records_max, until_s)
        a Rebalance: call the program's callback, then `await engine.settle(step)`
        True: records are prepared, `engine.core.hand()` returns them; False: none came until `until_s`

All records that were handed out before a step count as processed: the step commits them when the interval is over.
Separate tasks look up positions and send commits by time, so a step ends in time even if a broker does not answer.
A member of a group sends its heartbeats in a thread (broker.client.group_thread).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

from broker.client.async_fetches import AsyncFetches
from broker.client.asyncio import AsyncClient
from broker.client.consumer_config import ConsumerConfig
from broker.client.consumer_core import ConsumerCore
from broker.client.consumer_figures import ConsumerFigures
from broker.client.consumer_offsets import ConsumerOffsets, passes
from broker.client.core import TopicInfo
from broker.client.errors import BrokerError, ClientError, GroupRefused, Unreachable
from broker.client.fetch_session import PartitionAsk
from broker.client.group import Assigned, Event, Lost, MemberRefused, Revoke, Trouble, Waits
from broker.client.group_protocol import Partition
from broker.client.group_requests import CommittedOffset
from broker.client.group_thread import CLOSE_SECONDS, GroupThread
from broker.client.offset_lookup import find_offsets
from broker.client.offset_spec import OffsetSpec, check_start
from broker.client.records import PoisonBatch
from broker.client.security.client_security import Security
from broker.client.subscription import Subscription, check_pair, named
from broker.client.timed_wait import wait_for_event
from broker.record.compression import DECOMPRESSED_BYTES_MAX
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition

POLL_SECONDS = 1.0  # how often a step that waits shows the group that the program works
LEAVE_SECONDS = 0.005  # how often to look whether the member has left
LOOKUP_SECONDS = 0.2  # pause after a failed look-up of positions
CLOSED = "the consumer was closed"

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
        start: OffsetSpec,
        config: ConsumerConfig,
        core: ConsumerCore | None = None,
        security: Security = None,
    ) -> None:
        if not isinstance(cast(object, config), ConsumerConfig):
            raise TypeError(f"config={config!r}: give a ConsumerConfig(...)")
        self.core = ConsumerCore(config, DECOMPRESSED_BYTES_MAX) if core is None else core
        self.config = config
        self.group = group
        self._servers = servers
        self._subscribed = subscribed
        self._start = check_start(start)
        self._client = AsyncClient(servers, security=security)
        self.offsets = ConsumerOffsets(self._client, group, self.core)
        self._fetches = AsyncFetches(self._client, config, self.core.figures, self._answered)
        self._thread: GroupThread | None = None
        self._changes: list[Rebalance] = []
        self._troubles: list[tuple[PartitionAsk, FetchedPartition | Exception]] = []
        self._topics_now: list[TopicInfo] | None = None  # found by the last look-up
        self._refused: str | None = None
        self._logged_trouble = ""  # with positions, so that it is logged once
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._want_call: asyncio.Handle | None = None
        self._begun = self._commit_due = self._refresh_due = time.monotonic()
        self._is_open = self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """True after the first call of `close`."""
        return self._is_closed

    # --- steps

    async def step(self, records_max: int, until_s: float | None) -> bool | Rebalance:
        """Work until records are prepared (True), `until_s` is over (False), or partitions come or go (Rebalance).

        Raise GroupRefused, ClientError if the consumer is closed, or the error of a fetch that no retry can mend.
        """
        self.core.processed()
        await self._opened()
        await asyncio.sleep(0)  # let other tasks run, also if records are prepared already
        while True:
            if self._is_closed:
                raise ClientError(CLOSED)
            self._wake.clear()
            self._follow_group()
            self._follow_log()
            if self._changes:
                return self._changes[0]
            if self._refused is not None:
                raise GroupRefused(self._refused)
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
                await self.offsets.commit_last(change.partitions)
            self.core.drop(change.partitions)
            if self._thread is not None:
                self._thread.released(change.partitions)
        self._changes.remove(change)

    async def _opened(self) -> None:
        """At the first call look up the topics, so that a wrong name or address is an error at once, and join."""
        if self._is_closed:
            raise ClientError(CLOSED)
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
        self._thread = self.offsets.thread = GroupThread(
            self._servers, self.group, names, self.config, notify, self._client.core.security
        )
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
        await wait_for_event(self._wake, max(0.0, min(ends) - now))

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
            _log.warning("group %s: lost %s, without a commit: %s", self.group, named(event.partitions), event.why)
            self.core.drop(event.partitions)
            self.core.figures.rebalances += 1
            self._changes.append(Rebalance(LOST, event.partitions))
        elif isinstance(event, MemberRefused):
            self._refused = event.error
        elif isinstance(event, Waits):
            _log.info("group %s: waits for its other members to join for %d s", self.group, event.seconds)
        elif isinstance(event, Trouble):
            _log.warning("group %s: %s; it is asked again", self.group, event.error)

    def _follow_log(self) -> None:
        """Apply results of tasks that may drop records. During a step no other thread hands out records."""
        troubles, self._troubles = self._troubles, []
        for ask, answer in troubles:
            self.core.answered(ask, answer, _now_ms())
        topics, self._topics_now = self._topics_now, None
        if topics is not None and self._thread is None:
            self._assign(topics)

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
            processed = self.core.to_commit()  # now, because the program may get a record before the task begins
            if processed:
                self._begin("commit", partial(self._commit_by_time, processed))

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
        try:
            fresh, reset = self.core.unplaced()
            if self.group is not None and fresh:
                committed = await self.offsets.committed(fresh)
                for key, stored in committed.items():
                    self.core.set_position(key, stored.offset, stored.leader_epoch, is_committed=True)
                fresh = [key for key in fresh if key not in committed]
            failed: dict[Partition, ClientError] = {}
            leaders = await self._client.run(self._client.core.leaders_of(fresh + reset, failed))
            await asyncio.gather(*(self._set_positions(led, failed) for led in leaders.values()))
            for error in failed.values():
                raise error
        except (BrokerError, Unreachable) as error:
            if not passes(error):
                raise
            self.offsets.forget_coordinator()
            is_usual = isinstance(error, BrokerError) and error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
            if str(error) != self._logged_trouble and not is_usual:
                _log.warning("positions of %s: %s; they are asked for again", self.group or "a consumer", error)
                self._logged_trouble = str(error)
            await asyncio.sleep(LOOKUP_SECONDS)
        finally:
            self._wake.set()

    async def _set_positions(self, partitions: Iterable[Partition], failed: dict[Partition, ClientError]) -> None:
        """Find the positions of the partitions of one broker, so that a broker that is away delays no other's."""
        level = self.config.isolation
        steps = find_offsets(self._client.core, partitions, self._start, isolation_level=level, failed=failed)
        for key, offset in (await self._client.run(steps)).items():
            self.core.set_position(key, offset)
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
        self._topics_now = topics
        self._wake.set()

    async def _commit_by_time(self, processed: Mapping[Partition, CommittedOffset]) -> None:
        try:
            await self.offsets.commit(processed)
        except ClientError as error:
            _log.warning("%s; the next commit tries again", error)

    # --- fetches

    def _want(self) -> None:
        self._want_call = None
        self._fetches.want(self.core.asks(_now_ms()))

    def _answered(self, ask: PartitionAsk, answer: FetchedPartition | Exception) -> None:
        if isinstance(answer, Exception) or answer.diverging is not None:
            self._troubles.append((ask, answer))
        else:
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

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return what the group has committed, without partitions of which it has committed nothing."""
        wanted = list(partitions)
        for partition in wanted:
            check_pair(partition)
        committed = {} if self.group is None else await self.offsets.settled(wanted)
        return {key: stored.offset for key, stored in committed.items()}

    # --- positions

    async def seek_to(self, spec: OffsetSpec, partitions: Iterable[Partition] | None) -> None:
        """Go on at a position, in these partitions or all."""
        await self._opened()
        keys = self._owned(partitions)
        steps = find_offsets(self._client.core, keys, spec, isolation_level=self.config.isolation)
        for key, offset in (await self._client.run(steps)).items():
            if key in self.core.owned:
                self.core.seek(key, offset)

    async def seek_to_committed(self, partitions: Iterable[Partition] | None) -> None:
        """Go back to what the group has committed, or else to the start, in these partitions or all."""
        await self._opened()
        keys = self._owned(partitions)
        committed = await self.offsets.settled(keys)
        fresh = [key for key in keys if key not in committed]
        steps = find_offsets(self._client.core, fresh, self._start, isolation_level=self.config.isolation)
        offsets = await self._client.run(steps)
        for key in keys:
            if key in self.core.owned:
                self.core.seek(key, *(committed[key][:2] if key in committed else (offsets[key],)))

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
        since_ms = None if self._thread is None else self._thread.waits_since_ms
        waits_ms = 0 if since_ms is None else max(0, _now_ms() - since_ms)
        return ConsumerFigures(time.monotonic() - self._begun, fetches, self.core.partition_figures(), waits_ms)

    def _owned(self, partitions: Iterable[Partition] | None) -> list[Partition]:
        """Return the partitions, or all owned ones. Raise ClientError for one that is not owned."""
        owned = self.core.owned
        wanted = sorted(owned) if partitions is None else list(partitions)
        for partition in wanted:
            check_pair(partition)
        strange = [key for key in wanted if key not in owned]
        if strange:
            raise ClientError(f"this consumer does not own {named(strange)}; it owns {named(owned) or _NOTHING_YET}")
        return wanted

    # --- the end

    async def close(self) -> None:
        """Commit the processed records if commits are by time, and leave the group. Harmless if repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake.set()
        for task in self._tasks.values():
            task.cancel()
        if self._want_call is not None:
            self._want_call.cancel()
        try:
            if self._thread is not None:
                if self.config.auto_commit_interval_ms is not None:
                    await self.offsets.commit_last(key for key in self.core.owned if self._thread.owns(key))
                await self._leave(self._thread)
        finally:  # also if this call is cancelled
            if self._thread is not None:
                self._thread.leave()
            self._client.close()
            await self._fetches.close()

    async def _leave(self, thread: GroupThread) -> None:
        """Leave the group, and wait for the answer. At the end of a program no other thread can be begun for that."""
        thread.leave()
        end = time.monotonic() + CLOSE_SECONDS
        while thread.is_alive and time.monotonic() < end:
            await asyncio.sleep(LEAVE_SECONDS)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
