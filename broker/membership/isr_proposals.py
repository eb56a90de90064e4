"""The ISRs that this broker proposes for partitions that it leads: requests to the controller (KIP-497).

The proposals of one turn share a request. Each partition has one under way, and asks again by itself after a refusal,
so a request that gets no answer, or reaches a broker that is no longer the controller, is not repeated here.
"""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64

from broker.membership.peer_batches import PeerBatches
from broker.membership.peer_calls import PeerCalls
from broker.metadata.image import Image
from broker.now import Now
from broker.replication.partition import Partition, Proposal
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import (
    AlteredPartition,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    IsrMember,
)

PARTITIONS_MAX = 1_000
"""The proposals of one request."""


class _Asked(NamedTuple):
    partition: Partition
    proposal: Proposal


class IsrProposals:
    """See the module. `answered` is called once a partition has taken the answer to its proposal."""

    def __init__(
        self,
        calls: PeerCalls,
        image: Image,
        broker_id: int,
        broker_epoch: Callable[[], int],
        answered: Callable[[Partition, Now], None],
    ) -> None:
        self._image = image
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._answered = answered
        self._batches = PeerBatches(calls, PARTITIONS_MAX, self._request, self._settle)

    def propose(self, partition: Partition, now: Now) -> None:
        """Ask the controller for the ISR that a partition proposes, if it has a proposal now."""
        proposal = partition.take_proposal(self._broker_epoch(), now)
        if proposal is None:
            return
        if self._image.controller_id in self._image.live_ids:
            self._batches.add(self._image.controller_id, _Asked(partition, proposal), now)
        else:
            partition.refused(proposal.leader_epoch, now)

    def _request(self, asked: list[_Asked]) -> AlterPartitionRequest:
        topics: dict[UUID, list[AlterPartitionData]] = {}
        for partition, proposal in asked:
            members = tuple(
                IsrMember(broker_id=BrokerId(member), broker_epoch=i64(epoch)) for member, epoch in proposal.isr.items()
            )
            data = AlterPartitionData(
                partition_index=i32(partition.log.partition),
                leader_epoch=i32(proposal.leader_epoch),
                new_isr_with_epochs=members,
                partition_epoch=i32(proposal.partition_epoch),
                min_isr=i32(proposal.min_isr),
            )
            topics.setdefault(partition.log.topic_id, []).append(data)
        rows = tuple(AlterPartitionTopic(topic_id=id, partitions=tuple(data)) for id, data in topics.items())
        return AlterPartitionRequest(
            broker_id=BrokerId(self._broker_id), broker_epoch=i64(self._broker_epoch()), topics=rows
        )

    def _settle(self, broker_id: int, asked: list[_Asked], response: AlterPartitionResponse | None, now: Now) -> None:
        rows: dict[tuple[UUID | None, int], AlteredPartition] = {}
        if response is not None and not response.error_code:
            rows = {
                (topic.topic_id, int(row.partition_index)): row for topic in response.topics for row in topic.partitions
            }
        for partition, proposal in asked:
            row = rows.get((partition.log.topic_id, partition.log.partition))
            _take_answer(partition, proposal.leader_epoch, row, now)
            self._answered(partition, now)


def _take_answer(partition: Partition, leader_epoch: int, row: AlteredPartition | None, now: Now) -> None:
    """Pass the controller's answer to a partition. `row` is None without an answer."""
    if row is not None and not row.error_code:
        isr, elr = tuple(map(int, row.isr)), tuple(map(int, row.elr))
        partition.granted(int(row.leader_epoch), int(row.partition_epoch), isr, elr, now)
    elif row is not None and ErrorCode(row.error_code) == ErrorCode.INELIGIBLE_REPLICA:
        partition.ineligible(leader_epoch, now)
    else:
        partition.refused(leader_epoch, now)
