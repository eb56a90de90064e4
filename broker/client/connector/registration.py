"""The node that says that a consumer lives: its creation, and the Check of it that begins each write of a consumer.

The node is ephemeral, and its name is the consumer's own. So a write whose Check succeeds was carried out in the
session that the consumer registered in, and that session was alive. A read proves less: a ZooKeeper server that is cut
off from the others answers reads for a while.
"""

from broker.client.connector.topic_filter import TopicStreams
from broker.client.registry.nodes import consumer_path
from broker.cluster.procedure import Outcome, Pause, Procedure, read_node, write
from coordination.port import Check, ConnectionLost, CoordinationError, Create, Delete, Multi, NodeExists, Set

PAUSE_MS = 100
"""The pause after a node of another session was found: the event of a new session may be on its way."""

VERSION = 0
"""The version of the node, because no consumer changes it."""


class RegistrationLost(Exception):
    """The consumer's node is gone: its session is over, or a tool has deleted the node."""


class Registration:
    """The node of one consumer."""

    def __init__(self, group: str, consumer: str, streams: TopicStreams) -> None:
        self.path = consumer_path(group, consumer)
        self._streams = streams

    def write(self, *operations: Check | Create | Set | Delete) -> Multi:
        """Return a Multi that is carried out only while the consumer is registered."""
        return Multi((Check(self.path, VERSION), *operations))

    def failed_index(self, outcome: Outcome) -> int | None:
        """Return the position of the operation for which `write` failed, counted from 0 after the Check.

        None if it succeeded or its answer was lost. Raise RegistrationLost if the Check failed.
        """
        if not isinstance(outcome, CoordinationError) or isinstance(outcome, ConnectionLost):
            return None
        if outcome.index is None:
            raise outcome
        if outcome.index == 0:
            raise RegistrationLost(f"{self.path} is gone")
        return outcome.index - 1

    def register(self, session_id: int, now_wall_ms: int) -> Procedure[None]:
        """Create the node. A node of an earlier session of this consumer is replaced."""
        create = Create(self.path, self._streams.registration(now_wall_ms).encode(), ephemeral=True)
        while True:
            outcome = yield from write(create)
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExists | ConnectionLost):
                raise outcome
            node = yield from read_node(self.path)
            if node is not None and node.owner == session_id:
                return
            if node is not None:
                yield from write(Delete(self.path))
                yield Pause(PAUSE_MS, "the event that names the new session")

    def unregister(self) -> Procedure[None]:
        """Delete the node. Call it after the last release, because each release checks the node."""
        while True:
            outcome = yield from write(Delete(self.path))
            if not isinstance(outcome, ConnectionLost):
                return

    def prove(self) -> Procedure[None]:
        """Carry out a write that changes nothing, until its answer shows that the session lives."""
        outcome: Outcome = None
        while not isinstance(outcome, tuple):
            (outcome,) = yield (self.write(),)
            self.failed_index(outcome)
