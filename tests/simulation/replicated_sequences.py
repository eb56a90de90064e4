"""Sequences of events that a history seldom has by chance, each around one partition with three copies.

The rules of replication are needed in a moment: between a proposal and its grant, or between the order of a new leader
and the first fetch of its follower. A sequence comes to such a moment, and then kills those who know. Connections that
hang are cut in one direction for one kind of call: fetches, orders or other requests (`LinkKind`).
"""

from broker.cluster.documents import (
    CONTROLLER,
    DELETE_TOPICS,
)
from broker.cluster.documents import TOPICS as TOPICS_PATH
from broker.cluster.documents import (
    LeaderAndIsr,
    Topic,
    TopicPartition,
    broker_path,
    decode_controller,
    state_path,
    topic_path,
)
from broker.group.offset_records import partition_of
from broker.membership.calls import Link as LinkKind
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from tests.simulation.cluster_clients import TOPICS
from tests.simulation.replicated_bursts import Commit, Deletion, Election, OffsetQuestion, Setting, Write

ELECTED_MS = 2_500
"""Within this time a partition whose leader's session has ended has another."""
JOINED_MS = 4_000
"""Within this time a broker that starts is in sync again."""


class Stage:
    """A partition of a sequence, and the brokers that have it."""

    def __init__(self, world, partition):
        self.world, self.random, self.partition = world, world.random, partition
        topic = Topic.decode(partition.topic, world.ensemble.nodes[topic_path(partition.topic)].data)
        self.topic_id, self.replicas = topic.topic_id, topic.assignments[partition.partition].replicas
        self._state = None
        self.leader = self.state.leader

    @property
    def state(self):
        """Return what the controller has decided; the last decision if the topic is deleted meanwhile."""
        path = state_path(self.partition)
        node = self.world.ensemble.nodes.get(path)
        if node is not None:
            self._state = LeaderAndIsr.decode(path, node)
        return self._state

    @property
    def followers(self):
        """Return the other members of the ISR that live, in the order of the assignment."""
        return [member for member in self.replicas if member in self.state.isr and member != self.leader]

    @property
    def controller(self):
        node = self.world.ensemble.nodes.get(CONTROLLER)
        return -1 if node is None else decode_controller(node.data)

    # --- acts ----------------------------------------------------------------------------------------------------

    def write(self, number=1):
        """Send records to the present leader, each once and apart from the others."""
        for _ in range(number):
            self.world.begin(Write(self.world, self.partition, self.state.leader))

    def kill(self, *broker_ids):
        for broker_id in broker_ids:
            self.world.machines[broker_id].kill(at_once=True)

    def start(self, *broker_ids):
        for broker_id in broker_ids:
            self.world.machines[broker_id].start()

    def hang_fetches(self, *followers, leader=None):
        """Hold the leader's answers to these followers back."""
        for follower in followers:
            self.world.cut(self.leader if leader is None else leader, follower, LinkKind.FETCHES)

    def hang_proposals(self):
        """Hold the leader's requests to the controller back."""
        self.world.cut(self.leader, self.controller, LinkKind.REQUESTS)

    def hang_grants(self):
        """Hold the controller's answers to the leader back."""
        self.world.cut(self.controller, self.leader, LinkKind.REQUESTS)

    def heal(self):
        for kind in LinkKind:
            self.world.heal_cuts_of(kind)

    def until(self, is_reached, ms):
        return self.world.run_until(is_reached, ms)

    def until_elected(self):
        """Wait until another broker than `leader` leads, and has heard of it. Return True if so."""
        return self.until(lambda: self.leads(self.state.leader) and self.state.leader != self.leader, ELECTED_MS)

    def leads(self, broker_id):
        """Return True if a broker leads the partition in the present epoch."""
        log = self.log_of(broker_id)
        if log is None:
            return False
        led = self.world.machines[broker_id].process.broker.services.replication.led.find(log)
        return led is not None and led.state is not None and led.state.leader_epoch == self.state.leader_epoch

    def log_of(self, broker_id):
        """Return the partition's log on a broker; None without a process."""
        machine = self.world.machines.get(broker_id)
        process = None if machine is None else machine.process
        broker = None if process is None else process.broker
        return None if broker is None else broker.services.logs.find(*self.partition)

    def end_of(self, broker_id):
        log = self.log_of(broker_id)
        return -1 if log is None else log.log_end_offset

    def later(self, *broker_ids):
        """Start these brokers again after a while."""
        for broker_id in broker_ids:
            self.world.after(self.random.choice((500, 3_000)), self.world.machines[broker_id].start)


def stage(world, is_fit=lambda stage: True, topics=TOPICS):
    """Return a partition of three copies that fits; None if there is none. Its leader and a follower live."""
    partitions = []
    deleted = set(world.ensemble.names(DELETE_TOPICS))
    for name in world.ensemble.names(TOPICS_PATH):
        if name in topics and name not in deleted:
            topic = Topic.decode(name, world.ensemble.nodes[topic_path(name)].data)
            for index, assignment in sorted(topic.assignments.items()):
                partition = TopicPartition(name, index)
                if len(assignment.replicas) >= 3 and state_path(partition) in world.ensemble.nodes:
                    partitions.append(partition)
    world.random.shuffle(partitions)
    for partition in partitions:
        candidate = Stage(world, partition)
        if candidate.leads(candidate.leader) and candidate.followers and is_fit(candidate):
            return candidate
    return None


# --- a leader without followers --------------------------------------------------------------------------------------


def strand_a_leader(world):
    """A leader's followers do not get its records, and leave the ISR, or the leader asks in vain. Then it dies."""
    act = stage(world)
    if act is None:
        return
    followers = act.followers
    act.write(2)
    world.run(world.random.choice((100, 400)))
    act.hang_fetches(*world.random.choice((followers, followers[:1])))
    if world.random.random() < 0.5:
        act.hang_proposals()
    act.write(2)
    if world.random.random() < 0.8:
        world.run(world.lag_ms * 3 // 2 + 300)
        act.write()
    world.run(world.random.choice((100, 600)))
    act.kill(act.leader)
    world.run(50)
    act.heal()
    act.until_elected()
    act.later(act.leader)


def lower_min_isr_between_two_deaths(world):
    """min.insync.replicas is lowered when only the leader is in the ISR. The leader dies before the controller has
    emptied the ELR."""
    act = stage(world, lambda act: world.min_isr_of(act.partition.topic) > 1 and act.controller != act.leader)
    if act is None:
        return
    act.hang_fetches(*act.followers)
    act.write()
    if not act.until(lambda: act.state.isr == (act.leader,), 2 * world.lag_ms):
        act.heal()
        return
    act.hang_proposals()
    world.begin(Setting(world, act.partition.topic, "min.insync.replicas", 1))
    world.run(300)
    act.write(2)
    world.run(world.random.choice((100, 600)))
    act.kill(act.leader)
    world.run(50)
    act.heal()
    act.until_elected()
    act.later(act.leader)


# --- a follower that joins -------------------------------------------------------------------------------------------


def lead_by_a_follower_that_joins(world):
    """A follower joins the ISR slowly, or before the leader hears of it. All others die just then."""
    act = stage(world)
    if act is None:
        return
    joins = act.followers[-1]
    act.kill(joins)
    world.run(200)
    act.write(3)
    world.run(300)
    is_slow = world.random.random() < 0.5
    if is_slow:
        act.hang_fetches(joins)
    act.start(joins)
    if not is_slow:
        act.hang_grants()
    if act.until(lambda: joins in act.state.isr, JOINED_MS):
        act.hang_fetches(joins)
        act.write(2)
        world.run(world.random.choice((0, 100, 300)))
        others = [member for member in act.state.isr if member != joins]
        act.kill(*others)
        world.run(50)
        act.heal()
        act.until_elected()
        act.later(*others)
    act.heal()


def join_in_a_life_that_is_over(world):
    """A follower loses power while the controller is asked to let it join. Then all others die."""
    act = stage(world, lambda act: act.followers[-1] != act.controller)
    if act is None:
        return
    joins = act.followers[-1]
    act.kill(joins)
    world.run(200)
    act.write(3)
    act.hang_proposals()
    act.start(joins)
    if act.until(lambda: act.end_of(joins) >= act.end_of(act.leader), JOINED_MS):
        act.write(2)
        world.run(400)
        world.cut_power_of(world.machines[joins])
        act.hang_fetches(joins)
        act.start(joins)
        act.until(lambda: broker_path(joins) in world.ensemble.nodes, 1_000)
        world.run(world.random.choice((100, 300)))
        world.heal_cuts_of(LinkKind.REQUESTS)
        if act.until(lambda: joins in act.state.isr, 1_500):
            others = [member for member in act.state.isr if member != joins]
            act.kill(*others)
            act.until_elected()
            act.later(*others)
    act.heal()


def join_by_a_late_proposal(world):
    """A proposal that lets a follower join reaches the controller in the leader's next epoch, and its answer is lost.
    Then the leader dies."""
    act = stage(
        world,
        lambda act: len(act.followers) == 2
        and act.controller not in (act.leader, act.followers[0])
        and world.min_isr_of(act.partition.topic) == 1,
    )
    if act is None:
        return
    dies, joins = act.followers
    if joins != act.controller and world.random.random() < 0.5:
        act.kill(joins)
        world.run(200)
        act.hang_proposals()
        act.start(joins)
    else:
        act.hang_fetches(joins)
        act.write()
        if not act.until(lambda: joins not in act.state.isr, 2 * world.lag_ms):
            act.heal()
            return
        act.hang_proposals()
        world.heal_cuts_of(LinkKind.FETCHES)
    act.until(lambda: act.end_of(joins) >= act.end_of(act.leader), JOINED_MS)
    world.run(300)
    act.hang_fetches(joins)
    act.kill(dies)
    epoch = act.state.leader_epoch
    act.until(lambda: act.state.leader_epoch > epoch and act.leads(act.leader), ELECTED_MS)
    act.hang_grants()
    world.heal_cut(act.leader, act.controller, LinkKind.REQUESTS)
    world.run(300)
    act.write(2)
    world.run(world.random.choice((100, 300)))
    act.kill(act.leader)
    world.run(50)
    act.heal()
    act.until_elected()
    act.later(act.leader, dies)


# --- a leader after another ------------------------------------------------------------------------------------------


def lead_by_one_after_another(world):
    """A leader dies, and so does the next one, before the third replica has got what both had."""
    act = stage(world, lambda act: len(act.followers) == 2)
    if act is None:
        return
    second, third = act.followers
    act.hang_fetches(third)
    act.hang_fetches(third, leader=second)
    act.write(2)
    world.run(world.random.choice((100, 300)))
    act.kill(act.leader)
    act.until_elected()
    act.write()
    world.run(world.random.choice((0, 100, 300)))
    act.kill(second)
    world.run(50)
    act.heal()
    act.until(lambda: act.leads(act.state.leader), ELECTED_MS)
    act.later(act.leader, second)


def coordinate_by_one_after_another(world):
    """A coordinator dies, and the next one is asked before the third replica has what both had."""
    act = stage(world, lambda act: len(act.followers) == 2, topics=(GROUP_OFFSETS_TOPIC,))
    if act is None:
        return
    second, third = act.followers
    group = group_at(act.partition.partition, world.settings["offsets_topic_num_partitions"])
    world.begin(Commit(world, group, act.leader, 1))
    world.run(400)
    act.hang_fetches(third)
    act.hang_fetches(third, leader=second)
    world.begin(Commit(world, group, act.leader, 2))
    world.run(world.random.choice((100, 300)))
    act.kill(act.leader)
    act.until_elected()
    for _ in range(3):
        world.begin(OffsetQuestion(world, group, act.state.leader))
        world.run(100)
    act.kill(second)
    world.run(50)
    act.heal()
    act.until(lambda: act.leads(act.state.leader), ELECTED_MS)
    world.begin(OffsetQuestion(world, group, act.state.leader))
    world.run(100)
    act.later(act.leader, second)


def move_a_leader_from_under_itself(world):
    """Another broker leads for a moment, of which the leader before does not hear. It leads again, and dies."""
    act = stage(
        world,
        lambda act: len(act.followers) == 2
        and act.replicas[0] == act.followers[0]
        and act.controller != act.leader
        and act.controller != act.followers[1],
    )
    if act is None:
        return
    preferred, third = act.followers
    controller = act.controller
    act.hang_fetches(preferred)
    act.write(2)
    act.until(lambda: act.end_of(third) >= act.end_of(act.leader), 300)
    world.run(100)
    if world.random.random() < 0.5:
        world.cut(third, act.leader, LinkKind.FETCHES)
    world.cut(controller, act.leader, LinkKind.ORDERS)
    world.begin(Election(world, act.partition, controller))
    act.until(lambda: act.state.leader == preferred and act.leads(preferred), 1_000)
    act.until(lambda: act.end_of(third) <= act.end_of(preferred), 1_000)
    world.cut(act.leader, third, LinkKind.FETCHES)
    act.kill(*{preferred, controller})
    epoch = act.state.leader_epoch
    act.until(lambda: act.state.leader_epoch > epoch and act.leads(act.leader), 2 * ELECTED_MS)
    world.heal_cut(third, act.leader, LinkKind.FETCHES)
    world.run(world.random.choice((50, 200)))
    act.kill(act.leader)
    world.run(50)
    act.heal()
    act.until_elected()
    act.later(act.leader, *{preferred, controller})


# --- ids -------------------------------------------------------------------------------------------------------------


def lead_with_a_late_clock(world):
    """The next leader's clock is behind, so that it may have to wait for the last id of its log."""
    act = stage(world)
    if act is None:
        return
    act.write(2)
    world.run(300)
    late_ms = world.random.choice((1_000, 4_000, 8_000))
    for follower in act.followers:
        world.machines[follower].wall_step_ms -= late_ms
    followers = act.followers
    act.kill(act.leader)
    act.until_elected()
    act.write(2)
    world.run(500)
    for follower in followers:
        world.machines[follower].wall_step_ms += late_ms
    act.later(act.leader)


def lead_an_empty_log(world):
    """All records are deleted while a follower is away. It leads, with a clock that is behind."""
    act = stage(world)
    if act is None:
        return
    joins = act.followers[-1]
    act.kill(joins)
    act.write(2)
    world.run(1_000)
    log = act.log_of(act.leader)
    if log is not None:
        world.begin(Deletion(world, act.partition, act.leader, act.topic_id, log.high_watermark))
    world.run(300)
    late_ms = world.random.choice((4_000, 8_000))
    world.machines[joins].wall_step_ms -= late_ms
    act.start(joins)
    if act.until(lambda: joins in act.state.isr, JOINED_MS):
        others = [member for member in act.state.isr if member != joins]
        act.kill(*others)
        act.until_elected()
        act.write(2)
        world.run(500)
        act.later(*others)
    world.machines[joins].wall_step_ms += late_ms


def leave_one(world):
    """Let the records, or the ISR, of a partition be those of one broker only. Return its machine, None if no partition
    is led; the others come back before it."""
    act = stage(world)
    if act is None:
        return None
    if world.random.random() < 0.5:
        act.write(2)
        world.run(400)
        act.hang_fetches(*act.followers)
        act.write(2)
        world.run(200)
    else:
        act.hang_fetches(*act.followers)
        act.write()
        act.until(lambda: act.state.isr == (act.leader,), 2 * world.lag_ms)
    act.kill(act.leader)
    world.run(50)
    act.heal()
    return world.machines[act.leader]


SEQUENCES = (
    strand_a_leader,
    strand_a_leader,
    lower_min_isr_between_two_deaths,
    lead_by_a_follower_that_joins,
    lead_by_a_follower_that_joins,
    join_in_a_life_that_is_over,
    join_by_a_late_proposal,
    lead_by_one_after_another,
    coordinate_by_one_after_another,
    move_a_leader_from_under_itself,
    lead_with_a_late_clock,
    lead_an_empty_log,
)


def group_at(partition, partitions):
    """Return the name of a group whose offsets are in a partition."""
    numbers = range(1_000)
    return next(f"group{n}" for n in numbers if partition_of(f"group{n}", partitions) == partition)
