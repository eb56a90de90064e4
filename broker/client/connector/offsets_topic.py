"""The node that says which topic a group's offsets belong to. A topic that was made again begins without offsets.

    no data, or nothing to compare    the node gets the topic's id and czxid; the offsets count
    the same topic                    the offsets count
    an earlier topic of the name      first the node gets the new topic, with `clearing`; then all offsets become -1,
                                      and their versions rise, so that no commit of the earlier topic succeeds
    a later topic of the name         this consumer has read an old view of the topic, so it claims nothing of it

The czxid of the topic's node tells the later of two topics. The brokers' Metadata has none: then a topic of another id
counts as the later one once a view that was read afterwards has it too, while the node has not changed. Metadata may
lag behind by a limited time; a read of ZooKeeper shows all that this session has seen before.

Each claim checks the version of the node. So a consumer may stop anywhere in between, and the next one that claims a
partition of the topic completes its work.
"""

from enum import Enum
from typing import NamedTuple

from broker.client.connector.assignment import TopicView
from broker.client.connector.registration import Registration
from broker.client.registry.nodes import OffsetsTopic, encode_offset, offsets_topic_path
from broker.cluster.procedure import Outcome, Procedure, chunks, read_children, read_node, write
from coordination.port import ANY_VERSION, Check, ConnectionLost, CoordinationError, Create, NodeExists, Set

OFFSETS_AT_ONCE = 1_000
"""The offsets that one Multi clears."""


class Age(Enum):
    """How the topic that a consumer sees relates to the topic that the offsets belong to."""

    UNKNOWN = "unknown"
    SAME = "same"
    LATER = "later"
    EARLIER = "earlier"
    OTHER = "other"


class SettledTopic(NamedTuple):
    """`version` is that of the node which a claim checks; None if nothing of the topic may be claimed now.

    `is_made_again` says that the offsets were of an earlier topic. `doubted_version` is the version of a node that
    names another topic; a newer view has to show whether that is the earlier one.
    """

    version: int | None
    is_made_again: bool = False
    doubted_version: int | None = None


class OffsetsTopicNode:
    """The node of one topic in one group."""

    def __init__(self, group: str, topic: str, registration: Registration) -> None:
        self._path = offsets_topic_path(group, topic)
        self._registration = registration

    def settle(self, view: TopicView, *, earlier_version: int | None) -> Procedure[SettledTopic]:
        """Make the node that of the topic in `view`. The view is newer than the node at `earlier_version`."""
        own = OffsetsTopic(view.topic_id, view.czxid)
        is_made_again = False
        while True:
            node = yield from read_node(self._path)
            if node is None:
                outcome = yield from write(Create(self._path, own.encode()))
                if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExists | ConnectionLost):
                    raise outcome
                continue
            stored = OffsetsTopic.decode(self._path, node.data)
            age = compare(stored, view)
            if age is Age.OTHER:
                age = Age.LATER if node.version == earlier_version else age
            if age is Age.EARLIER or age is Age.OTHER:
                return SettledTopic(None, doubted_version=node.version if age is Age.OTHER else None)
            if age is Age.LATER:
                is_made_again = True
                yield from self._set(OffsetsTopic(own.topic_id, own.czxid, is_clearing=True), node.version)
            elif stored.is_clearing:
                is_made_again = True
                yield from self._clear(stored, node.version)
            elif completed(stored, view) != stored:
                yield from self._set(completed(stored, view), node.version)
            else:
                return SettledTopic(node.version, is_made_again)

    def _set(self, topic: OffsetsTopic, version: int) -> Procedure[None]:
        """Replace the data. If another consumer was faster, or no answer came, the next read shows what is."""
        multi = self._registration.write(Set(self._path, topic.encode(), version))
        self._registration.failed_index((yield from write(multi)))

    def _clear(self, topic: OffsetsTopic, version: int) -> Procedure[None]:
        """Set all offsets to -1, then note that this is done."""
        names = yield from read_children(self._path)
        for some in chunks([name for name in names if name.isdigit()], OFFSETS_AT_ONCE):
            sets = [Set(f"{self._path}/{name}", encode_offset(None), ANY_VERSION) for name in some]
            outcome: Outcome = yield from write(self._registration.write(Check(self._path, version), *sets))
            if isinstance(outcome, CoordinationError):
                self._registration.failed_index(outcome)
                return
        yield from self._set(OffsetsTopic(topic.topic_id, topic.czxid), version)


def compare(stored: OffsetsTopic, view: TopicView) -> Age:
    """Return how the topic in `view` relates to the one that the offsets belong to."""
    has_ids = stored.topic_id is not None and view.topic_id is not None
    if has_ids and stored.topic_id == view.topic_id:
        return Age.SAME
    if stored.czxid is not None and view.czxid is not None:
        if stored.czxid == view.czxid:
            return Age.SAME
        return Age.LATER if view.czxid > stored.czxid else Age.EARLIER
    return Age.OTHER if has_ids else Age.UNKNOWN


def completed(stored: OffsetsTopic, view: TopicView) -> OffsetsTopic:
    """Return the topic that the offsets belong to, with what only the view knows of it."""
    topic_id = view.topic_id if stored.topic_id is None else stored.topic_id
    return OffsetsTopic(topic_id, view.czxid if stored.czxid is None else stored.czxid, stored.is_clearing)
