"""Requests a read makes to a cluster before it fetches: topics and leaders, and offsets by time or id.

Topics and leaders come from Metadata v10, the first version with topic ids. Offsets come from ListOffsets v6, the first
version that can ask Flakelog for ids. Kafka has both from 2.8 on.

Flakelog reads the timestamps of ListOffsets as ids if the request says so (broker.wire.tags). Apache Kafka would ignore
that and find nothing, so callers check `keeps_ids` first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from broker.wire import fetch, tags
from broker.wire.errors import ErrorCode, WireError
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchPartition, FetchRequest
from spark_bridge.reading.network import Address, ClusterError, Conversation, Network, TryAgain, check
from spark_bridge.reading.settings import Patience as Patience
from spark_bridge.reading.settings import ReadSettings

METADATA, METADATA_VERSION = 3, 10
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 6
FETCH_VERSION = 12  # Kafka from 2.7 on; the first version that can ask for ids
LATEST_TIME, EARLIEST_TIME = -1, -2
NOT_FOUND = -1

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `leaders` has every partition, None if it has no leader now; `id` is None if the cluster gives no id."""

    name: str
    id: str | None
    leaders: Mapping[int, Address | None]
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    cluster_id: str | None
    topics: Mapping[str, Topic]

    @property
    def topic_ids(self) -> dict[str, str | None]:
        return {name: topic.id for name, topic in self.topics.items()}


class NoSuchTopic(TryAgain):
    """The cluster has no such topic.

    During a read, the broker may not have learned of the topic yet; before a read, the name is probably mistyped.
    """


class Unreachable(ClusterError):
    """No answer within the allowed attempts; the message names the request and the last error."""


class Cluster:
    """Requests to the brokers behind `servers`.

    Each method raises a ClusterError: NoSuchTopic, Unreachable after `patience`, or network.Refused for a permanent
    error.
    """

    def __init__(self, servers: Sequence[Address], network: Network, patience: Patience = Patience()) -> None:
        self._servers = servers
        self._network = network
        self._patience = patience

    @classmethod
    def connect(cls, servers: Sequence[Address], settings: ReadSettings = ReadSettings()) -> "Cluster":
        """Return the cluster behind `servers`: `with Cluster.connect(servers, settings) as cluster: ...`"""
        from spark_bridge.reading.sockets import SocketNetwork

        return cls(servers, SocketNetwork(), settings.patience)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later request opens them again."""

    def describe(self, topics: Iterable[str] | None = None) -> Description:
        """Describe these topics, or all."""
        names = None if topics is None else sorted(set(topics))
        return self._patiently(lambda: describe(names, self._servers, self._network))

    def earliest(self, topic: str) -> dict[int, int]:
        return self._certain(topic, EARLIEST_TIME)

    def latest(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """Return the high watermarks; with `committed` the last stable offsets, before which no transaction is open."""
        return self._certain(topic, LATEST_TIME, READ_COMMITTED if committed else READ_UNCOMMITTED)

    def first_at_time(self, topic: str, time_ms: int) -> dict[int, int | None]:
        return self._patiently(lambda: self._list_offsets(topic, time_ms, as_id=False))

    def first_at_id(self, topic: str, id: int) -> dict[int, int | None]:
        return self._patiently(lambda: self._list_offsets(topic, id, as_id=True))

    def keeps_ids(self, topic: str) -> bool:
        """Return True if the topic's messages have ids.

        The check fetches one record, so an empty topic returns True.
        """
        first, last = self.earliest(topic), self.latest(topic)
        filled = [partition for partition in sorted(first) if first[partition] < last[partition]]
        return not filled or self._patiently(lambda: self._gives_ids(topic, filled[0], first[filled[0]]))

    # --- single attempts --------------------------------------------------------------------------------------------

    def _certain(self, topic: str, time: int, isolation: int = READ_UNCOMMITTED) -> dict[int, int]:
        found = self._patiently(lambda: self._list_offsets(topic, time, as_id=False, isolation=isolation))
        missing = sorted(partition for partition, offset in found.items() if offset is None)
        if missing:
            raise Unreachable(f"{topic}: the broker gave no offset for partitions {missing}")
        return {partition: offset for partition, offset in found.items() if offset is not None}

    def _list_offsets(
        self, topic: str, time: int, *, as_id: bool, isolation: int = READ_UNCOMMITTED
    ) -> dict[int, int | None]:
        found: dict[int, int | None] = {}
        for leader, partitions in self._by_leader(topic).items():
            found |= self._list_at(leader, topic, partitions, time, as_id, isolation)
        return dict(sorted(found.items()))

    def _by_leader(self, topic: str) -> dict[Address, list[int]]:
        grouped: dict[Address, list[int]] = {}
        for partition, leader in describe([topic], self._servers, self._network).topics[topic].leaders.items():
            if leader is None:
                raise TryAgain(f"{topic}-{partition} has no leader")
            grouped.setdefault(leader, []).append(partition)
        return grouped

    def _list_at(
        self, leader: Address, topic: str, partitions: list[int], time: int, as_id: bool, isolation: int
    ) -> dict[int, int | None]:
        from broker.wire import cold

        asked = [{"partition_index": each, "current_leader_epoch": -1, "timestamp": time} for each in partitions]
        fields = {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": topic, "partitions": asked}]}
        private = {tags.IDS: tags.REQUEST} if as_id else None
        body = cold.encode(LIST_OFFSETS, LIST_OFFSETS_VERSION, "request", fields, private)
        frame, position = _ask(self._network, leader, LIST_OFFSETS, LIST_OFFSETS_VERSION, body)
        answer = cold.decode(LIST_OFFSETS, LIST_OFFSETS_VERSION, "response", frame, position, LIST_OFFSETS_VERSION)
        found: dict[int, int | None] = {}
        for each in (one for topics in answer.newest.topics for one in topics.partitions):
            check(int(each.error_code), f"offsets of {topic}-{each.partition_index}")
            found[each.partition_index] = None if each.offset == NOT_FOUND else int(each.offset)
        if set(found) != set(partitions):
            raise WireError(f"{leader} answered for partitions {sorted(found)} of {topic}, asked were {partitions}")
        return found

    def _gives_ids(self, topic: str, partition: int, offset: int) -> bool:
        leader = describe([topic], self._servers, self._network).topics[topic].leaders[partition]
        if leader is None:
            raise TryAgain(f"{topic}-{partition} has no leader")
        request = FetchRequest(0, 1, 1, [FetchPartition(topic, partition, offset, 1)], wants_ids=True)
        frame, position = _ask(
            self._network, leader, fetch.API_KEY, FETCH_VERSION, fetch.encode_request(FETCH_VERSION, request)
        )
        for answer in fetch.decode_response(FETCH_VERSION, frame, position).partitions:
            check(answer.error_code, f"a record of {topic}-{partition} at {offset}")
            return answer.ids is not None
        raise WireError(f"{leader} answered nothing for {topic}-{partition}")

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        failures = 0
        while True:
            try:
                return ask()
            except NoSuchTopic:
                raise
            except (TryAgain, OSError, WireError) as error:
                failures += 1
                if failures >= self._patience.attempts:
                    raise Unreachable(f"gave up after {failures} attempts: {error}") from error
            self._network.pause(self._patience.pause_after(failures))


def describe(topics: Sequence[str] | None, servers: Sequence[Address], network: Network) -> Description:
    """Ask each server in turn for Metadata, once, and return the first answer.

    Raise TryAgain, NoSuchTopic or network.Refused.
    """
    from broker.wire import cold  # the schema of all of Kafka; a task needs it only here

    asked = {
        "topics": None if topics is None else [{"name": each} for each in topics],
        "allow_auto_topic_creation": False,
    }
    body = cold.encode(METADATA, METADATA_VERSION, "request", asked)
    errors = []
    for server in servers:
        try:
            frame, position = _ask(network, server, METADATA, METADATA_VERSION, body)
            answer = cold.decode(METADATA, METADATA_VERSION, "response", frame, position, METADATA_VERSION).newest
            return _described(answer)
        except (OSError, WireError) as error:
            errors.append(f"{server}: {error}")
    raise TryAgain(f"no server answered ({'; '.join(errors)})")


def _described(answer: Any) -> Description:
    nodes = {int(each.node_id): Address(str(each.host), int(each.port)) for each in answer.brokers}
    topics = {}
    for topic in answer.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoSuchTopic(f"there is no topic {topic.name!r}")
        check(int(topic.error_code), f"topic {topic.name!r}")
        leaders = {int(each.partition_index): nodes.get(int(each.leader_id)) for each in topic.partitions}
        topic_id = str(topic.topic_id) if topic.topic_id and topic.topic_id.int else None
        name = str(topic.name)
        topics[name] = Topic(name, topic_id, dict(sorted(leaders.items())), bool(topic.is_internal))
    return Description(answer.cluster_id, topics)


def _ask(network: Network, server: Address, api_key: int, version: int, body: bytes) -> tuple[memoryview, int]:
    conversation = Conversation(network.connect(server))
    try:
        return conversation.ask(api_key, version, body)
    finally:
        conversation.close()
