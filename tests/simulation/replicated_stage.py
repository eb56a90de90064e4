"""A partition of a simulated cluster and the brokers that have it, as replicated_sequences.py uses them.

Connections that hang are cut in one direction for one kind of call: fetches, orders or other requests (`LinkKind`).
"""

from broker.cluster import documents
from broker.cluster.documents import LeaderAndIsr, Topic, TopicPartition, broker_path, state_path, topic_path
from broker.membership.calls import Link as LinkKind
from tests.simulation.cluster_clients import TOPICS
from tests.simulation.replicated_bursts import Write

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
        node = self.world.ensemble.nodes.get(documents.CONTROLLER)
        return -1 if node is None else documents.decode_controller(node.data)

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

    def replace_leader(self):
        """Kill the leader, heal all links, and start it again later. Return True if another is elected meanwhile."""
        self.kill(self.leader)
        self.world.run(50)
        self.heal()
        is_elected = self.until_elected()
        self.later(self.leader)
        return is_elected

    def leads(self, broker_id):
        """Return True if a broker leads the partition in the present epoch."""
        led = self.led_by(broker_id)
        return led is not None and led.state is not None and led.state.leader_epoch == self.state.leader_epoch

    def led_by(self, broker_id):
        """Return the leader's view of a broker; None if it does not lead."""
        log = self.log_of(broker_id)
        return None if log is None else self.world.machines[broker_id].process.broker.services.replication.led.find(log)

    def log_of(self, broker_id):
        """Return the partition's log on a broker; None without a process."""
        machine = self.world.machines.get(broker_id)
        process = None if machine is None else machine.process
        broker = None if process is None else process.broker
        return None if broker is None else broker.services.logs.find(*self.partition)

    def end_of(self, broker_id):
        log = self.log_of(broker_id)
        return -1 if log is None else log.log_end_offset

    def known_end_of(self, follower):
        """Return where a follower's log ends as far as the leader knows; -1 if it does not lead."""
        led = self.led_by(self.leader)
        return -1 if led is None or follower not in led.followers else led.followers[follower].end_offset

    def life_of(self, broker_id):
        """Return the broker epoch of a broker that is registered, else None."""
        node = self.world.ensemble.nodes.get(broker_path(broker_id))
        return None if node is None else node.czxid

    def later(self, *broker_ids):
        """Start these brokers again after a while."""
        for broker_id in broker_ids:
            self.world.after(self.random.choice((500, 3_000)), self.world.machines[broker_id].start)


def stage(world, is_fit=lambda stage: True, topics=TOPICS):
    """Return a partition of three copies that fits, with a leader and a follower that live. Return None without one."""
    partitions = []
    deleted = set(world.ensemble.names(documents.DELETE_TOPICS))
    for name in world.ensemble.names(documents.TOPICS):
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
