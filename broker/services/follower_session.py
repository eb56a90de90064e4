"""The fetch session of a follower: each fetch costs what changed, however many partitions the session has.

The session keeps the partitions that have changed since they were last looked at. A fetch reads only these, and those
that the request names. It notes those of them whose followers do not rest (`broker.replication.partition`). A partition
is left out once there is nothing to answer and its follower rests. The session listens to the logs of all its
partitions, and takes a partition back after each touch of its log. After a change of the metadata, and in another life
of the follower, all have changed.

A request that waits does so under one key of the purgatory, the session. A touch of a log touches the session.

The partition that has waited longest is read first. A partition that gave records goes to the end.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.replication.partition import Follower, Partition
from broker.services.fetch_session import FetchSession, Owner, WantedPartition, with_news
from broker.waiting.purgatory import Purgatory
from broker.wire.fetch import FetchedPartition, FetchRequest, FetchResponse, PartitionKey

_UNKNOWN = -1


class FollowerSession(FetchSession):
    """The session of a follower. `used_ms` is the time of its last fetch."""

    def __init__(
        self,
        id: int,
        partitions: dict[PartitionKey, WantedPartition],
        by_id: bool,
        now_ms: int,
        owner: Owner,
        purgatory: Purgatory,
    ) -> None:
        super().__init__(id, partitions, by_id, now_ms)
        self.owner = owner
        self._follower_id, _ = owner
        self._purgatory = purgatory
        self._generation = _UNKNOWN
        self._life = _UNKNOWN
        self._changed = dict.fromkeys(partitions.values())
        """The partitions that may have something new, longest waiting first."""
        self._by_log: dict[PartitionLog, WantedPartition] = {}
        """The partitions by the logs that the session listens to."""
        self._logs: dict[WantedPartition, PartitionLog] = {}
        """The logs by their partitions."""
        self._resting: dict[PartitionLog, Follower] = {}
        self._touched: dict[PartitionLog, None] = {}

    @property
    def by_log(self) -> Mapping[PartitionLog, WantedPartition]:
        """Return the partitions whose logs are known, by their logs."""
        return self._by_log

    # --- a fetch -------------------------------------------------------------------------------------------------

    def update(self, request: FetchRequest) -> None:
        if request.replica_epoch != self._life:
            self._life = request.replica_epoch
            self._look_at_all()
        partitions = self._partitions
        for requested in request.partitions:
            key = requested.topic, requested.partition
            partition = partitions.get(key)
            if partition is None:
                partition = partitions[key] = WantedPartition(requested)
            else:
                self._wake(partition)
                partition.requested = requested
            self._changed[partition] = None
        for key in request.forgotten:
            partition = partitions.pop(key, None)
            if partition is not None:
                self._unlisten(partition)
                self._changed.pop(partition, None)

    def to_read(self, generation: int) -> list[WantedPartition]:
        """Return the partitions to read: those that have changed."""
        if generation != self._generation:
            self._generation = generation
            self._look_at_all()
        self._touched.clear()
        return list(self._changed)

    def to_note(self, partitions: Iterable[WantedPartition]) -> list[WantedPartition]:
        """Return those of the partitions to read whose followers do not rest."""
        logs, resting = self._logs, self._resting
        return [partition for partition in partitions if logs.get(partition) not in resting]

    def noted(self, wanted: WantedPartition, log: PartitionLog, partition: Partition) -> None:
        """Note that the leader's view of a partition knows this fetch."""
        if self._logs.get(wanted) is not log:
            self._unlisten(wanted)
            self._logs[wanted], self._by_log[log] = log, wanted
            self._purgatory.listen(log, self)
        follower = partition.rest(self._follower_id, self)
        if follower is not None:
            self._resting[log] = follower

    def with_news(self, partitions: Sequence[WantedPartition], generation: int) -> list[WantedPartition]:
        news = with_news(partitions, generation, is_follower=True)
        if len(news) < len(partitions):
            have_news = set(news)
            for partition in partitions:
                if partition not in have_news and partition.log in self._resting:
                    self._changed.pop(partition, None)
        return news

    def answer(self, epoch: int, results: list[tuple[WantedPartition, FetchedPartition]]) -> FetchResponse:
        response = super().answer(epoch, results)
        for partition, result in results:
            if result.size:
                self._changed.pop(partition, None)
            if partition.key in self._partitions:
                self._changed[partition] = None
        return response

    # --- changes -------------------------------------------------------------------------------------------------

    def touched(self, key: Hashable, now: Now) -> None:
        """Take back the partition of a log that has changed, and try to answer the request that waits."""
        assert isinstance(key, PartitionLog)
        partition = self._by_log.get(key)
        if partition is not None:
            self._changed[partition] = self._touched[key] = None
            follower = self._resting.get(key)
            if follower is not None and not _is_quiet(key, partition, follower):
                follower.wake(key)
            self._purgatory.touch(self, now)

    def take_touched(self) -> Iterable[PartitionLog]:
        """Return the logs that were touched since the session was last read."""
        touched, self._touched = self._touched, {}
        return touched

    def woken(self, log: PartitionLog) -> None:
        """Note and read a log again, because its follower rests no more."""
        self._resting.pop(log, None)
        partition = self._by_log.get(log)
        if partition is not None:
            self._changed[partition] = None

    def close(self) -> None:
        for partition in list(self._logs):
            self._unlisten(partition)

    def _look_at_all(self) -> None:
        for partition in self._partitions.values():
            self._wake(partition)
            self._changed[partition] = None

    def _unlisten(self, partition: WantedPartition) -> None:
        self._wake(partition)
        log = self._logs.pop(partition, None)
        if log is not None:
            del self._by_log[log]
            self._touched.pop(log, None)
            self._purgatory.unlisten(log, self)

    def _wake(self, partition: WantedPartition) -> None:
        log = self._logs.get(partition)
        if log is not None and log in self._resting:
            self._resting[log].wake(log)


def _is_quiet(log: PartitionLog, partition: WantedPartition, follower: Follower) -> bool:
    """Return True if a change of a log, such as of its high watermark, leaves its follower at its end."""
    return (
        follower.end_offset == log.log_end_offset
        and partition.log_start_offset == log.log_start_offset
        and log.offline is None
    )
