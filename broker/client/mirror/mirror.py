"""SHELL (asyncio): a mirror of one source: a consumer of a group at the source, and an Outlet to the target.

    mirror = Mirror(settings)
    await mirror.open()  # raises what is wrong with the settings
    await mirror.run()  # until `stop` is called
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from broker.client.asyncio import AsyncClient
from broker.client.consumer_config import READ_COMMITTED, ConsumerConfig
from broker.client.consumer_core import ConsumerCore
from broker.client.consumer_engine import ASSIGNED, REVOKED, ConsumerEngine, Rebalance
from broker.client.consumer_offsets import passes
from broker.client.core import TopicInfo
from broker.client.errors import BrokerError, ClientError, CommitFailed, MustAbort, ProducerFenced, Unreachable
from broker.client.group_admin import committed_offsets, list_groups
from broker.client.group_requests import CommittedOffset
from broker.client.leaders import Partition
from broker.client.mirror.checkpoints import Checkpoints
from broker.client.mirror.figures import MirrorFigures, PartitionLag
from broker.client.mirror.group_offsets import GroupOffsets
from broker.client.mirror.names import (
    INTERNAL_PREFIX,
    MirrorRefused,
    check_opposite,
    copy_group,
    leads_to,
    mirror_group,
    topics_to_copy,
)
from broker.client.mirror.offset_pairs import OffsetPairs
from broker.client.mirror.outlet import Outlet
from broker.client.mirror.progress import PartitionProgress
from broker.client.mirror.record_edit import record_edit
from broker.client.mirror.settings import MirrorSettings
from broker.client.mirror.source_batch import BatchReader, RecordEdit, SourceBatch, handed, outgoing
from broker.client.mirror.target_topics import TargetTopics
from broker.client.mirror.transactional_copy import TransactionalCopy
from broker.client.offset_spec import Earliest
from broker.client.subscription import subscription
from broker.client.timed_wait import wait_for_event
from broker.record.batch import CorruptBatch
from broker.record.compression import DECOMPRESSED_BYTES_MAX

BATCHES_MAX = 500  # batches of one turn
STEP_SECONDS = 0.5
SETTLE_SECONDS = 10.0  # the longest wait for the target's acknowledgements before a partition is handed over
RETRY_SECONDS = 0.5
POLL_MS_MAX = 60_000  # max.poll.interval.ms: the loop comes round every second, but for a target that is away

NONE = CommittedOffset(-1)

T = TypeVar("T")

_log = logging.getLogger("broker.client.mirror")


class Mirror:
    """A mirror of one source. All calls are made on the loop."""

    def __init__(self, settings: MirrorSettings) -> None:
        self.settings = settings
        self.stopped: dict[str, str] = {}
        """The source's topics that are no longer copied, and why."""
        self.group = ""
        self._source = AsyncClient(settings.source.servers)
        self._target = AsyncClient(settings.target.servers)
        self._outlet = Outlet(AsyncClient("", core=self._target.core), self._answered)
        self._topics = TargetTopics(self._source, self._target, settings.prefix)
        self._checkpoints = Checkpoints(self._target)
        self._progress: dict[Partition, PartitionProgress] = {}
        self._engine: ConsumerEngine | None = None
        self._edit: RecordEdit | None = None
        self._transactions = AsyncClient("", core=self._target.core)
        self._copies: dict[Partition, TransactionalCopy] = {}  # with exactly_once
        self._failed: set[Partition] = set()
        self._change = asyncio.Event()
        self._is_stopping = False
        self._copied_bytes = 0
        self._copied_records = 0
        self._since = time.monotonic()

    # --- the beginning and the end

    async def open(self) -> list[str]:
        """Look up both clusters, and return the names of the topics to copy now. Raise MirrorRefused, ClientError."""
        topics = await self._source.topics()
        await self._target.topics()
        source_id, target_id = self._source.core.cluster_id, self._target.core.cluster_id
        if source_id == target_id and not self.settings.prefix:
            raise MirrorRefused(
                f"the source and the target are one cluster ({source_id}); give --prefix to copy topics within it"
            )
        self.group = mirror_group(self.settings.name, str(target_id))
        self._checkpoints.group = copy_group(self.settings.name, str(source_id))
        names = topics_to_copy(topics, self.settings.topics)
        if not self.settings.two_way:
            await self._check_opposite(str(source_id), names)
        self._edit = record_edit(
            str(source_id), str(target_id), source_id=self.settings.source_id, two_way=self.settings.two_way
        )
        config = ConsumerConfig(
            isolation_level=READ_COMMITTED,
            auto_commit_interval_ms=None,
            metadata_max_age_ms=self.settings.refresh_ms,
            session_timeout_ms=self.settings.session_ms,
            heartbeat_interval_ms=self.settings.session_ms // 4,
            max_poll_interval_ms=POLL_MS_MAX,
            group_instance_id=self.settings.instance,
        )
        core = ConsumerCore(
            config, DECOMPRESSED_BYTES_MAX, BatchReader, stops_at_gaps=not self.settings.skip_lost
        )
        pattern = re.compile(f"(?!{INTERNAL_PREFIX})(?:{self.settings.topics.pattern})")
        subscribed = subscription(pattern, None, self.group)
        self._engine = ConsumerEngine(
            self.settings.source.servers, subscribed, self.group, Earliest(), config, core
        )
        return names

    async def _check_opposite(self, source_id: str, names: Iterable[str]) -> None:
        """Raise MirrorRefused if records would go round without end."""
        core = self._target.core
        targets = [self.settings.prefix + name for name in names]
        for listed in await self._target.run(list_groups(core)):
            if leads_to(listed.group_id, source_id):
                offsets = await self._target.run(committed_offsets(core, listed.group_id))
                check_opposite(listed.group_id, (topic for topic, _ in offsets), targets)

    async def run(self) -> None:
        """Copy until `stop` is called. Raise the error that no retry can mend."""
        groups = GroupOffsets(self._source, self._target, self._target_of)
        work = (
            self._commit_by_time(),
            self._refresh_by_time(),
            groups.follow_by_time(self.settings.groups_ms, self._pairs),
        )
        tasks = [asyncio.create_task(steps) for steps in (self._copy(self._opened), *work)]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:  # the copy, after `stop`; or an error of any of them
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    def stop(self) -> None:
        """Let `run` end: it waits for the target's acknowledgements, commits and leaves the group."""
        self._is_stopping = True
        self._change.set()

    async def _close(self) -> None:
        engine = self._opened
        with suppress(ClientError):
            await self._hand_over(self._progress)
        await self._outlet.close()
        for copy in self._copies.values():
            await copy.close()
        with suppress(ClientError):
            await engine.close()
        for client in (self._outlet.client, self._transactions, self._source, self._target):
            client.close()

    @property
    def _opened(self) -> ConsumerEngine:
        assert self._engine is not None, "call open() first"
        return self._engine

    # --- copying

    async def _copy(self, engine: ConsumerEngine) -> None:
        while not self._is_stopping:
            step = await engine.step(BATCHES_MAX, time.monotonic() + STEP_SECONDS)
            if isinstance(step, Rebalance):
                await self._rebalance(engine, step)
                await engine.settle(step)
                continue
            self._look_after(engine)
            failed = [key for key in sorted(self._failed) if key in engine.core.owned]
            if failed:
                await asyncio.sleep(RETRY_SECONDS)
                self._failed.clear()
                await self._take_over(engine, failed)
                continue
            if self._queued_bytes >= self.settings.queue_bytes_max:
                await self._wait_for_answer()
            elif step:
                for batch in handed(engine.core, BATCHES_MAX):
                    self._send(batch)

    @property
    def _queued_bytes(self) -> int:
        return self._outlet.sender.queued_bytes + sum(copy.queued_bytes for copy in self._copies.values())

    def _send(self, batch: SourceBatch) -> None:
        key = batch.topic, batch.partition
        if batch.topic in self.stopped or key in self._failed:
            return
        progress = self._progress[key]
        try:
            batches = outgoing(batch, self._edit)
        except CorruptBatch as error:
            self._stop_topic(batch.topic, f"a batch at offset {batch.first} cannot be decoded: {error}")
            return
        taken = progress.take(batch.first, batch.offset + 1, len(batches))
        if key in self._copies:
            self._copies[key].put(taken, batches)
            return
        for outgoing_batch in batches:
            count, size = outgoing_batch.record_count, len(outgoing_batch.data)

            def acknowledge(offset: int | None, count: int = count, size: int = size) -> None:
                progress.acknowledged(taken, offset, count, size)

            self._outlet.send(self._target_of(key), outgoing_batch, acknowledge)

    def _target_of(self, key: Partition) -> Partition:
        """Return the target's partition of one of the source."""
        return self.settings.prefix + key[0], key[1]

    def _pairs(self) -> dict[Partition, OffsetPairs]:
        return {key: progress.pairs for key, progress in self._progress.items() if key[0] not in self.stopped}

    def _answered(self) -> None:
        self._change.set()

    async def _wait_for_answer(self) -> None:
        self._change.clear()
        await wait_for_event(self._change, STEP_SECONDS)

    def _look_after(self, engine: ConsumerEngine) -> None:
        """Stop the topics with gaps at the source, and those that the target refuses."""
        for gap in engine.core.take_gaps():
            self._stop_topic(
                gap.key[0],
                f"partition {gap.key[1]} was to go on at offset {gap.offset}: {gap.reason}; "
                "--skip-lost goes on at the first offset that is there",
            )
        for (name, number), error in self._outlet.take_stopped():
            topic = name.removeprefix(self.settings.prefix)
            self._stop_topic(topic, f"the target refuses a batch of partition {number}: {error}")

    def _stop_topic(self, topic: str, reason: str) -> None:
        if topic not in self.stopped:
            self.stopped[topic] = reason
            _log.error("topic %s is no longer copied: %s", topic, reason)
        self._opened.core.pause(key for key in self._opened.core.owned if key[0] == topic)

    # --- the group

    async def _rebalance(self, engine: ConsumerEngine, change: Rebalance) -> None:
        if change.kind == ASSIGNED:
            await self._take_over(engine, change.partitions)
            return
        if change.kind == REVOKED:
            with suppress(ClientError):
                await self._hand_over(change.partitions)
        self._outlet.drop(map(self._target_of, change.partitions))
        for key in change.partitions:
            self._let_go(key)
            self._failed.discard(key)
            if key in self._copies:
                await self._copies.pop(key).close()

    def _let_go(self, key: Partition) -> None:
        """Forget the progress of a partition, but for what it copied."""
        progress = self._progress.pop(key, None)
        if progress is not None:
            self._copied_records += progress.copied_records
            self._copied_bytes += progress.copied_bytes

    async def _take_over(self, engine: ConsumerEngine, partitions: Iterable[Partition]) -> None:
        """Prepare the partitions that the group has given to this mirror."""
        wanted = sorted(partitions)
        topics = await self._patiently(lambda: self._follow({topic for topic, _ in wanted}))
        ids = {topic.name: topic.id for topic in topics}
        stored = await self._patiently(lambda: engine.offsets.settled(wanted))
        firsts: dict[Partition, CommittedOffset] = {}
        if self.settings.exactly_once:
            await self._fence(wanted)
        copied = await self._patiently(lambda: self._checkpoints.read(map(self._target_of, wanted)))
        for key in wanted:
            committed, checkpoint = stored.get(key, NONE), copied.get(self._target_of(key), NONE)
            if self.settings.exactly_once:
                committed = checkpoint
            progress = PartitionProgress(ids.get(key[0]), committed.metadata, checkpoint.metadata)
            self._let_go(key)
            self._progress[key] = progress
            if key in self._copies:
                await self._seek_to_checkpoint(engine, key, checkpoint)
                self._copies[key].begin(progress)
            if progress.is_recreated and self.settings.skip_lost:
                await self._patiently(lambda: engine.seek_to(Earliest(), [key]))  # noqa: B023
            elif progress.is_recreated:
                self._stop_topic(key[0], "it was made again at the source; --skip-lost copies the new one too")
            elif committed.offset >= 0:
                progress.committed(committed.offset)
            if key[0] in self.stopped:
                engine.core.pause([key])
            elif not self.settings.exactly_once and (progress.is_recreated or not checkpoint.metadata):
                firsts[self._target_of(key)] = progress.first_commit(committed.offset)
        if firsts:
            await self._patiently(lambda: self._checkpoints.write(firsts))

    async def _fence(self, keys: Iterable[Partition]) -> None:
        """Let no other mirror copy these partitions any more."""
        group = self._checkpoints.group
        for key in keys:
            if key in self._copies:
                await self._copies.pop(key).close()
            topic, number = self._target_of(key)
            copy = TransactionalCopy(
                self._transactions, f"{group}.{topic}-{number}", group, (topic, number), self._answered,
                partial(self._copy_failed, key),
            )  # fmt: skip
            await self._patiently(copy.open)
            self._copies[key] = copy

    async def _seek_to_checkpoint(self, engine: ConsumerEngine, key: Partition, checkpoint: CommittedOffset) -> None:
        """Go on where the target's transactions ended, which counts more than what the source knows."""
        if checkpoint.offset >= 0:
            await engine.seek(key, checkpoint.offset)
        else:
            await self._patiently(lambda: engine.seek_to(Earliest(), [key]))

    def _copy_failed(self, key: Partition, error: ClientError) -> None:
        """A transaction of a partition failed: open it anew in the next turn, or stop its topic."""
        if isinstance(error, (MustAbort, ProducerFenced)):
            _log.warning("%s-%d: %s; it is opened anew", *key, error)
            self._failed.add(key)
        else:
            self._stop_topic(key[0], f"the target refuses a transaction of partition {key[1]}: {error}")
        self._change.set()

    async def _hand_over(self, partitions: Iterable[Partition]) -> None:
        """Wait for the target's acknowledgements, and commit."""
        end = time.monotonic() + SETTLE_SECONDS
        keys = list(partitions)
        while time.monotonic() < end and any(
            not self._progress[key].is_settled for key in keys if key in self._progress and key[0] not in self.stopped
        ):
            await self._wait_for_answer()
        await self._commit(keys)

    async def _follow(self, names: Iterable[str]) -> list[TopicInfo]:
        """Let the target have these topics, and return them."""
        topics = await self._source.run(self._source.core.metadata(sorted(names)))
        await self._topics.follow(topics)
        return topics

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat work until no broker is away."""
        last = ""
        while True:
            try:
                return await work()
            except (BrokerError, Unreachable, CommitFailed) as error:
                if self._is_stopping or (isinstance(error, (BrokerError, Unreachable)) and not passes(error)):
                    raise
                if str(error) != last:
                    last = str(error)
                    _log.warning("%s; it is asked again", error)
            await asyncio.sleep(RETRY_SECONDS)

    # --- work by time

    async def _commit_by_time(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_ms / 1000)
            try:
                await self._commit(list(self._progress))
            except ClientError as error:
                _log.warning("%s; the next commit tries again", error)

    async def _commit(self, keys: Iterable[Partition]) -> None:
        core, offsets = self._opened.core, {}
        for key in keys:
            progress = self._progress.get(key)
            if progress is None or key not in core.owned or key[0] in self.stopped:
                continue
            position = core.position(key)
            if position is not None:
                progress.skip(position)
            committed = progress.to_commit()
            if committed is not None:
                offsets[key] = committed
        if offsets:
            await self._opened.offsets.commit(offsets)
            if not self.settings.exactly_once:
                await self._checkpoints.write({self._target_of(key): offset for key, offset in offsets.items()})
            for key, committed in offsets.items():
                if key in self._progress:
                    self._progress[key].committed(committed.offset)

    async def _refresh_by_time(self) -> None:
        """Let the target's topics grow with the source's."""
        while True:
            await asyncio.sleep(self.settings.refresh_ms / 1000)
            names = {topic for topic, _ in self._progress}
            if names:
                try:
                    await self._follow(names)
                except ClientError as error:
                    _log.warning("topics: %s; they are looked up again", error)

    # --- figures

    def figures(self) -> MirrorFigures:
        """Return the figures until now."""
        partitions = {
            key: PartitionLag(self._progress[key].position, figures.end)
            for key, figures in self._opened.core.partition_figures().items()
            if key in self._progress
        }
        seconds = time.monotonic() - self._since
        records = self._copied_records + sum(progress.copied_records for progress in self._progress.values())
        size = self._copied_bytes + sum(progress.copied_bytes for progress in self._progress.values())
        return MirrorFigures(seconds, records, size, partitions, dict(self.stopped))
