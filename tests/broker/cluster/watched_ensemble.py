"""An ensemble whose writes are checked: it holds each controller to the rules of the cluster."""

from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from broker.cluster.documents import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    NO_LEADER,
    TOPICS,
    LeaderAndIsr,
    Topic,
    TopicPartition,
    broker_path,
    state_path,
    topic_path,
)
from coordination.memory import Ensemble
from coordination.port import Create, Delete, Multi, Set
from tests.broker.cluster.model_broker import ImageRow

OnDecision: TypeAlias = Callable[[TopicPartition, UUID | None, LeaderAndIsr, LeaderAndIsr], None]
"""Takes a partition, the id of its topic, its state before, and the one that was written."""


class WatchedEnsemble(Ensemble):
    """An ensemble whose writes are recorded, and checked: only the controller writes states, one higher each time."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, object]] = []  # (session, operation), without the Checks
        self.decided: set[tuple[TopicPartition, UUID | None, int, int]] = set()
        self.topic_ids: set[UUID | None] = set()  # of all topics that there ever were
        self.to_delete: set[UUID | None] = set()  # the ids of the topics whose deletion was asked for
        self.on_topic_deleted: Callable[[str], None] = lambda name: None
        self.on_decision: OnDecision = lambda partition, topic_id, earlier, state: None
        self.is_recording = False
        self.knows_losses = True
        """False if brokers of Kafka's are members, which do not say that they lost power."""
        self.lost: dict[tuple[TopicPartition, int], int] = {}
        """The replicas that lost power, each with the life that it lost, until they join an ISR in a later one."""

    def apply(self, session_id, operation, notify):
        operations = operation.operations if isinstance(operation, Multi) else (operation,)
        before = {part.path: self.nodes.get(part.path) for part in operations}
        result = super().apply(session_id, operation, notify)
        for write in operations:
            if isinstance(write, Create | Set | Delete):
                if self.is_recording:
                    self.writes.append(write)
                self._check(session_id, write, before)
                self._follow_topics(write, before)
        return result

    def _follow_topics(self, write, before):
        if write.path.startswith(DELETE_TOPICS + "/") and isinstance(write, Create):
            topic = self.nodes.get(topic_path(write.path.removeprefix(DELETE_TOPICS + "/")))
            self.to_delete.add(None if topic is None else Topic.decode(write.path, topic.data).topic_id)
        if write.path.startswith(TOPICS + "/") and write.path.count("/") == 3:
            if isinstance(write, Delete):
                topic_id = Topic.decode(write.path, before[write.path].data).topic_id
                assert topic_id in self.to_delete, f"E1: {write.path} was created anew, and its deletion not asked for"
                self.on_topic_deleted(write.path.removeprefix(TOPICS + "/"))
            else:
                self.topic_ids.add(Topic.decode(write.path, write.data).topic_id)

    def _check(self, session_id, write, before):
        is_state = write.path.endswith("/state")
        is_topic = write.path.startswith(TOPICS + "/")
        if is_state or (is_topic and not isinstance(write, Create)):
            controller = self.nodes.get(CONTROLLER)
            assert controller is None or controller.owner == session_id, f"E1: a stale controller wrote {write}"
        if is_state and isinstance(write, Delete):
            self._forget_losses(write.path)
        if is_state and not isinstance(write, Delete):
            state = LeaderAndIsr.decode(write.path, self.nodes[write.path])
            assert state.controller_epoch == int(self.nodes[CONTROLLER_EPOCH].data), f"E1: a stale epoch in {write}"
            if isinstance(write, Set):
                earlier = LeaderAndIsr.decode(write.path, before[write.path])
                is_leaders = (state.leader, state.leader_epoch) == (earlier.leader, earlier.leader_epoch)
                assert state.leader_epoch > earlier.leader_epoch or is_leaders, f"E4: the epoch stays in {write}"
                self._check_members(write.path, earlier, state)
                partition = partition_of(write.path)
                topic_id = Topic.decode(write.path, self.nodes[topic_path(partition.topic)].data).topic_id
                self.on_decision(partition, topic_id, earlier, state)
            self.note_decision(write.path)

    def _check_members(self, path, earlier, state):
        """Check who leads and who joins: an elected leader has all records, unless the election is marked unclean."""
        partition = partition_of(path)
        if state.leader_epoch == earlier.leader_epoch:
            for member in set(state.isr) - set(earlier.isr):
                if state.lives.get(member, -1) > self.lost.get((partition, member), -1):
                    self.lost.pop((partition, member), None)
            return
        if is_unclean(earlier, state):
            self.lost.pop((partition, state.leader), None)
            return
        assert set(state.isr) <= set(earlier.members), f"R3: {path} has members that did not join"
        if state.leader not in (NO_LEADER, earlier.leader) and self.knows_losses:
            # The controller may elect a broker whose death it has not seen: that life does nothing any more.
            lost_life = self.lost.get((partition, state.leader))
            is_lost = lost_life is not None and state.lives.get(state.leader, 0) > lost_life
            assert not is_lost, f"W2: {path} is led by {state.leader}, which lost power"

    def lose_power(self, broker_id, broker_epoch):
        """Note that a broker may lack records that it confirmed, in each partition that has other copies.

        Its registration may name a later life than the broker knows of: the answer was under way.
        """
        registration = self.nodes.get(broker_path(broker_id))
        if registration is not None:
            broker_epoch = max(broker_epoch, registration.czxid)
        for partition, row in self.image_of_states().items():
            if broker_id in row and len(row) > 1:
                self.lost[partition, broker_id] = broker_epoch

    def replicas(self):
        """Return the replicas of each partition."""
        replicas = {}
        for name in self.names(TOPICS):
            for index, assignment in Topic.decode(name, self.nodes[topic_path(name)].data).assignments.items():
                replicas[TopicPartition(name, index)] = assignment.replicas
        return replicas

    def image_of_states(self):
        """Return the replicas of each partition that has a state."""
        return {partition: row for partition, row in self.replicas().items() if state_path(partition) in self.nodes}

    def _forget_losses(self, path):
        partition = partition_of(path)
        self.lost = {key: epoch for key, epoch in self.lost.items() if key[0] != partition}

    def note_decision(self, path):
        """Remember the leader that a state names, so that an order may name it too (rule S4)."""
        state = LeaderAndIsr.decode(path, self.nodes[path])
        *_, topic, _, index, _ = path.split("/")
        topic_id = Topic.decode(path, self.nodes[topic_path(topic)].data).topic_id
        self.decided.add((TopicPartition(topic, int(index)), topic_id, state.leader, state.leader_epoch))

    def image(self) -> dict[TopicPartition, ImageRow]:
        """Return the image that the nodes show."""
        image: dict[TopicPartition, ImageRow] = {}
        nodes = self.nodes
        for name in self.names(TOPICS):
            topic = Topic.decode(topic_path(name), nodes[topic_path(name)].data)
            for index, assignment in topic.assignments.items():
                partition = TopicPartition(name, index)
                node = nodes.get(state_path(partition))
                assert node is not None, f"{partition} has no state"
                state = LeaderAndIsr.decode(state_path(partition), node)
                image[partition] = ImageRow(
                    topic.topic_id, state.leader, state.leader_epoch, state.isr, node.version, assignment.replicas
                )
        return image


def is_unclean(earlier, state):
    """Return True if a state elects a leader that may lack records that others confirmed."""
    is_election = state.leader_epoch > earlier.leader_epoch
    return is_election and bool(state.recovery_state) and state.isr == (state.leader,)


def partition_of(path):
    """Return the partition of a state's path."""
    *_, topic, _, index, _ = path.split("/")
    return TopicPartition(topic, int(index))
