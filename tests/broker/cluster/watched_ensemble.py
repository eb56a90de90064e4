"""An ensemble whose writes are checked: it holds each controller to the rules of the cluster."""

from collections.abc import Callable
from uuid import UUID

from broker.cluster.documents import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    TOPICS,
    LeaderAndIsr,
    Topic,
    TopicPartition,
    state_path,
    topic_path,
)
from coordination.memory import Ensemble
from coordination.port import Create, Delete, Multi, Set
from tests.broker.cluster.model_broker import ImageRow


class WatchedEnsemble(Ensemble):
    """An ensemble whose writes are recorded, and checked: only the controller writes states, one higher each time."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, object]] = []  # (session, operation), without the Checks
        self.decided: set[tuple[TopicPartition, UUID | None, int, int]] = set()
        self.topic_ids: set[UUID | None] = set()  # of all topics that there ever were
        self.to_delete: set[UUID | None] = set()  # the ids of the topics whose deletion was asked for
        self.on_topic_deleted: Callable[[str], None] = lambda name: None
        self.is_recording = False

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
        if is_state and not isinstance(write, Delete):
            state = LeaderAndIsr.decode(write.path, self.nodes[write.path])
            assert state.controller_epoch == int(self.nodes[CONTROLLER_EPOCH].data), f"E1: a stale epoch in {write}"
            if isinstance(write, Set):
                earlier = LeaderAndIsr.decode(write.path, before[write.path])
                is_leaders = (state.leader, state.leader_epoch) == (earlier.leader, earlier.leader_epoch)
                assert state.leader_epoch > earlier.leader_epoch or is_leaders, f"E4: the epoch stays in {write}"
                assert is_leaders or state.lives.get(state.leader, 0) >= 0, f"W2: {write} elects who is not trusted"
            self.note_decision(write.path)

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
