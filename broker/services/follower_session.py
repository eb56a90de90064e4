"""The fetch session of a follower: each fetch costs what changed, however many partitions the session has.

The session keeps the partitions that have changed since they were last looked at. A fetch reads only these, and those
that the request names. It notes those of them whose followers do not rest (`broker.replication.partition`). A partition
is left out once there is nothing to answer and its follower rests. The session listens to the logs of all its
partitions, and takes a partition back after each touch of its log. After a change of the metadata, and in another life
of the follower, all have changed.

A request that waits does so under one key of the purgatory, the session. A touch of a log touches the session at the
end of the turn, so that one answer has the records of all requests that the leader has executed together.

A high watermark alone is no reason for an answer, and its follower serves no client by it. So it goes along with the
partition's next records, or with the answer of a request whose wait is over, or OFFSETS_WAIT_MS later. Kafka tells it
in the next answer, which under load doubles the partitions of an answer.

The partition that has waited longest is read first. A partition that gave records goes to the end.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.replication.partition import Follower, Partition
from broker.services.fetch_session import FetchSession, Owner, WantedPartition, is_at_end
from broker.waiting.purgatory import Purgatory
from broker.wire.fetch import NO_OFFSET, FetchRequest, PartitionKey

OFFSETS_WAIT_MS = 500
"""So long may a follower lack a high watermark while others of its partitions have records: as long as without records
(the default of replica.fetch.wait.max.ms)."""
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
        self.life = _UNKNOWN
        """The broker epoch in which the follower fetches."""
        self._changed = dict.fromkeys(partitions.values())
        """The partitions that may have something new, longest waiting first."""
        self._unnoted = dict.fromkeys(self._changed)
        """The partitions whose fetch the leader's view does not know yet: those that a request has named since."""
        self._by_log: dict[PartitionLog, WantedPartition] = {}
        """The partitions by the logs that the session listens to."""
        self._led: dict[WantedPartition, Partition] = {}
        """The leader's views of these partitions, with their logs."""
        self._resting: dict[PartitionLog, Follower] = {}
        self._touched: dict[PartitionLog, None] = {}
        self._untold: dict[WantedPartition, int] = {}
        """The partitions of which the high watermark alone is news, and when it is due, the earliest first."""
        self._is_wait_over = False
        """True if the answer tells all offsets, because the request has waited for records in vain, or does not wait.
        """

    @property
    def by_log(self) -> Mapping[PartitionLog, WantedPartition]:
        """Return the partitions whose logs are known, by their logs."""
        return self._by_log

    # --- a fetch -------------------------------------------------------------------------------------------------

    def update(self, request: FetchRequest) -> None:
        self._is_wait_over = request.max_wait_ms <= 0
        if request.replica_epoch != self.life:
            self.life = request.replica_epoch
            self._look_at_all()
        partitions = self._partitions
        for requested in request.partitions:
            key = requested.topic, requested.partition
            partition = partitions.get(key)
            if partition is None:
                partition = partitions[key] = WantedPartition(requested)
            else:
                if partition.log in self._resting:
                    self._wake(partition)
                partition.renew(requested)
            self._changed[partition] = self._unnoted[partition] = None
        for key in request.forgotten:
            partition = partitions.pop(key, None)
            if partition is not None:
                self._unlisten(partition)
                self._changed.pop(partition, None)
                self._unnoted.pop(partition, None)
                self._untold.pop(partition, None)

    def to_read(self, generation: int) -> list[WantedPartition]:
        """Return the partitions to read: those that have changed, and those whose high watermark is due."""
        if generation != self._generation:
            self._generation = generation
            self._look_at_all()
        self._touched.clear()
        for partition, due_ms in self._untold.items():
            if due_ms > self.used_ms and not self._is_wait_over:
                break
            self._changed[partition] = None
        return list(self._changed)

    def wait_over(self) -> None:
        """Let the answer tell all high watermarks, because its request has waited for records in vain."""
        self._is_wait_over = True

    def to_note(self, partitions: Iterable[WantedPartition]) -> list[WantedPartition]:
        """Return those of the partitions to read whose fetch must be noted.

        A follower that rests needs no note. A partition that the request does not name is fetched from the same offset
        again. Its follower is noted here, if that tells no more than that the follower is still there.
        """
        resting, unnoted, to_note = self._resting, self._unnoted, []
        for partition in partitions:
            if partition.log in resting:
                continue
            if partition in unnoted or not self._note_again(partition):
                to_note.append(partition)
        return to_note

    def _note_again(self, wanted: WantedPartition) -> bool:
        """Note a fetch that differs from the last one in its time only. Return False if it may tell more.

        While the follower's newest epoch is the leader's, no deletion of the leader makes their logs diverge.
        """
        requested, led = wanted.requested, self._led.get(wanted)
        if led is None or requested.last_fetched_epoch != led.log.leader_epoch:
            return False
        return led.fetched_again(self._follower_id, requested.fetch_offset, self.life, self.used_ms)

    def noted(self, wanted: WantedPartition, log: PartitionLog, partition: Partition) -> None:
        """Note that the leader's view of a partition knows this fetch."""
        self._unnoted.pop(wanted, None)
        if self._led.get(wanted) is not partition:
            self._unlisten(wanted)
            self._led[wanted], self._by_log[log] = partition, wanted
            self._purgatory.listen(log, self)

    def may_wait(self, partitions: Iterable[WantedPartition], generation: int) -> bool:
        """Return True if these partitions have nothing for the follower but offsets, which do not end the wait."""
        for partition in partitions:  # `all` would cost one more call for each partition
            if not is_at_end(partition, generation):
                return False
        return True

    def with_news(self, partitions: Sequence[WantedPartition], generation: int) -> list[WantedPartition]:
        news = []
        for partition in partitions:
            log = partition.log
            if log is None or partition.requested.fetch_offset != log.log_end_offset:
                news.append(partition)  # without a call
            elif not is_at_end(partition, generation) or self._tells_offsets(partition):
                news.append(partition)
            elif self._rests(partition):
                self._changed.pop(partition, None)
        return news

    def _tells_offsets(self, wanted: WantedPartition) -> bool:
        """Return True if the answer tells the follower other offsets. The follower has all records of the log."""
        log = wanted.log
        assert log is not None, "a partition at its log's end has a log"
        if log.log_start_offset != wanted.log_start_offset or wanted.high_watermark == NO_OFFSET:
            return True
        self._note_high_watermark(wanted, log)
        due_ms = self._untold.get(wanted)
        return due_ms is not None and (self._is_wait_over or due_ms <= self.used_ms)

    def _note_high_watermark(self, wanted: WantedPartition, log: PartitionLog) -> None:
        """Note whether the follower is to be told another high watermark."""
        if log.high_watermark == wanted.high_watermark:
            self._untold.pop(wanted, None)
        else:
            self._untold.setdefault(wanted, self.used_ms + OFFSETS_WAIT_MS)

    def _rests(self, wanted: WantedPartition) -> bool:
        """Let the follower of a partition without news rest, if it may."""
        log, partition = wanted.log, self._led.get(wanted)
        if log is None or partition is None or partition.log is not log:
            return False
        if log not in self._resting:
            follower = partition.rest(self._follower_id, self)
            if follower is None:
                return False
            self._resting[log] = follower
        return True

    def _answered(self, partition: WantedPartition, *, has_records: bool) -> None:
        """Look at a partition again that was answered, behind the others if it gave records."""
        self._untold.pop(partition, None)
        if partition in self._changed:  # it is not if the session has forgotten it
            if has_records:
                del self._changed[partition]
            self._changed[partition] = None

    # --- changes -------------------------------------------------------------------------------------------------

    def touched(self, key: Hashable, now: Now) -> None:
        """Take back the partition of a log that has records for the follower, and try to answer the request that waits.
        """
        assert isinstance(key, PartitionLog)
        partition = self._by_log.get(key)
        if partition is None:
            return
        if (
            key.log_end_offset == partition.requested.fetch_offset
            and partition.log_start_offset == key.log_start_offset
            and is_at_end(partition, self._generation)
        ):
            self._note_high_watermark(partition, key)
            return
        self._changed[partition] = None
        follower = self._resting.get(key)
        if follower is not None:
            follower.wake(key)
        self._touched[key] = None
        self._purgatory.touch_at_end(self)

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
        for partition in list(self._led):
            self._unlisten(partition)

    def _look_at_all(self) -> None:
        for partition in self._partitions.values():
            self._wake(partition)
            self._changed[partition] = self._unnoted[partition] = None

    def _unlisten(self, partition: WantedPartition) -> None:
        self._wake(partition)
        led = self._led.pop(partition, None)
        if led is not None:
            del self._by_log[led.log]
            self._touched.pop(led.log, None)
            self._purgatory.unlisten(led.log, self)

    def _wake(self, partition: WantedPartition) -> None:
        led = self._led.get(partition)
        if led is not None and led.log in self._resting:
            self._resting[led.log].wake(led.log)
