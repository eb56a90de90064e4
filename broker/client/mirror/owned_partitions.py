"""SHELL (asyncio): the partitions that the mirror's group has given to this mirror, until it hands them over.

    assigned --> take over: the topic at the target, the offset to go on at --> commits by time --> hand over
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from uuid import UUID

from broker.client.asyncio import AsyncClient
from broker.client.consumer_engine import ASSIGNED, REVOKED, ConsumerEngine, Rebalance
from broker.client.core import TopicInfo
from broker.client.errors import ClientError, MustAbort, ProducerFenced
from broker.client.group_admin import committed_offsets
from broker.client.group_requests import CommittedOffset
from broker.client.leaders import Partition
from broker.client.mirror.checkpoints import Checkpoints
from broker.client.mirror.figures import PartitionLag, TopicCounts
from broker.client.mirror.names import MirrorRefused, TargetNames, both_have
from broker.client.mirror.offset_pairs import OffsetPairs
from broker.client.mirror.outlet import Outlet
from broker.client.mirror.progress import PartitionProgress
from broker.client.mirror.settings import MirrorSettings
from broker.client.mirror.target_topics import TargetTopics
from broker.client.mirror.transactional_copy import TransactionalCopy
from broker.client.mirror.waits import RETRY_SECONDS, Waits
from broker.client.offset_spec import Earliest
from broker.wire.errors import ErrorCode

SETTLE_SECONDS = 10.0  # the longest wait for the target's acknowledgements before a partition is handed over

NONE = CommittedOffset(-1)

REFUSED = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Answers to a batch that another transaction would get again."""

_log = logging.getLogger("broker.client.mirror")


class OwnedPartitions:
    """The partitions that one mirror copies, with the progress of each. All calls are made on the loop."""

    def __init__(
        self,
        settings: MirrorSettings,
        source: AsyncClient,
        target: AsyncClient,
        engine: ConsumerEngine,
        outlet: Outlet,
        copy_group: str,
        names: TargetNames,
        waits: Waits,
    ) -> None:
        self.stopped: dict[str, str] = {}
        """The source's topics that are no longer copied, and why."""
        self.is_paused = False
        self._settings = settings
        self._source = source
        self._target = target
        self._engine = engine
        self._outlet = outlet
        self._names = names
        self._waits = waits
        self._topics = TargetTopics(source, target, settings.prefix)
        self._checkpoints = Checkpoints(target, copy_group)
        self._transactions = AsyncClient("", core=target.core)
        self._progress: dict[Partition, PartitionProgress] = {}
        self._copies: dict[Partition, TransactionalCopy] = {}  # with exactly_once
        self._retry_at: dict[Partition, float] = {}  # partitions to take over again, and when
        self._unshared: set[str] = set()  # topics whose first progress is not at the target, where others would see it
        self._earlier: dict[str, TopicCounts] = {}  # of partitions that were handed over, and failed transactions

    # --- what the copy asks

    def copying(self, key: Partition) -> PartitionProgress | None:
        """Return the progress of a partition, None while nothing of it is copied."""
        if key[0] in self.stopped or key in self._retry_at:
            return None
        return self._progress[key]

    def transactional_copy(self, key: Partition) -> TransactionalCopy | None:
        """Return what copies a partition in transactions, None if no transactions are wanted."""
        return self._copies.get(key)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for transactions of the target."""
        return sum(copy.queued_bytes for copy in self._copies.values())

    def counts(self) -> dict[str, TopicCounts]:
        """Return the counts of each topic."""
        counts = dict(self._earlier)
        for key, progress in self._progress.items():
            counts[key[0]] = counts.get(key[0], TopicCounts()).plus(_counts_of(progress))
        for (name, _), number in self._outlet.sender.errors.items():
            topic = name.removeprefix(self._settings.prefix)
            counts[topic] = counts.get(topic, TopicCounts()).plus(TopicCounts(errors=number))
        return counts

    def pairs(self) -> dict[Partition, OffsetPairs]:
        """Return the pairs of offsets of the partitions that are copied."""
        return {key: progress.pairs for key, progress in self._progress.items() if key[0] not in self.stopped}

    def lags(self) -> dict[Partition, PartitionLag]:
        """Return how far each partition was copied."""
        return {
            key: PartitionLag(self._progress[key].position, figures.end)
            for key, figures in self._engine.core.partition_figures().items()
            if key in self._progress
        }

    def stop_topic(self, topic: str, reason: str) -> None:
        """Copy nothing more of a topic of the source."""
        if topic not in self.stopped:
            self.stopped[topic] = reason
            _log.error("topic %s is no longer copied: %s", topic, reason)
        self._engine.core.pause(key for key in self._engine.core.owned if key[0] == topic)

    def pause(self, is_paused: bool) -> None:
        """Pause the copy of all topics, or resume it. The mirror still commits records that it has sent."""
        if is_paused == self.is_paused:
            return
        self.is_paused = is_paused
        _log.warning("the mirror %s was %s", self._settings.name, "paused" if is_paused else "resumed")
        core = self._engine.core
        if is_paused:
            core.pause(core.owned)
        else:
            core.resume(key for key in core.owned if key[0] not in self.stopped and key not in self._retry_at)

    def look_after(self) -> None:
        """Stop the topics with gaps at the source, and those that the target refuses."""
        for gap in self._engine.core.take_gaps():
            self.stop_topic(
                gap.key[0],
                f"partition {gap.key[1]} was to go on at offset {gap.offset}: {gap.reason}; "
                "--skip-lost goes on at the first offset that is there",
            )
        for (name, number), error in self._outlet.take_stopped():
            topic = name.removeprefix(self._settings.prefix)
            self.stop_topic(topic, f"the target refuses a batch of partition {number}: {error}")

    # --- partitions come and go

    async def rebalance(self, change: Rebalance) -> None:
        """Take partitions over, or hand them over. Raise ClientError."""
        if change.kind == ASSIGNED:
            await self._take_over(change.partitions)
            return
        if change.kind == REVOKED:
            with suppress(ClientError):
                await self.hand_over(change.partitions)
        self._outlet.drop(map(self._settings.target_of, change.partitions))
        for key in change.partitions:
            self._let_go(key)
            self._retry_at.pop(key, None)
            if key in self._copies:
                await self._copies.pop(key).close()

    async def retry(self) -> None:
        """Take partitions over again whose transactions failed, or whose topics were not there. Raise ClientError."""
        now = time.monotonic()
        due = [key for key, at in self._retry_at.items() if at <= now and key in self._engine.core.owned]
        for key in due:
            del self._retry_at[key]
        if due:
            await self._take_over(due)

    async def hand_over_all(self) -> None:
        """Hand all partitions over. Raise ClientError."""
        await self.hand_over(self._progress)

    async def hand_over(self, partitions: Iterable[Partition]) -> None:
        """Wait for the target's acknowledgements, and commit. Raise ClientError."""
        end = time.monotonic() + SETTLE_SECONDS
        keys = list(partitions)
        while time.monotonic() < end and any(
            not self._progress[key].is_settled for key in keys if key in self._progress and key[0] not in self.stopped
        ):
            await self._waits.for_answer()
        if self._settings.skip_lost:
            await self._refresh()  # so that the commit has the ids of topics that were made again
        await self._commit(keys)

    async def close(self) -> None:
        """Copy nothing more."""
        for copy in self._copies.values():
            await copy.close()
        self._transactions.close()

    def _let_go(self, key: Partition) -> None:
        """Forget the progress of a partition, and keep its counts."""
        progress = self._progress.pop(key, None)
        if progress is not None:
            self._count(key[0], _counts_of(progress))

    def _count(self, topic: str, counts: TopicCounts) -> None:
        self._earlier[topic] = self._earlier.get(topic, TopicCounts()).plus(counts)

    async def _take_over(self, partitions: Iterable[Partition]) -> None:
        """Prepare partitions of the group: their topics at the target, and the offsets at which they go on."""
        target_of, repeat = self._settings.target_of, self._waits.repeat
        wanted = sorted(partitions)
        topics = await repeat(lambda: self._follow({topic for topic, _ in wanted}))
        ids = {topic.name: topic.id for topic in topics}
        for key in wanted:
            # It was deleted, or the broker that was asked does not know it yet.
            if key[0] not in ids and key[0] not in self.stopped:
                self._take_over_later(key)
        wanted = [key for key in wanted if key[0] in ids]
        stored = await repeat(lambda: self._engine.offsets.settled(wanted))
        if self._settings.exactly_once:
            await self._fence(wanted)
        copied = await repeat(lambda: self._checkpoints.read(map(target_of, wanted)))
        new = {key[0] for key in wanted if target_of(key) not in copied}
        self._unshared |= new
        await repeat(lambda: self._yield_to_others(new))
        firsts: dict[Partition, CommittedOffset] = {}
        for key in wanted:
            first = await self._begin(key, ids[key[0]], stored.get(key, NONE), copied.get(target_of(key), NONE))
            if first is not None:
                firsts[target_of(key)] = first
        if firsts:
            await repeat(lambda: self._checkpoints.write(firsts))
        if not self._settings.exactly_once:
            await repeat(self._share)

    async def _share(self) -> None:
        """Stop the topics that another source has begun to copy in the same moment. Raise ClientError.

        Each side writes its progress first and then looks for that of the others, so that one of two sees the other.
        With transactions the first one writes the progress.
        """
        shared = {topic for topic, _ in self._progress} & self._unshared
        if self._settings.exactly_once:
            shared = {key[0] for key, progress in self._progress.items() if progress.copied_records} & shared
        await self._yield_to_others(shared)
        self._unshared -= shared

    async def _yield_to_others(self, topics: Iterable[str]) -> None:
        """Stop those of these topics whose target is the copy of another source, perhaps by another process.

        Raise ClientError.
        """
        targets = {self._settings.prefix + topic: topic for topic in topics}
        own = self._settings.source.servers
        for other, group in self._names.others(own).items() if targets else ():
            stored = await self._target.run(committed_offsets(self._target.core, group))
            for target in sorted(targets.keys() & {topic for topic, _ in stored}):
                self.stop_topic(targets[target], both_have(other, own, target))

    def _take_over_later(self, key: Partition) -> None:
        """Hold the records of a partition back until `retry` takes it over."""
        self._retry_at[key] = time.monotonic() + RETRY_SECONDS
        if key in self._engine.core.owned:
            self._engine.core.pause([key])

    async def _begin(
        self, key: Partition, topic_id: UUID | None, committed: CommittedOffset, checkpoint: CommittedOffset
    ) -> CommittedOffset | None:
        """Go on where the last mirror was. Return a first commit for the target, None if it has one."""
        if self._settings.exactly_once:
            committed = checkpoint
        two_way = self._settings.two_way
        progress = PartitionProgress(topic_id, committed.metadata, checkpoint.metadata, two_way=two_way)
        self._let_go(key)
        self._progress[key] = progress
        if key in self._copies:
            await self._seek_to_checkpoint(key, checkpoint)
            self._copies[key].begin(progress)
        if progress.is_recreated and self._settings.skip_lost:
            await self._waits.repeat(lambda: self._engine.seek_to(Earliest(), [key]))
        elif progress.is_recreated:
            self.stop_topic(key[0], "it was made again at the source; --skip-lost copies the new one too")
        elif committed.offset >= 0 and not progress.is_other_way:
            progress.committed(committed.offset)
        if key[0] in self.stopped:
            self._engine.core.pause([key])
            return None
        if self.is_paused:
            self._engine.core.pause([key])
        else:
            self._engine.core.resume([key])
        if not self._settings.exactly_once and (progress.is_recreated or not checkpoint.metadata):
            return progress.first_commit(committed.offset)
        return None

    async def _fence(self, keys: Iterable[Partition]) -> None:
        """Fence other mirrors: from now on only this one copies these partitions."""
        group = self._checkpoints.group
        for key in keys:
            if key in self._copies:
                await self._copies.pop(key).close()
            topic, number = self._settings.target_of(key)
            copy = TransactionalCopy(
                self._transactions, f"{group}.{topic}-{number}", group, (topic, number), self._waits.notify,
                partial(self._copy_failed, key),
            )  # fmt: skip
            await self._waits.repeat(copy.open)
            self._copies[key] = copy

    async def _seek_to_checkpoint(self, key: Partition, checkpoint: CommittedOffset) -> None:
        """Go on where the target's transactions ended, which counts more than what the source knows."""
        if checkpoint.offset >= 0:
            await self._engine.seek(key, checkpoint.offset)
        else:
            await self._waits.repeat(lambda: self._engine.seek_to(Earliest(), [key]))

    def _copy_failed(self, key: Partition, error: ClientError) -> None:
        """A transaction of a partition failed: open it anew after a pause, or stop its topic."""
        self._count(key[0], TopicCounts(errors=1))
        is_refused = isinstance(error, MustAbort) and error.error.code in REFUSED
        if isinstance(error, (MustAbort, ProducerFenced)) and not is_refused:
            _log.warning("%s-%d: %s; it is opened anew", *key, error)
            self._take_over_later(key)
        else:
            self.stop_topic(key[0], f"the target refuses a transaction of partition {key[1]}: {error}")
        self._waits.notify()

    # --- work by time

    async def commit_by_time(self) -> None:
        """Commit at the source and at the target, again and again."""
        while True:
            await asyncio.sleep(self._settings.commit_ms / 1000)
            try:
                await self._commit(list(self._progress))
            except ClientError as error:
                _log.warning("%s; the next commit tries again", error)

    async def refresh_by_time(self) -> None:
        """Look the topics up, again and again."""
        while True:
            await asyncio.sleep(self._settings.refresh_ms / 1000)
            try:
                await self._refresh()
            except ClientError as error:
                _log.warning("topics: %s; they are looked up again", error)

    async def settings_by_time(self) -> None:
        """Give the copies of topics the settings of the source, again and again; never if the interval is 0.

        With two_way, each mirror would undo what was changed at its target, so settings are copied once only.
        """
        while self._settings.settings_ms and not self._settings.two_way:
            await asyncio.sleep(self._settings.settings_ms / 1000)
            try:
                # The mirror that owns the first partition of a topic does it for all.
                names = {topic for topic, number in self._progress if not number} - self.stopped.keys()
                await self._topics.follow_settings(sorted(names))
            except ClientError as error:
                _log.warning("settings of topics: %s; they are copied later", error)
        await self._waits.for_stop()

    async def _refresh(self) -> None:
        """Let the target's topics grow with the source's, and find those that were made again. Raise ClientError."""
        await self._share()
        names = {topic for topic, _ in self._progress} - self.stopped.keys()
        ids = {topic.name: topic.id for topic in await self._follow(names)} if names else {}
        if self._settings.skip_lost:  # a topic that was made again is copied from its beginning
            for (topic, _), progress in self._progress.items():
                progress.follow(ids.get(topic))

    async def _commit(self, keys: Iterable[Partition]) -> None:
        core, offsets = self._engine.core, {}
        for key in keys:
            progress = self._progress.get(key)
            if progress is None or key not in core.owned or key[0] in self.stopped or key in self._retry_at:
                continue
            position = core.position(key)
            if position is not None:
                progress.skip(position)
            committed = progress.to_commit()
            if committed is not None:
                offsets[key] = committed
        if offsets:
            await self._engine.offsets.commit(offsets)
            if not self._settings.exactly_once:
                await self._checkpoints.write({self._settings.target_of(key): offsets[key] for key in offsets})
            for key, committed in offsets.items():
                if key in self._progress:
                    self._progress[key].committed(committed.offset)

    async def _follow(self, names: Iterable[str]) -> list[TopicInfo]:
        """Let the target have these topics, and return those that the source has."""
        topics = []
        for name, topic in (await self._source.run(self._source.core.look_up(sorted(names)))).items():
            if isinstance(topic, TopicInfo):
                try:
                    self._names.claim(self._settings.source.servers, [self._settings.prefix + name])
                except MirrorRefused as taken:
                    self.stop_topic(name, str(taken))
                else:
                    topics.append(topic)
            elif not topic.retriable:
                self.stop_topic(name, f"the source refuses it: {topic}")
        for name, error in (await self._topics.follow(topics)).items():
            self.stop_topic(name, f"the target refuses it: {error}")
        return topics


def _counts_of(progress: PartitionProgress) -> TopicCounts:
    return TopicCounts(progress.copied_records, progress.copied_bytes)
