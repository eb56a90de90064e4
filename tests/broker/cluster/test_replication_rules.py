"""The rules of replication that the controller keeps: W3 and W4 (whole lives), R3 (the ELR), E3 and E4, elections.

Brokers are of ours here, and min.insync.replicas is 2, unless a test says otherwise. A power cut leaves the mark "not
whole" on a disk until the first LeaderAndIsr of the next life (rule W1).
"""

import pytest

from broker.cluster.documents import NO_LEADER, NO_LIFE, TopicPartition
from broker.cluster.policy import Policy, Rebalance
from broker.cluster.requests import AlterPartition, ControlledShutdown, ElectLeaders, IsrMember, IsrProposal
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import LeaderAndIsrRequest
from tests.broker.cluster.test_rules import T0, answer_of, create, record_operations, started, state


class Cluster:
    """A quiet world of three brokers, of which 1 is the controller, and t-0 with these replicas."""

    def __init__(self, *replicas, min_isr=2, brokers=3, allows_unclean=False, rebalance=None):
        self.lines = []
        self.is_unclean_allowed = allows_unclean
        policy = Policy(lambda topic: min_isr, lambda topic: self.is_unclean_allowed, self.lines.append, rebalance)
        self.world = started(brokers, has_lives=True, policy=policy)
        create(self.world, [replicas])

    def kill(self, *broker_ids):
        for broker_id in broker_ids:
            self.world.machines[broker_id].kill(at_once=True)
            self.world.run(500)

    def lose_power(self, *broker_ids):
        for broker_id in broker_ids:
            self.world.machines[broker_id].lose_power()
        self.world.run(500)

    def start(self, *broker_ids):
        for broker_id in broker_ids:
            self.world.machines[broker_id].start()
            self.world.run(500)

    def join(self, *broker_ids):
        """Let the leader ask for an ISR with these members."""
        present, models = state(self.world), {b: m.model for b, m in self.world.machines.items()}
        isr = tuple(IsrMember(b, models[b].broker_epoch) for b in broker_ids)
        topic_id = self.world.ensemble.image()[T0].topic_id
        proposal = IsrProposal(topic_id, 0, present.leader_epoch, present.partition_epoch, isr, min_isr=2)
        request = AlterPartition(present.leader, models[present.leader].broker_epoch, (proposal,))
        (granted,) = answer_of(self.world, request).isrs.values()
        assert not isinstance(granted, ErrorCode), granted

    def epoch(self, broker_id):
        return self.world.machines[broker_id].model.broker_epoch

    @property
    def controller(self):
        return self.world.controller().controller

    @property
    def state(self):
        return state(self.world)

    @property
    def members(self):
        """Return leader, ISR and ELR."""
        return self.state.leader, self.state.isr, self.state.elr


class TestR3:
    """A member that leaves an ISR below min goes to the ELR, if trusted; ISR >= min empties the ELR."""

    def test_dead_members_go_to_the_elr_and_the_last_one_stays_in_the_isr(self):
        cluster = Cluster(2, 3, 1)
        cluster.kill(3)
        assert cluster.members == (2, (2, 1), ())
        cluster.kill(2)
        assert cluster.members == (1, (1,), (2,))

    def test_member_of_the_elr_leads_when_the_isr_is_gone(self):
        """KIP-966: it has all that was committed, because one copy alone commits nothing."""
        cluster = Cluster(2, 3)
        cluster.kill(2)
        assert cluster.members == (3, (3,), (2,))
        cluster.kill(3)
        assert cluster.members == (NO_LEADER, (3,), (2,))
        cluster.start(2)
        assert cluster.members == (2, (2,), (3,))
        assert cluster.lines == []

    def test_isr_that_is_large_enough_empties_the_elr(self):
        cluster = Cluster(2, 3)
        cluster.kill(2)
        cluster.start(2)
        cluster.join(3, 2)
        assert cluster.members == (3, (3, 2), ())

    def test_min_of_one_knows_no_elr(self):
        cluster = Cluster(2, 3, min_isr=1)
        cluster.kill(2)
        assert cluster.members == (3, (3,), ())

    def test_broker_that_stops_goes_to_the_elr(self):
        cluster = Cluster(2, 3)
        answer = answer_of(cluster.world, ControlledShutdown(3, cluster.epoch(3)))
        assert (answer.remaining, cluster.members) == ((), (2, (2,), (3,)))


class TestW3:
    """A broker that registers untrusted leaves ISR and ELR if a trusted member is live; else it is no candidate."""

    def test_member_of_the_elr_that_lost_power_leaves_it(self):
        cluster = Cluster(2, 3)
        cluster.lose_power(3)
        assert cluster.members == (2, (2,), (3,))
        cluster.start(3)
        assert cluster.members == (2, (2,), ())

    def test_it_is_decided_before_the_first_order_of_the_life(self):
        """LeaderAndIsr ends the mark on the disk, so a restart after it would say whole."""
        cluster = Cluster(2, 3)
        cluster.lose_power(3)
        cluster.world.calls.clear()
        cluster.start(3)
        orders = [r for b, r in cluster.world.calls if b == 3 and isinstance(r, LeaderAndIsrRequest)]
        assert orders[0].topic_states[0].partition_states[0].partition_epoch == cluster.state.partition_epoch
        cluster.kill(3)
        cluster.start(3)
        cluster.kill(2)
        assert cluster.members == (NO_LEADER, (2,), ())

    def test_leader_that_lost_power_and_returned_at_once_leads_no_more(self):
        """The controller sees one change: a death, then a birth (E3)."""
        cluster = Cluster(2, 3)
        cluster.world.machines[2].lose_power()
        cluster.world.machines[2].start()
        cluster.world.run(500)
        assert cluster.members == (3, (3,), ())

    def test_next_controller_finds_a_leader_that_lost_power_meanwhile(self):
        """The former controller died before it looked at the new life (recovery of each new controller)."""
        cluster = Cluster(2, 3)
        before = cluster.state
        cluster.world.machines[1].kill(at_once=True)
        cluster.world.machines[2].lose_power()
        cluster.world.machines[2].start()
        cluster.world.run(1_000)
        assert cluster.members == (3, (3,), ())
        assert cluster.state.leader_epoch > before.leader_epoch  # E4

    def test_member_that_is_alone_stays_and_is_no_candidate(self):
        cluster = Cluster(2, 3)
        cluster.kill(3)
        cluster.lose_power(2)
        cluster.start(2)
        assert cluster.members == (NO_LEADER, (2,), (3,))
        assert cluster.state.lives[2] == NO_LIFE
        (problem,) = cluster.controller.problems
        assert problem.startswith("t-0 has no leader: broker 2 may lack records since an unclean stop")

    def test_member_that_is_alone_is_trusted_in_no_later_life(self):
        """Its mark went with the first order, so each later life says whole."""
        cluster = Cluster(2, 3)
        cluster.kill(3)
        cluster.lose_power(2)
        cluster.start(2)
        cluster.kill(2)
        cluster.start(2)
        assert cluster.world.machines[2].model.is_whole
        assert cluster.members == (NO_LEADER, (2,), (3,))

    def test_trusted_member_that_returns_leads_and_the_other_leaves(self):
        cluster = Cluster(2, 3)
        cluster.kill(3)
        cluster.lose_power(2)
        cluster.start(2, 3)
        assert cluster.members == (3, (3,), ())
        assert cluster.controller.problems == [] and cluster.lines == []
        cluster.join(3, 2)
        assert cluster.state.lives == {2: cluster.epoch(2), 3: cluster.epoch(3)}

    def test_power_cut_twice_is_still_known(self):
        """The broker dies again before a controller has seen its new life; the mark stays on its disk."""
        cluster = Cluster(2, 3)
        cluster.kill(3)
        cluster.lose_power(2)
        machine = cluster.world.machines[2]
        machine.start()
        while not machine.process.is_registered:
            cluster.world.run(1)
        machine.kill(at_once=True)
        machine.start()
        cluster.world.run(500)
        assert cluster.members == (NO_LEADER, (2,), (3,))

    def test_clean_restarts_keep_the_trust(self):
        cluster = Cluster(2, 3)
        cluster.kill(3)
        for _ in range(3):
            cluster.kill(2)
            cluster.start(2)
        assert cluster.members == (2, (2,), (3,))
        assert cluster.state.lives[2] == cluster.epoch(2)

    def test_empty_directory_is_not_trusted(self):
        cluster = Cluster(2, 3)
        cluster.kill(3)
        model = cluster.world.machines[3].model
        model.last_epoch = -1  # and even if it says whole
        cluster.start(3)
        assert cluster.members == (2, (2,), ())

    def test_restored_directory_is_not_trusted(self):
        cluster = Cluster(2, 3)
        old = cluster.epoch(3)
        cluster.kill(3)
        cluster.start(3)
        cluster.join(2, 3)
        cluster.kill(3)
        cluster.world.machines[3].model.last_epoch = old
        cluster.start(3)
        assert cluster.members == (2, (2,), ())

    def test_only_copy_leads_after_a_power_cut(self):
        """With one copy nothing is decided by lives, and the node has Kafka's bytes."""
        cluster = Cluster(2)
        cluster.lose_power(2)
        cluster.start(2)
        assert cluster.members == (2, (2,), ()) and cluster.lines == []
        assert cluster.state.lives == {}

    def test_many_partitions_are_few_writes(self):
        cluster = Cluster(3)
        create(cluster.world, [(2, 3)] * 150, "u")
        cluster.lose_power(2)
        operations = record_operations(cluster.world)
        cluster.start(2)
        writes = [operation for operation in operations if "/state" in str(getattr(operation, "operations", ""))]
        assert [len(operation.operations) - 1 for operation in writes] == [100, 50]


class TestW4:
    """After a power cut of all, the first of the ISR leads when all are back: said aloud, and counted as unclean."""

    def test_first_of_the_isr_leads_when_all_are_back(self):
        cluster = Cluster(2, 3, brokers=4)
        cluster.lose_power(2, 3)
        members = cluster.members
        cluster.start(3)
        assert cluster.state.leader == NO_LEADER and cluster.controller.problems
        cluster.start(2)
        first = next(b for b in (2, 3) if b in members[1])
        assert cluster.members == (first, (first,), ())
        assert cluster.state.recovery_state == 1
        assert len(cluster.lines) == 1 and cluster.lines[0].startswith(f"t-0: broker {first} leads, because all")
        assert cluster.controller.unclean_elections == 1 and cluster.controller.problems == []

    def test_one_that_was_killed_leads_before_one_that_lost_power(self):
        """Both are in the ISR until one of them leads: the controller cannot tell how they ended."""
        cluster = Cluster(2, 3, min_isr=1)
        cluster.world.machines[2].kill(at_once=True)
        cluster.lose_power(3)
        assert cluster.members == (NO_LEADER, (2, 3), ())
        cluster.start(3)
        assert cluster.state.leader == NO_LEADER
        cluster.start(2)
        assert cluster.members == (2, (2,), ()) and cluster.lines == []

    def test_partitions_that_wait_for_the_same_brokers_are_one_problem(self):
        cluster = Cluster(2, 3, brokers=4)
        create(cluster.world, [(2, 3)] * 4, "u")
        cluster.lose_power(2, 3)
        cluster.start(3)
        (problem,) = cluster.controller.problems
        assert problem.startswith("t-0, u-0, u-1 and 2 more have no leader: broker 3 may lack records")

    def test_all_brokers_with_the_controller(self):
        cluster = Cluster(2, 3, 1)
        cluster.lose_power(1, 2, 3)
        cluster.start(3, 1, 2)
        cluster.world.run(3_000)
        assert cluster.state.leader in cluster.state.isr and len(cluster.lines) == 1
        cluster.world.check_quiet()

    def test_leader_that_was_elected_so_is_trusted_from_then_on(self):
        cluster = Cluster(2, 3, brokers=4)
        cluster.lose_power(2, 3)
        cluster.start(2, 3)
        leader = cluster.state.leader
        cluster.kill(leader)
        cluster.start(leader)
        assert cluster.members == (leader, (leader,), ()) and len(cluster.lines) == 1


class TestUnclean:
    """An unclean leader is elected where the topic allows it, or by request, and what it cost is said."""

    def test_topic_that_allows_it_goes_on_with_another_replica(self):
        cluster = Cluster(2, 3, min_isr=1, allows_unclean=True)
        cluster.kill(3)
        cluster.kill(2)
        cluster.start(3)
        assert cluster.members == (3, (3,), ())
        assert cluster.lines == [
            "t-0: broker 3 leads, because unclean.leader.election.enable is true for the topic. "
            "Acknowledged records that only broker 2 had are lost"
        ]
        assert cluster.controller.unclean_elections == 1

    def test_topic_that_allows_it_later_is_elected_then(self):
        cluster = Cluster(2, 3, min_isr=1)
        cluster.kill(3)
        cluster.kill(2)
        cluster.start(3)
        assert cluster.state.leader == NO_LEADER
        cluster.is_unclean_allowed = True
        cluster.controller.unclean_leaders_allowed(cluster.world.now)
        cluster.world.controller().pump()
        cluster.world.run(500)
        assert cluster.state.leader == 3

    def test_by_request_without_a_member_that_never_returns(self):
        cluster = Cluster(2, 3)
        cluster.kill(3)
        cluster.lose_power(2)
        cluster.start(2)
        answer = answer_of(cluster.world, ElectLeaders("unclean", (T0,)))
        assert answer.elections[T0] == (ErrorCode.NONE, None)
        assert cluster.members == (2, (2,), ())
        assert cluster.lines[0].endswith("Acknowledged records that only broker 3 had are lost")
        cluster.start(3)
        assert cluster.members == (2, (2,), ())

    def test_count_outlives_a_term(self):
        cluster = Cluster(2, 3, min_isr=1, allows_unclean=True)
        cluster.kill(3)
        cluster.kill(2)
        cluster.start(3)
        controller = cluster.controller
        controller.stop(cluster.world.now)
        assert controller.unclean_elections == 1


class TestPreferred:
    """Preferred leaders come back by themselves, where that is switched on and too many are elsewhere."""

    @pytest.mark.parametrize("percentage, leader", [(10, 2), (50, 2), (100, 3)])
    def test_leaders_come_back_above_the_percentage(self, percentage, leader):
        cluster = Cluster(2, 3, rebalance=Rebalance(300_000, percentage))
        cluster.world.run(6_000)  # the first check is over
        cluster.kill(2)
        cluster.start(2)
        cluster.join(3, 2)
        cluster.world.run(290_000)
        assert cluster.state.leader == 3
        cluster.world.run(20_000)
        assert cluster.members == (leader, (3, 2), ())

    def test_first_check_follows_the_election_of_the_controller_soon(self):
        cluster = Cluster(2, 3, rebalance=Rebalance())
        cluster.kill(2)
        cluster.start(2)
        cluster.join(3, 2)
        cluster.kill(1)
        cluster.world.run(6_000)
        assert cluster.state.leader == 2

    def test_preferred_leader_outside_the_isr_waits(self):
        cluster = Cluster(2, 3, rebalance=Rebalance(1_000))
        cluster.kill(2)
        cluster.start(2)
        cluster.world.run(10_000)
        assert cluster.state.leader == 3

    def test_partitions_below_the_percentage_stay(self):
        cluster = Cluster(2, 3, rebalance=Rebalance(1_000))
        create(cluster.world, [(2, 1)] * 9, "u")
        cluster.world.run(6_000)
        answer_of(cluster.world, ControlledShutdown(2, cluster.epoch(2)))
        cluster.kill(2)
        cluster.start(2)
        cluster.join(3, 2)
        assert [state(cluster.world, TopicPartition("u", n)).leader for n in range(9)] == [1] * 9
        cluster.world.run(5_000)
        assert cluster.state.leader == 2  # all of broker 2 are elsewhere, and this one can come back

    def test_switched_off_nothing_moves(self):
        cluster = Cluster(2, 3)
        cluster.kill(2)
        cluster.start(2)
        cluster.join(3, 2)
        cluster.world.run(700_000)
        assert cluster.state.leader == 3
