"""SHELL (asyncio): a mirror of one source: a consumer of a group at the source, and an Outlet to the target.

    mirror = Mirror(settings)
    await mirror.open()  # raises what is wrong with the settings
    await mirror.run()  # until `stop` is called
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from broker.client.asyncio import AsyncClient
from broker.client.consumer_config import ConsumerConfig
from broker.client.consumer_core import ConsumerCore
from broker.client.consumer_engine import ConsumerEngine, Rebalance
from broker.client.errors import BrokerError, ClientError
from broker.client.fetch_config import READ_COMMITTED
from broker.client.group_admin import committed_offsets, list_groups
from broker.client.mirror.checkpoints import Checkpoints
from broker.client.mirror.control import MirrorControl
from broker.client.mirror.document import fields_of
from broker.client.mirror.figures import PAUSED, RUNNING, MirrorFigures
from broker.client.mirror.group_offsets import GroupOffsets
from broker.client.mirror.names import (
    MirrorRefused,
    TargetNames,
    check_opposite,
    copy_group,
    leads_to,
    mirror_group,
    topic_pattern,
)
from broker.client.mirror.outlet import Outlet
from broker.client.mirror.owned_partitions import OwnedPartitions
from broker.client.mirror.paused_ends import PausedEnds
from broker.client.mirror.progress import is_one_way
from broker.client.mirror.record_edit import record_edit
from broker.client.mirror.settings import MirrorSettings
from broker.client.mirror.source_batch import BatchReader, RecordEdit, SourceBatch, handed, outgoing
from broker.client.mirror.waits import STEP_SECONDS, Waits
from broker.client.offset_spec import Earliest
from broker.client.subscription import Subscription, subscription
from broker.record.batch import CorruptBatch
from broker.record.compression import DECOMPRESSED_BYTES_MAX

BATCHES_MAX = 500  # batches of one turn
TURN_SECONDS = 2.0  # the longest wait for the end of a turn when the mirror stops
POLL_MS_MAX = 60_000  # max.poll.interval.ms: the loop comes round every second, but for a target that is away


class Mirror:
    """A mirror of one source. All calls are made on the loop."""

    def __init__(self, settings: MirrorSettings, names: TargetNames | None = None) -> None:
        """Mirrors of several sources in a process share `names`, so that none copies into another's topic."""
        self.settings = settings
        self._names = TargetNames() if names is None else names
        self.group = self.source_id = ""
        """The mirror's group at its source, and the source's cluster id; known once it is open."""
        self._source = AsyncClient(settings.source.servers, security=settings.source.security)
        self._target = AsyncClient(settings.target.servers, security=settings.target.security)
        self._waits = Waits()
        self._outlet = Outlet(AsyncClient("", core=self._target.core), self._waits.notify)
        self._engine: ConsumerEngine | None = None
        self._partitions: OwnedPartitions | None = None
        self._ends: PausedEnds | None = None
        self._control: MirrorControl | None = None
        self._edit: RecordEdit | None = None
        self._since = time.monotonic()
        self._before: MirrorFigures | None = None  # at the last document

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
        self.source_id = str(source_id)
        self.group = mirror_group(self.settings.name, str(target_id))
        own_copies = self.settings.prefix if source_id == target_id else ""
        subscribed = subscription(topic_pattern(self.settings.topics, own_copies), None, self.group)
        names = subscribed.topics_of(topics)
        await self._check_opposite(str(source_id), names)
        self._names.claim(self.settings.source.servers, (self.settings.prefix + name for name in names))
        self._edit = record_edit(
            str(source_id), str(target_id), source_id=self.settings.source_id, two_way=self.settings.two_way
        )
        progress_group = copy_group(self.settings.name, str(source_id))
        self._names.add(self.settings.source.servers, progress_group)
        self._engine = self._new_engine(subscribed)
        self._partitions = OwnedPartitions(
            self.settings,
            self._source,
            self._target,
            self._engine,
            self._outlet,
            progress_group,
            self._names,
            self._waits,
        )
        self._ends = PausedEnds(self._source, self._partitions)
        self._control = MirrorControl(self._target, self.settings.name, str(source_id), self._fields)
        with suppress(BrokerError):  # such as a missing right: the copy begins without orders
            self._partitions.pause(await self._waits.repeat(self._control.is_paused))
        return names

    def _new_engine(self, subscribed: Subscription) -> ConsumerEngine:
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
        security = self._source.core.security
        return ConsumerEngine(
            self.settings.source.servers, subscribed, self.group, Earliest(), config, core, security
        )

    async def _check_opposite(self, source_id: str, names: Iterable[str]) -> None:
        """Raise MirrorRefused if records would go round without end."""
        core = self._target.core
        targets = [self.settings.prefix + name for name in names]
        for listed in await self._target.run(list_groups(core)):
            if leads_to(listed.group_id, source_id):
                offsets = await self._target.run(committed_offsets(core, listed.group_id))
                if self.settings.two_way:  # then the other mirror has to be one of two, too
                    stored = await Checkpoints(self._target, listed.group_id).read(offsets)
                    offsets = {key: commit.offset for key, commit in stored.items() if is_one_way(commit.metadata)}
                check_opposite(listed.group_id, (topic for topic, _ in offsets), targets)

    async def run(self) -> None:
        """Copy until `stop` is called. Raise the error that no retry can mend."""
        engine, partitions, control = self._opened
        groups = GroupOffsets(self._source, self._target, self.settings.target_of)
        work = (
            self._copy(engine, partitions),
            partitions.commit_by_time(),
            partitions.refresh_by_time(),
            partitions.settings_by_time(),
            groups.follow_by_time(self.settings.groups_ms, partitions.pairs),
            control.follow_by_time(self.settings.control_ms, partitions.pause),
            self._paused_ends.follow_by_time(self.settings.control_ms),
        )
        tasks = [asyncio.create_task(steps) for steps in work]
        stop = asyncio.create_task(self._waits.for_stop())
        try:
            await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            if stop.done():  # let the copy end its turn, unless that waits for a broker that is away
                await asyncio.wait(tasks[:1], timeout=TURN_SECONDS)
            passing = (ClientError,) if stop.done() else ()
            for task in tasks:
                if task.done():
                    with suppress(*passing):
                        task.result()
        finally:
            for task in (*tasks, stop):
                task.cancel()
            await asyncio.gather(*tasks, stop, return_exceptions=True)
            await self._close(engine, partitions, control)

    def stop(self) -> None:
        """Let `run` end: it waits for the target's acknowledgements, commits and leaves the group."""
        self._waits.stop()

    async def _close(self, engine: ConsumerEngine, partitions: OwnedPartitions, control: MirrorControl) -> None:
        with suppress(ClientError):
            await partitions.hand_over_all()
        await self._outlet.close()
        await partitions.close()
        with suppress(ClientError):
            await engine.close()
        if self._waits.is_stopping:
            await control.end()
        for client in (self._outlet.client, self._source, self._target):
            client.close()

    @property
    def _opened(self) -> tuple[ConsumerEngine, OwnedPartitions, MirrorControl]:
        assert self._engine is not None and self._partitions is not None and self._control is not None, "open() first"
        return self._engine, self._partitions, self._control

    @property
    def _paused_ends(self) -> PausedEnds:
        assert self._ends is not None, "open() first"
        return self._ends

    # --- copying

    async def _copy(self, engine: ConsumerEngine, partitions: OwnedPartitions) -> None:
        while not self._waits.is_stopping:
            # The first step looks up topics, and so fails while the source is away.
            step = await self._waits.repeat(lambda: engine.step(BATCHES_MAX, time.monotonic() + STEP_SECONDS))
            if isinstance(step, Rebalance):
                await partitions.rebalance(step)
                await engine.settle(step)
                continue
            partitions.look_after()
            await partitions.retry()
            if self._outlet.sender.queued_bytes + partitions.queued_bytes >= self.settings.queue_bytes_max:
                await self._waits.for_answer()
            elif step:
                for batch in handed(engine.core, BATCHES_MAX):
                    self._send(partitions, batch)

    def _send(self, partitions: OwnedPartitions, batch: SourceBatch) -> None:
        key = batch.topic, batch.partition
        progress = partitions.copying(key)
        if progress is None:
            return
        try:
            batches = outgoing(batch, self._edit)
        except CorruptBatch as error:
            partitions.stop_topic(batch.topic, f"a batch at offset {batch.first} cannot be decoded: {error}")
            return
        taken = progress.take(batch.first, batch.offset + 1, len(batches))
        copy = partitions.transactional_copy(key)
        if copy is not None:
            copy.put(taken, batches)
            return
        for outgoing_batch in batches:
            count, size = outgoing_batch.record_count, len(outgoing_batch.data)

            def acknowledge(offset: int | None, count: int = count, size: int = size) -> None:
                progress.acknowledged(taken, offset, count, size)

            self._outlet.send(self.settings.target_of(key), outgoing_batch, acknowledge)

    # --- figures

    def figures(self) -> MirrorFigures:
        """Return the figures until now."""
        _, partitions, _ = self._opened
        return MirrorFigures(
            time.monotonic() - self._since,
            partitions.counts(),
            self._paused_ends.lags(),
            dict(partitions.stopped),
            PAUSED if partitions.is_paused else RUNNING,
        )

    def _fields(self) -> dict[str, Any]:
        """Return the figures as data for JSON, with the rates since the last call."""
        before, self._before = self._before, self.figures()
        return fields_of(self.settings, self.group, before, self._before)
