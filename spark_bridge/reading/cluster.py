"""Requests a read makes to a cluster before it fetches: topics and leaders, and offsets by time or id.

One ListOffsets request has all partitions that a broker leads. A `Snapshot` asks for all topics of a read at once, so a
plan for a thousand partitions takes a few requests.

Flakelog reads the timestamps of ListOffsets as ids if the request says so (broker.wire.tags). Apache Kafka would ignore
that, so an answer without the tag is an error.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from broker.client.api_versions import DESCRIBE_CONFIGS
from broker.client.core import EARLIEST, LATEST, ClientCore, Partition, Steps, batched
from broker.client.errors import BrokerError, ClientError, NotAuthenticated, Unsupported
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from spark_bridge.reading.id_clock import IdClock
from spark_bridge.reading.network import Address, BrokerRefused, ClusterError, ReadClient, connect
from spark_bridge.reading.settings import Patience as Patience
from spark_bridge.reading.settings import ReadSettings

_FIRST_ID = 0
_TOPIC, _BROKER = 2, 4  # types of settings in DescribeConfigs
_ID_SETTINGS = ("flakelog.ids.epoch.ms", "flakelog.ids.time.bits")
_CLEANUP_POLICY, _COMPACT = "cleanup.policy", "compact"
_TOPICS_AT_ONCE = 1_000  # of a request for settings; its answer takes some 100 bytes for each

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


class NoSuchTopic(ClusterError):
    """The cluster has no such topic; the name is probably mistyped."""


class Unreachable(ClusterError):
    """No answer within the allowed attempts; the message names the request and the last error."""


class Cluster:
    """Requests to a cluster, over one connection to each of its brokers.

    Each method raises a ClusterError: NoSuchTopic, Unreachable after `patience`, or network.BrokerRefused for a
    permanent error. `on_wait` is called with the reason before each pause between two attempts.
    """

    def __init__(
        self,
        client: ReadClient,
        patience: Patience = Patience(),
        on_wait: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._on_wait = on_wait
        self._client = client
        self._patience = patience
        self._has_ids: bool | None = None

    @classmethod
    def connect(
        cls,
        servers: Sequence[Address],
        settings: ReadSettings = ReadSettings(),
        on_wait: Callable[[str], object] = lambda reason: None,
    ) -> "Cluster":
        """Return the cluster behind `servers`: `with Cluster.connect(servers, settings) as cluster: ...`"""
        return cls(connect(servers, settings), settings.patience, on_wait)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later request opens them again."""
        self._client.close()

    def describe(self, topics: Iterable[str] | None = None) -> Description:
        """Describe these topics, or all."""
        names = None if topics is None else sorted(set(topics))
        return self._patiently(lambda: _describe(self._client.core, names))

    def snapshot(self, described: Description) -> "Snapshot":
        """Return the offsets of all described topics as they are when they are first asked for."""
        partitions = [(name, p) for name, topic in described.topics.items() for p in topic.leaders]
        return Snapshot(self, partitions)

    def earliest(self, topic: str) -> dict[int, int]:
        return self._of(topic).earliest(topic)

    def latest(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """Return the high watermarks; with `committed` the last stable offsets, before which no transaction is open."""
        return self._of(topic).latest(topic, committed=committed)

    def first_at_time(self, topic: str, time_ms: int) -> dict[int, int | None]:
        return self._of(topic).first_at_time(topic, time_ms)

    def first_at_id(self, topic: str, id: int) -> dict[int, int | None]:
        """Return the first offsets whose id is at least `id`. Raise BrokerRefused if the broker keeps no ids."""
        return self._of(topic).first_at_id(topic, id)

    def keeps_ids(self, topic: str) -> bool:
        """Return True if the topic's messages have ids: in all topics of Flakelog, in none of Apache Kafka."""
        if self._has_ids is None:
            try:
                self.first_at_id(topic, _FIRST_ID)
            except BrokerRefused as error:
                if not isinstance(error.__cause__, Unsupported):
                    raise
                self._has_ids = False
            else:
                self._has_ids = True
        return self._has_ids

    def id_clock(self) -> IdClock:
        """Return the layout of the broker's ids. The default stands for a broker that names none (Apache Kafka)."""
        return self._patiently(lambda: _id_clock(self._client.core))

    def compacted(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the topics that the broker compacts, so that their logs may lack offsets.

        Return none if the broker refuses to describe topics (DescribeConfigs, KIP-133).
        """
        names = sorted(set(topics))
        if not names:
            return frozenset()
        try:
            return self._patiently(lambda: _compacted(self._client.core, names))
        except BrokerRefused:
            return frozenset()

    def list_offsets(
        self, partitions: Sequence[Partition], timestamp: int, *, by_id: bool = False, committed: bool = False
    ) -> dict[Partition, int | None]:
        """Return an offset for each partition; broker.client.core.ClientCore.list_offsets says which."""
        level = READ_COMMITTED if committed else READ_UNCOMMITTED
        core = self._client.core
        return self._patiently(lambda: core.list_offsets(partitions, timestamp, by_id=by_id, isolation_level=level))

    def _of(self, topic: str) -> "Snapshot":
        return self.snapshot(self.describe([topic]))

    def _patiently(self, make: Callable[[], Steps[_Answer]]) -> _Answer:
        failures = 0
        while True:
            try:
                return self._client.run(make())
            except ClientError as error:
                if is_final(error):
                    raise BrokerRefused(str(error)) from error
                failures += 1
                if failures >= self._patience.attempts:
                    raise Unreachable(f"gave up after {failures} attempts: {error}") from error
                self._on_wait(str(error))
            self._client.pause(self._patience.pause_after(failures))


class Snapshot:
    """Offsets of several topics for one plan. Each question is asked once, for all the topics, and then remembered.

    The methods raise what those of Cluster raise.
    """

    def __init__(self, cluster: Cluster, partitions: Sequence[Partition]) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._answers: dict[tuple[int, bool, bool], dict[str, dict[int, int | None]]] = {}

    def earliest(self, topic: str) -> dict[int, int]:
        return _certain(topic, self._ask(topic, EARLIEST))

    def latest(self, topic: str, *, committed: bool = False) -> dict[int, int]:
        """Return the high watermarks; with `committed` the last stable offsets."""
        return _certain(topic, self._ask(topic, LATEST, committed=committed))

    def first_at_time(self, topic: str, time_ms: int) -> dict[int, int | None]:
        return self._ask(topic, time_ms)

    def first_at_id(self, topic: str, id: int) -> dict[int, int | None]:
        return self._ask(topic, id, by_id=True)

    def _ask(
        self, topic: str, timestamp: int, *, by_id: bool = False, committed: bool = False
    ) -> dict[int, int | None]:
        question = timestamp, by_id, committed
        if question not in self._answers:
            by_topic: dict[str, dict[int, int | None]] = {name: {} for name, _ in self._partitions}
            offsets = self._cluster.list_offsets(self._partitions, timestamp, by_id=by_id, committed=committed)
            for (name, partition), offset in offsets.items():
                by_topic[name][partition] = offset
            self._answers[question] = by_topic
        return dict(sorted(self._answers[question].get(topic, {}).items()))


def is_final(error: ClientError) -> bool:
    """Return True if a retry does not change the error."""
    return isinstance(error, (Unsupported, NotAuthenticated)) or isinstance(error, BrokerError) and not error.retriable


def _id_clock(core: ClientCore) -> Steps[IdClock]:
    node, address = min((yield from core.nodes()).items())
    resource = {"resource_type": _BROKER, "resource_name": str(node), "configuration_keys": _ID_SETTINGS}
    answer = yield from core.ask(address, DESCRIBE_CONFIGS, {"resources": [resource]})
    (result,) = answer.results
    if result.error_code:
        raise BrokerError(int(result.error_code), f"the id layout of broker {node}", result.error_message)
    values = {config.name: int(config.value) for config in result.configs if config.value is not None}
    if not set(_ID_SETTINGS) <= values.keys():
        return IdClock()
    epoch, time_bits = (values[name] for name in _ID_SETTINGS)
    return IdClock(epoch, time_bits)


def _compacted(core: ClientCore, names: Sequence[str]) -> Steps[frozenset[str]]:
    _, address = min((yield from core.nodes()).items())
    compacted = set()
    for some in batched(names, _TOPICS_AT_ONCE):
        resources = [
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": (_CLEANUP_POLICY,)} for name in some
        ]
        answer = yield from core.ask(address, DESCRIBE_CONFIGS, {"resources": resources})
        for topic in answer.results:  # a topic with an error has no values
            values = {config.name: config.value or "" for config in topic.configs or ()}
            if _COMPACT in values.get(_CLEANUP_POLICY, "").replace(" ", "").split(","):
                compacted.add(str(topic.resource_name))
    return frozenset(compacted)


def _certain(topic: str, offsets: Mapping[int, int | None]) -> dict[int, int]:
    missing = sorted(partition for partition, offset in offsets.items() if offset is None)
    if missing:
        raise Unreachable(f"{topic}: the broker gave no offset for partitions {missing}")
    return {partition: offset for partition, offset in offsets.items() if offset is not None}


def _describe(core: ClientCore, names: Sequence[str] | None) -> Steps[Description]:
    try:
        metadata = yield from core.metadata(names)
    except BrokerError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoSuchTopic(f"there is no topic {error.what.removeprefix('topic ')!r}") from None
        raise
    topics = {
        topic.name: Topic(topic.name, None if topic.id is None else str(topic.id), topic.leaders, topic.is_internal)
        for topic in metadata
    }
    return Description(core.cluster_id, topics)
