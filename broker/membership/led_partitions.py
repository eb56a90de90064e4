"""The partitions of several copies that this broker leads: their followers' fetches, and the ISRs that it proposes.

    lead      an order of the controller begins a leader epoch, or changes the ISR
    fetched   a follower asks for more, so it has everything before that
    tick      members that have not been at the log's end for replica.lag.time.max.ms leave the ISR

A high watermark that has risen, and an ISR that has changed, may answer the requests that wait for the log.
"""

from collections.abc import Callable

from broker.log.partition_log import PartitionLog
from broker.membership.isr_proposals import IsrProposals
from broker.membership.replica_ports import ReplicaPorts
from broker.metadata.topic import PartitionState
from broker.now import Now
from broker.replication.partition import IsrFigures, Partition


class LedPartitions:
    """See the module."""

    def __init__(self, ports: ReplicaPorts) -> None:
        self._ports = ports
        self.isr_figures = IsrFigures()
        self._proposals = IsrProposals(
            ports.peer_calls, ports.image, ports.broker_id, ports.broker_epoch, self._answered
        )
        self._partitions: dict[PartitionLog, Partition] = {}
        self.find: Callable[[PartitionLog], Partition | None] = self._partitions.get
        """Returns the leader's view of a log's partition; None if this broker does not lead it, or has the only copy.
        Without a call of Python, because each fetch of a follower asks for each of its partitions."""
        self._to_ask: dict[Partition, None] = {}
        """Partitions with a proposal that is asked for at its time."""
        self._check_ms: int | None = None
        """When the lag of all followers is looked at; None while there is no partition."""

    def all(self) -> list[Partition]:
        return list(self._partitions.values())

    def lead(self, log: PartitionLog, state: PartitionState, now: Now) -> None:
        """Take an order of the controller: this broker leads the partition from now on, or with another ISR."""
        partition = self._partitions.get(log)
        if partition is None:
            partition = self._partitions[log] = Partition(log, self._ports.broker_id, self.isr_figures)
            if self._check_ms is None:
                self._check_ms = now.ms + self._check_interval_ms
        if partition.has_taken(state):
            return
        partition.lead(state, now)
        self._ports.touch(log, now)
        self._propose(partition, now)

    def resign(self, log: PartitionLog) -> None:
        """Lead a partition no more. The caller answers the requests that wait for its log."""
        partition = self._partitions.pop(log, None)
        if partition is not None:
            self._to_ask.pop(partition, None)
        if not self._partitions:
            self._check_ms = None

    def fetched(
        self,
        partition: Partition,
        follower_id: int,
        offset: int,
        log_start_offset: int,
        broker_epoch: int,
        now: Now,
    ) -> None:
        """Note a follower's fetch. Raise ApiError as `Partition.follower` does."""
        follower = partition.followers.get(follower_id)
        begins_later = follower is not None and log_start_offset > follower.log_start_offset
        if partition.fetched(follower_id, offset, log_start_offset, broker_epoch, now) or begins_later:
            self._ports.touch(partition.log, now, upto=partition.log.high_watermark)
        if partition.next_deadline_ms() is not None:
            self._propose(partition, now)

    def configured(self, now: Now) -> None:
        """Note that settings of topics have changed, among them perhaps min.insync.replicas."""
        for partition in self.all():
            if partition.configured(now):
                self._ports.touch(partition.log, now)
            self._propose(partition, now)

    # --- proposals -----------------------------------------------------------------------------------------------

    def _propose(self, partition: Partition, now: Now) -> None:
        if partition.next_deadline_ms() is None:
            return
        self._proposals.propose(partition, now)
        if partition.next_deadline_ms() is None:
            self._to_ask.pop(partition, None)
        else:
            self._to_ask[partition] = None

    def _answered(self, partition: Partition, now: Now) -> None:
        """Go on after an answer of the controller. Requests that wait may see another ISR, or high watermark."""
        log = partition.log
        if self._partitions.get(log) is partition:
            self._ports.touch(log, now)
            self._propose(partition, now)

    # --- time ----------------------------------------------------------------------------------------------------

    @property
    def _check_interval_ms(self) -> int:
        return max(self._ports.config().replica_lag_time_max_ms // 2, 1)

    def tick(self, now: Now) -> None:
        """Propose ISRs without late members, and repeat proposals that the controller has refused."""
        if self._check_ms is not None and self._check_ms <= now.ms:
            self._check_ms = now.ms + self._check_interval_ms
            lag_max_ms = self._ports.config().replica_lag_time_max_ms
            for partition in self.all():
                partition.check_lag(lag_max_ms, now)
                self._propose(partition, now)
        for partition in list(self._to_ask):
            self._propose(partition, now)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due; None without a deadline."""
        deadlines = [self._check_ms, *(partition.next_deadline_ms() for partition in self._to_ask)]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)
