"""The ISRs that a broker proposes to the controller, in a cluster of real engines."""

from broker.membership.isr_proposals import IsrProposals
from broker.replication.partition import RETRY_MS, Partition
from tests.broker.membership.test_alter_partition import cluster_with_a_topic


class Leader:
    """Broker 1, which leads a partition that broker 2 follows."""

    def __init__(self):
        self.cluster, self.topic = cluster_with_a_topic()
        node = self.cluster.nodes[1]
        self.log = node.broker.services.log_of("flights", 0)
        self.answered = []
        self.partition = Partition(self.log, 1)
        self.partition.lead(self.topic.partitions[0], self.cluster.now)
        member = node.member
        self.proposals = IsrProposals(
            member.peers,
            member.image,
            1,
            lambda: member.broker_epoch,
            lambda partition, now: self.answered.append(partition),
        )

    def propose(self):
        self.proposals.propose(self.partition, self.cluster.now)
        self.cluster.settle()


def test_a_follower_that_lags_leaves_the_isr_and_the_high_watermark_rises():
    leader = Leader()
    leader.cluster.nodes[1].broker.connect().produce("flights", b"a")
    leader.cluster.later(2)
    leader.partition.check_lag(1, leader.cluster.now)
    leader.propose()
    assert leader.partition.isr == (1,)
    assert leader.answered == [leader.partition]
    assert leader.log.high_watermark == leader.log.log_end_offset
    assert leader.cluster.controller.member.image.topic("flights").partitions[0].isr == (1,)


def test_a_proposal_that_no_controller_answers_is_asked_again():
    leader = Leader()
    leader.cluster.nodes[1].broker.connect().produce("flights", b"a")
    leader.cluster.later(2)
    leader.partition.check_lag(1, leader.cluster.now)
    controller = leader.cluster.controller.id
    leader.cluster.cut_pairs = {(1, controller)}
    leader.propose()
    assert leader.partition.isr == (1, 2)
    leader.cluster.cut_pairs = set()
    leader.cluster.later(RETRY_MS)
    leader.propose()
    assert leader.partition.isr == (1,)
