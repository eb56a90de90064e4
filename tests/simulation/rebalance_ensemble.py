"""An ensemble that checks each write by the rules of a group: owners of partitions, and their offsets."""

from collections import deque

from broker.client.connector.group_view import topic_view
from broker.client.registry.nodes import OffsetsTopic, decode_offset, decode_owner, offsets_topic_path
from broker.cluster.documents import TOPICS, TopicPartition, topic_path
from coordination.memory import Ensemble
from coordination.port import Children, Create, Delete, Get, Multi, NoNode, Set, parent

GROUP = "g"
OWNERS = f"/consumers/{GROUP}/owners/"
OFFSETS = f"/consumers/{GROUP}/offsets/"
STATES_KEPT = 20


class GroupEnsemble(Ensemble):
    """`done` has the messages that programs are done with, by topic identity and partition."""

    def __init__(self):
        super().__init__()
        self.done = {}
        self.last_processed = {}
        """The position that the owner of a partition had when it stopped the partition."""
        self.names_of_sessions = {}
        self.changes = 0
        self.states = deque([dict(self.nodes)], STATES_KEPT)

    def _store(self, changes):
        super()._store(changes)
        if changes:
            self.changes += 1
            self.states.append(dict(self.nodes))

    def apply(self, session_id, operation, notify):
        operations = operation.operations if isinstance(operation, Multi) else (operation,)
        before = {part.path: self.nodes.get(part.path) for part in operations}
        result = super().apply(session_id, operation, notify)
        for part in operations:
            if part.path.startswith(OWNERS) and isinstance(part, Delete):
                self._check_release(session_id, part.path, before[part.path], operations)
            elif part.path.startswith(OFFSETS) and part.path.count("/") == 5 and isinstance(part, Create | Set):
                self._check_offset(part, before[part.path], operations)
        return result

    def read_of_state(self, operation, oldest):
        """Return the outcome of a read from the state whose number is `oldest`, or the oldest that is kept."""
        nodes = self.states[max(-len(self.states), oldest - self.changes - 1)]
        if operation.path not in nodes:
            return NoNode(operation.path)
        if isinstance(operation, Get):
            return nodes[operation.path]
        paths = [path for path in nodes if path != "/" and parent(path) == operation.path]
        return tuple(sorted(path.rpartition("/")[2] for path in paths))

    def identity(self, topic):
        """Return what tells the topic from others of its name; None if it does not exist."""
        node = self.nodes.get(topic_path(topic))
        return None if node is None else identity_of(topic_view(topic, node))

    def owner(self, partition):
        """Return the consumer that owns a partition, and its session."""
        node = self.nodes.get(f"{OWNERS}{partition.topic}/{partition.partition}")
        return (None, None) if node is None else (decode_owner("", node.data).consumer, node.owner)

    def offset(self, partition):
        node = self.nodes.get(f"{OFFSETS}{partition.topic}/{partition.partition}")
        return None if node is None else decode_offset("", node.data)

    def topics(self):
        return {name: topic_view(name, self.nodes[topic_path(name)]) for name in sorted(self.names(TOPICS))}

    def _check_release(self, session_id, path, node, operations):
        """Check that only an owner deletes its node, and that its position is committed by then."""
        is_replaced = any(isinstance(part, Create) and part.path == path for part in operations)
        owner = decode_owner(path, node.data).consumer
        client = self.names_of_sessions[session_id]
        assert owner == client, f"{client} released {path} of {owner}"
        if not is_replaced:
            partition = partition_of(path)
            processed = self.last_processed.pop((owner, partition), None)
            if processed is not None and processed[0] == self.identity_of_offsets(partition.topic):
                offset = self.offset(partition)
                is_committed = offset is not None and offset >= processed[1]
                assert is_committed, f"{path} was released at {offset}, done to {processed[1]}"

    def _check_offset(self, write, before, operations):
        """Check that an offset does not go back, and covers only what programs are done with."""
        partition = partition_of(write.path)
        offset = decode_offset(write.path, write.data)
        earlier = None if before is None else decode_offset(write.path, before.data)
        identity = self.identity_of_offsets(partition.topic)
        if offset == earlier:
            return
        if offset is None:
            is_clearing = self._is_clearing(partition.topic, operations)
            assert is_clearing, f"{write.path}: {earlier} is lost"
            return
        assert earlier is None or offset >= earlier, f"{write.path} went back from {earlier} to {offset}"
        done = self.done.get((identity, partition), set())
        missing = [number for number in range(offset) if number not in done]
        assert not missing, f"{write.path}: {offset} of {identity} skips {missing[:5]}"

    def _is_clearing(self, topic, operations):
        return any(part.path == offsets_topic_path(GROUP, topic) for part in operations)

    def identity_of_offsets(self, topic):
        node = self.nodes.get(offsets_topic_path(GROUP, topic))
        stored = OffsetsTopic() if node is None else OffsetsTopic.decode("", node.data)
        return stored.czxid if stored.topic_id is None else stored.topic_id


def identity_of(view):
    return view.czxid if view.topic_id is None else view.topic_id


def partition_of(path):
    *_, topic, number = path.split("/")
    return TopicPartition(topic, int(number))


def is_read(operation):
    return isinstance(operation, Get | Children)
