"""The markers that end a producer's transaction in each of its partitions.

Coordinators hand their markers to `TransactionMarkers`, which writes each to the leader of its partition. Requests for
markers (WriteTxnMarkers) are written by `RequestedMarkers`, here at their leader. If a partition cannot take a marker
now, its end stays open, and the coordinator tries it again.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeAlias

from broker.log import log_appender
from broker.log.partition_log import PartitionLog
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from broker.now import Now
from broker.record.control import Marker
from broker.replication.stored_end import check_in_sync
from broker.services.coordinator_topic import CoordinatorPorts, once_stored
from broker.services.due_actions import MARKERS_AT_ONCE, DueActions
from broker.stamping.id_stamper import Backpressure
from broker.txn.coordinator import Partition
from broker.wire.errors import ApiError, ErrorCode
from idgen.errors import IdError, SequenceExhausted

OffsetsEnded: TypeAlias = Callable[[int, int, bool, Now], None]
"""Receives the marker of a partition of __consumer_offsets: (partition, producer id, True for a commit, now)."""

Tried: TypeAlias = Callable[[Partition, bool, Now], None]
"""Receives the outcome of a marker: (partition, True if the partition has it or must not have it, now)."""

EndEarlier: TypeAlias = Callable[[PartitionLog, int, Now], bool]
"""Ends what a producer left open in a log before its present transaction. Returns True if nothing of that is left."""


class PartitionEnd(NamedTuple):
    """The end of a producer's transaction in one partition."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    marker: Marker
    """Its coordinator epoch is the leader epoch of the transaction's partition of `__transaction_state`."""


class TransactionMarkers(Protocol):
    """Writes the markers of coordinators to the leaders of their partitions."""

    def write(self, ends: Iterable[PartitionEnd], tried: Tried, now: Now) -> None:
        """Write a marker for each end to its partition's leader.

        Call `tried` once for each partition, in any order: before this returns, or later, when its leader has answered
        or could not be reached. So the markers for other brokers can be gathered into one request to each.
        """


class MarkerOutcomes:
    """Decides which refused markers are tried again, and informs the operator of them once for each partition.

    A marker must never be written if the producer has a later epoch, or if the partition was deleted. A later epoch of
    the coordinator (TRANSACTION_COORDINATOR_FENCED) is no such error. Another broker may coordinate the transaction by
    now, and this one has not heard of it; until then the end stays open, and no partition takes its markers.
    """

    def __init__(self, ports: CoordinatorPorts) -> None:
        self._ports = ports
        self._failing: set[Partition] = set()

    def written(self, partition: Partition) -> None:
        self._failing.discard(partition)

    def is_settled(self, partition: Partition, error: ApiError | IdError) -> bool:
        """Return True if a refused marker needs no retry."""
        if isinstance(error, ApiError) and error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            return True
        if not self._exists(partition):
            return True
        if partition not in self._failing:
            self._failing.add(partition)
            name = f"{partition[0]}-{partition[1]}"
            self._ports.report(f"transactions in {name} cannot be ended, and are tried again: {error}")
        return False

    def _exists(self, partition: Partition) -> bool:
        topic = self._ports.metadata.topic(partition[0])
        return topic is not None and partition[1] < len(topic.partitions)


class LocalMarkers:
    """Writes markers into the logs of the partitions that this node leads.

    A partition with another leader takes no marker here, so its end is tried again.
    """

    def __init__(self, ports: CoordinatorPorts, offsets_ended: OffsetsEnded) -> None:
        self._ports = ports
        self._offsets_ended = offsets_ended
        self.outcomes = MarkerOutcomes(ports)
        self.end_earlier: EndEarlier = lambda log, producer_id, now: True
        """Called before each marker. If it returns False, the marker is tried again later."""

    def write(self, ends: Iterable[PartitionEnd], tried: Tried, now: Now) -> None:
        """Write the markers now. See `TransactionMarkers`.

        A marker counts when it is on all replicas in sync, and on the disk if its topic requires that. Otherwise a new
        leader, or a power cut, could lack the marker of a transaction that is complete, and nothing would end it in
        that partition.
        """
        for end in ends:
            self._try(end, tried, now)

    def _try(self, end: PartitionEnd, tried: Tried, now: Now) -> None:
        """Write a partition's marker."""
        try:
            log = self._ports.log_of(*end.partition)
        except ApiError as error:
            tried(end.partition, self.outcomes.is_settled(end.partition, error), now)
            return
        is_settled = self.end_earlier(log, end.producer_id, now) and self.try_append(
            log, end.producer_id, end.producer_epoch, end.marker, now
        )
        if not is_settled:
            tried(end.partition, False, now)
            return
        once_stored(self._ports, log, lambda is_stored, at: tried(end.partition, is_stored, at), now)

    def try_append(self, log: PartitionLog, producer_id: int, epoch: int, marker: Marker, now: Now) -> bool:
        """Write a marker to a log. Return True if the log has it, or must not have it."""
        try:
            self.append(log, producer_id, epoch, marker, now)
        except (ApiError, IdError) as error:
            return self.outcomes.is_settled((log.topic, log.partition), error)
        self.outcomes.written((log.topic, log.partition))
        return True

    def append(self, log: PartitionLog, producer_id: int, epoch: int, marker: Marker, now: Now) -> None:
        """End a producer's transaction in a partition, and do what follows. Raise the errors of `append_marker`."""
        check_in_sync(self._ports.partition_of(log))
        try:
            log_appender.append_marker(log, producer_id, epoch, marker, self._ports.id_stamper, now)
        except SequenceExhausted:
            self._ports.without_ids(log, now)
            raise
        self._ports.appended(log, now)
        if log.topic == GROUP_OFFSETS_TOPIC:
            self._offsets_ended(log.partition, producer_id, marker.commit, now)


class MarkersRequest(Protocol):
    """The markers that a request asks for, without the coordinator (WriteTxnMarkers)."""

    @property
    def left(self) -> int: ...

    def write(self, most: int, now: Now) -> None:
        """Write at most `most` of the remaining markers. Raise Backpressure, writing none, if no ids are available."""

    def finish(self, now: Now) -> None:
        """Write all remaining markers, or have them refused."""


class RequestedMarkers:
    """The requests for many markers, written in slices among all other actions that are due."""

    def __init__(self, due: DueActions, requests_max: int) -> None:
        self._due = due
        self._requests_max = requests_max
        self._requests: dict[MarkersRequest, None] = {}

    @property
    def has_room(self) -> bool:
        """Return True if one more request may have its markers written in slices."""
        return len(self._requests) < self._requests_max

    def write_in_turn(self, request: MarkersRequest, now: Now) -> None:
        """Write the markers that a request asks for in slices."""
        self._requests[request] = None
        self._due.awaited.add(request)
        self._due.later(self._write_some, request, now)

    def _write_some(self, request: MarkersRequest, now: Now) -> int:
        if request not in self._requests:
            return 0  # finished meanwhile
        before = request.left
        try:
            request.write(MARKERS_AT_ONCE, now)
        except Backpressure:
            before += MARKERS_AT_ONCE  # there will be no ids for other actions either
        if request.left:
            self._due.later(self._write_some, request, now)
        else:
            del self._requests[request]
            self._due.awaited.discard(request)
        return before - request.left

    def finish(self, now: Now) -> None:
        """Write all remaining markers at once."""
        requests, self._requests = self._requests, {}
        for request in requests:
            request.finish(now)
            self._due.awaited.discard(request)
