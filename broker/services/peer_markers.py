"""Markers of a cluster: each is written by the leader of its partition, which another broker may be.

The markers for another broker are gathered into one WriteTxnMarkers a turn. Its answer has an error for each partition,
and `MarkerOutcomes` decides which markers are tried again, as the request's handler in Kafka does
(TransactionMarkerRequestCompletionHandler). A marker whose answer was lost is written twice. The second changes
nothing, because the producer begins its next transaction only after the end is complete.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from kio.schema.types import ProducerId, TopicName
from kio.schema.write_txn_markers.v1.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.static.primitive import i16, i32

from broker.membership.peer_batches import PeerBatches
from broker.membership.peer_calls import PeerCalls
from broker.now import Now
from broker.services.coordinator_topic import CoordinatorPorts
from broker.services.due_actions import MARKERS_AT_ONCE
from broker.services.transaction_markers import LocalMarkers, PartitionEnd, Tried
from broker.txn.coordinator import Partition
from broker.wire.errors import ApiError, ErrorCode

MARKERS_MAX = MARKERS_AT_ONCE
"""The markers of a request. Its leader writes as many at once, so that none waits for its turn."""


class _Sent(NamedTuple):
    """A marker that another broker shall write."""

    end: PartitionEnd
    tried: Tried


class PeerMarkers:
    """Writes markers at the leaders of their partitions, `local` those of the partitions that are led here."""

    def __init__(self, ports: CoordinatorPorts, local: LocalMarkers, calls: PeerCalls) -> None:
        self._ports = ports
        self._local = local
        self._outcomes = local.outcomes
        self._batches: PeerBatches[_Sent] = PeerBatches(calls, MARKERS_MAX, _request_of, self._settle)
        self._silent: set[int] = set()
        """The brokers that did not answer, so that the operator is informed of each once."""

    def write(self, ends: Iterable[PartitionEnd], tried: Tried, now: Now) -> None:
        """Write the markers, or have them written. See `TransactionMarkers`."""
        for end in ends:
            leader = self._leader_of(end.partition)
            if leader == self._ports.node_id:
                self._local.write((end,), tried, now)
            elif leader in self._ports.metadata.live_ids:
                self._batches.add(leader, _Sent(end, tried), now)
            else:
                error = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no live leader")
                tried(end.partition, self._outcomes.is_settled(end.partition, error), now)

    def _leader_of(self, partition: Partition) -> int:
        """Return the id of the leader. For a partition that does not exist it is this broker's, which finds that out.

        A broker learns that it leads a partition before the metadata says so.
        """
        try:
            self._ports.log_of(*partition)
        except ApiError:
            topic = self._ports.metadata.topic(partition[0])
            if topic is not None and partition[1] < len(topic.partitions):
                return topic.partitions[partition[1]].leader
        return self._ports.node_id

    def _settle(self, broker_id: int, sent: list[_Sent], response: Any | None, now: Now) -> None:
        """Pass on the outcome of each marker of a request."""
        if response is None:
            if broker_id not in self._silent:
                self._silent.add(broker_id)
                reason = f"broker {broker_id} does not answer"
                self._ports.report(f"transactions in its partitions cannot be ended, and are tried again: {reason}")
            for end, tried in sent:
                tried(end.partition, False, now)
            return
        self._silent.discard(broker_id)
        codes = {
            (marker.producer_id, topic.name, result.partition_index): ErrorCode(result.error_code)
            for marker in response.markers
            for topic in marker.topics
            for result in topic.partitions
        }
        for end, tried in sent:
            code = codes.get((end.producer_id, *end.partition), ErrorCode.UNKNOWN_SERVER_ERROR)
            tried(end.partition, self._is_settled(end.partition, broker_id, code), now)

    def _is_settled(self, partition: Partition, broker_id: int, code: ErrorCode) -> bool:
        if code is ErrorCode.NONE:
            self._outcomes.written(partition)
            return True
        return self._outcomes.is_settled(partition, ApiError(code, f"broker {broker_id} answers {code.name}"))


def _request_of(sent: list[_Sent]) -> WriteTxnMarkersRequest:
    """Return the request for some markers. The markers of one transaction share an entry, as in Kafka."""
    entries: dict[tuple[int, int, bool, int], dict[str, list[i32]]] = {}
    for (partition, producer_id, producer_epoch, marker), _ in sent:
        entry = producer_id, producer_epoch, marker.commit, marker.coordinator_epoch
        entries.setdefault(entry, {}).setdefault(partition[0], []).append(i32(partition[1]))
    return WriteTxnMarkersRequest(
        markers=tuple(
            WritableTxnMarker(
                producer_id=ProducerId(producer_id),
                producer_epoch=i16(producer_epoch),
                transaction_result=commit,
                topics=tuple(
                    WritableTxnMarkerTopic(name=TopicName(name), partition_indexes=tuple(partitions))
                    for name, partitions in topics.items()
                ),
                coordinator_epoch=i32(coordinator_epoch),
            )
            for (producer_id, producer_epoch, commit, coordinator_epoch), topics in entries.items()
        )
    )
