"""A client's requests and answers, without sockets.

Each operation is a generator of `Exchange`s. It yields a request, the shell (`blocking`, `asyncio`, `twisted`) sends it
to the broker and sends the body of the answer into the generator, or throws `Unreachable` into it. The generator's
return value is the operation's result. The client negotiates versions with each node once (ApiVersions). It looks up a
leader when it does not know it, and again after the leader has moved. A request names the leader's epoch, so that a
broker that leads in another epoch refuses it (KIP-320).

Produce and Fetch request Snowflake ids if the broker has the versions for it. A broker other than Flakelog ignores the
private tag and answers without ids.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from broker.client.address import Address as Address
from broker.client.address import addresses_of as addresses_of  # noqa: F401  (for its users)
from broker.client.address import parse_addresses as parse_addresses  # noqa: F401  (for its users)
from broker.client.api_versions import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    NEWEST,
    OLDEST,
    SASL_AUTHENTICATE,
)
from broker.client.errors import (
    LEADER_IN_DOUBT,
    BadAnswer,
    BrokerError,
    ClientError,
    NoBrokerKnown,
    Unreachable,
    Unsupported,
    no_leader,
)
from broker.client.exchange import Exchange as Exchange
from broker.client.exchange import Steps as Steps
from broker.client.exchange import advance as advance  # noqa: F401  (for its users)
from broker.client.exchange import carry_out as carry_out  # noqa: F401  (for its users)
from broker.client.known_nodes import KnownNodes
from broker.client.leaders import NO_EPOCH, Leader, Leaders
from broker.client.leaders import Partition as Partition
from broker.version import VERSION
from broker.wire import cold, fetch, produce, tags
from broker.wire.errors import ErrorCode
from broker.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from broker.wire.produce import PartitionRecords, PartitionResult, ProduceRequest
from broker.wire.schema import name_of, schema

if TYPE_CHECKING:
    from broker.client.security.client_security import ClientSecurity

CLIENT_ID = "flakelog"

LATEST, EARLIEST = -1, -2
NOT_FOUND = -1  # an offset, in the answer to ListOffsets
PARTITIONS_AT_ONCE = 5_000  # partitions of a request, half of Flakelog's limit (flakelog.max.request.partitions)
THROTTLED_MAX = 10  # attempts of a fetch that a quota holds back; Kafka holds some back for ever

_TRANSACTIONAL_PRODUCE = 11  # from v12 on, the broker itself adds partitions to the transaction (KIP-890)
_LIST_OFFSETS_BY_ID = 6

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `leaders` has every partition, None if it has no leader now; `id` is None before KIP-516."""

    name: str
    id: UUID | None
    partitions: int
    leaders: Mapping[int, Address | None] = field(default_factory=dict)
    is_internal: bool = False


class ClientCore:
    """A client's operations, with its knowledge of the cluster: each node's versions, and the partition leaders.

    `security` protects its connections; None for plain ones without a login.
    """

    def __init__(self, bootstrap: Iterable[Address], security: "ClientSecurity | None" = None) -> None:
        self.security = security
        self.cluster_id: str | None = None
        self.controller_id = -1
        self._versions: dict[Address, dict[int, tuple[int, int]]] = {}
        self._login_versions: dict[Address, int] = {}
        """The version of each broker's last login. Over a session that has ended, a broker answers only a login."""
        self._nodes = KnownNodes(bootstrap)
        self.why_no_broker = "no address of a broker is known"
        """The message of errors while `bootstrap` is empty."""
        self._leaders = Leaders()
        self._topic_ids: dict[str, UUID] = {}

    @property
    def bootstrap(self) -> list[Address]:
        """The addresses that the client was given."""
        return self._nodes.bootstrap

    def forget(self, address: Address) -> None:
        """Forget the versions of a node that did not answer. Look up its partitions again, at other nodes first."""
        self._versions.pop(address, None)
        self._leaders.doubt_broker(address)
        self._nodes.avoid(address)

    def forget_topic(self, name: str) -> None:
        """Forget the leaders of a topic that was deleted."""
        self._leaders.forget_topic(name)

    # --- versions ------------------------------------------------------------------------------------------------

    def version(self, address: Address, api_key: int, newest: int | None = None) -> Steps[int]:
        """Return the highest version of an API that both the node and this client have. Raise Unsupported without one.

        `newest` is the client's highest version if it is not the usual one.
        """
        if address not in self._versions:
            fields = {"client_software_name": "flakelog", "client_software_version": VERSION}
            body = cold.encode(API_VERSIONS, 3, "request", fields)
            answer = yield Exchange(address, API_VERSIONS, 3, True, body)
            version = 3
            if int.from_bytes(answer[:2], "big") == ErrorCode.UNSUPPORTED_VERSION:  # Kafka before 2.4 (KIP-511)
                version = 0
                answer = yield Exchange(address, API_VERSIONS, 0, False, b"")
            response = cold.decode(API_VERSIONS, version, "response", answer, 0, newest=version).newest
            self._versions[address] = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
            self._nodes.trust(address)
        low, high = self._versions[address].get(api_key, (0, -1))
        version = min(high, NEWEST[api_key] if newest is None else newest)
        if version < max(low, OLDEST[api_key]):
            served = f"serves v{low} to v{high} of {name_of(api_key)}" if high >= 0 else f"has no {name_of(api_key)}"
            raise Unsupported(
                f"the broker at {address} {served}; this client needs one of v{OLDEST[api_key]} to v{NEWEST[api_key]}"
            )
        return version

    def log_in(self, address: Address) -> Steps[int]:
        """Log in over a new connection, or anew. Return the lifetime of the session in ms, 0 without an end.

        Raise NotAuthenticated.
        """
        assert self.security is not None, "a connection without security needs no login"
        version = self._login_versions.pop(address, None)
        if version is None or address in self._versions:
            version = yield from self.version(address, SASL_AUTHENTICATE)
        lifetime_ms = yield from self.security.log_in(address, version)
        self._login_versions[address] = version
        return lifetime_ms

    def ask(self, address: Address, api_key: int, fields: Mapping[str, Any], by_id: bool = False) -> Steps[Any]:
        """Send a request encoded by the schema; return the answer in the form of this client's newest version.

        With `by_id` the request has the private tag, and an answer without it raises Unsupported. Raise ValueError for
        a field whose type or range is not the schema's.
        """
        version = yield from self.version(address, api_key)
        if by_id and version < _LIST_OFFSETS_BY_ID:
            raise Unsupported(f"the broker at {address} keeps no ids; only Flakelog can find them")
        tagged = {tags.IDS: tags.REQUEST} if by_id else None
        try:
            body = cold.encode(api_key, version, "request", fields, tagged)
        except (AttributeError, OverflowError, TypeError, ValueError, struct.error) as error:
            raise ValueError(f"{name_of(api_key)} cannot be sent with these arguments: {error}") from error
        flexible = bool(schema(api_key, version, "request").__flexible__)
        answer = yield Exchange(address, api_key, version, flexible, body)
        message = cold.decode(api_key, version, "response", answer, 0, NEWEST[api_key])
        if by_id and tags.IDS not in message.tags:
            raise Unsupported(f"the broker at {address} keeps no ids; only Flakelog can find them")
        return message.newest

    # --- metadata ------------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None = None) -> Steps[list[TopicInfo]]:
        """Return the topics with these names, or all topics, and create none. Raise BrokerError if one has an error."""
        infos = yield from self.look_up(topics)
        for topic_info in infos.values():
            if isinstance(topic_info, BrokerError):
                raise topic_info
        return [topic_info for topic_info in infos.values() if isinstance(topic_info, TopicInfo)]

    def look_up(self, topics: Iterable[str] | None) -> Steps[dict[str, TopicInfo | BrokerError]]:
        """Look up topics, or all of them, and their leaders; create none. Return each topic or its error."""
        wanted = None if topics is None else [{"name": name} for name in topics]
        fields = {"topics": wanted, "allow_auto_topic_creation": False}
        response = yield from self.ask_any(METADATA, fields)
        self.cluster_id = response.cluster_id
        self.controller_id = int(response.controller_id)
        self._nodes.learn({node.node_id: Address(node.host, node.port) for node in response.brokers})
        return {str(topic.name): self._learn(topic) for topic in response.topics}

    def _learn(self, topic: Any) -> TopicInfo | BrokerError:
        """Return a topic, or its error, from an answer. If the answer has nothing new, ask another node next."""
        name = str(topic.name)
        self._topic_ids.pop(name, None)
        if topic.error_code:
            return BrokerError(int(topic.error_code), f"topic {name}")
        if topic.topic_id is not None:
            self._topic_ids[name] = topic.topic_id
        leaders: dict[int, Address | None] = {}
        for row in sorted(topic.partitions, key=lambda row: int(row.partition_index)):
            partition = int(row.partition_index)
            address = self._nodes.by_id.get(row.leader_id)
            if not self._leaders.learn((name, partition), address, int(row.leader_epoch), topic.topic_id):
                self._nodes.doubt_answer()
            leader = self._leaders.get((name, partition))
            leaders[partition] = None if leader is None else leader.address
        return TopicInfo(name, topic.topic_id, len(leaders), leaders, bool(topic.is_internal))

    def ask_any(self, api_key: int, fields: Mapping[str, Any]) -> Steps[Any]:
        """Send a request that any node can answer to the first one that does, and return the answer, as `ask`."""
        failures: list[Unreachable] = []
        for address in self._nodes.in_order():
            try:
                response = yield from self.ask(address, api_key, fields)
            except Unreachable as error:
                failures.append(error)
            else:
                self._nodes.answered(address)
                return response
        raise _all_of(failures) if failures else NoBrokerKnown(self.why_no_broker)

    def nodes(self) -> Steps[dict[int, Address]]:
        """Return all nodes by id."""
        yield from self.metadata([])
        return dict(self._nodes.by_id)

    def controller(self) -> Steps[Address]:
        """Return the controller, or any node if it is not known: other nodes forward requests to the controller."""
        yield from self.metadata([])
        nodes = self._nodes.by_id
        return nodes.get(self.controller_id, next(iter(nodes.values()), self.bootstrap[0]))

    def doubt_controller(self) -> None:
        """Ask another node next time who the controller is: the last answer names one that no longer is."""
        self._nodes.doubt_answer()

    def leader(self, topic: str, partition: int) -> Steps[Address]:
        """Return the leader of a partition; look it up if it is not known. Raise BrokerError if it has none."""
        known = self._leaders.get((topic, partition))
        if known is not None:
            return known.address
        failures: dict[Partition, ClientError] = {}
        leaders = yield from self.leaders_of([(topic, partition)], failures)
        for error in failures.values():
            raise error
        return next(iter(leaders))

    def known_leader(self, topic: str, partition: int) -> Leader | None:
        """Return the partition's leader with its epoch, None if it must be looked up."""
        return self._leaders.get((topic, partition))

    def known_epoch(self, topic: str, partition: int) -> int:
        """Return the leader's epoch, for a request; -1 if it is not known, and then the broker does not compare."""
        leader = self._leaders.get((topic, partition))
        return NO_EPOCH if leader is None else leader.epoch

    def known_id(self, topic: str) -> UUID | None:
        """Return the id of a topic that was looked up, None from a broker without topic ids (before KIP-516)."""
        return self._topic_ids.get(topic)

    def check(self, topic: str, partition: int, error_code: int, message: str | None = None) -> None:
        """Raise BrokerError if a partition has an error; look up its leader again if that may have moved."""
        if error_code:
            error = BrokerError(error_code, f"{topic}-{partition}", message)
            if error.code in LEADER_IN_DOUBT:
                self._leaders.doubt((topic, partition))
            raise error

    # --- the log -------------------------------------------------------------------------------------------------

    def list_offsets(
        self,
        partitions: Iterable[Partition],
        timestamp: int,
        *,
        by_id: bool = False,
        isolation_level: int = fetch.READ_UNCOMMITTED,
        failed: dict[Partition, ClientError] | None = None,
    ) -> Steps[dict[Partition, int | None]]:
        """Return {partition: its offset at LATEST or EARLIEST, or that of its first record at or after `timestamp`}.

        The offset is None if the partition has no such record. With `by_id`, `timestamp` is an id. One request asks a
        leader for up to PARTITIONS_AT_ONCE partitions. Raise the error of the first partition that has one. If
        `failed` is given, put the errors of partitions into it instead, and return the other partitions.
        """
        wanted = list(dict.fromkeys(partitions))
        failures: dict[Partition, ClientError] = {}
        leaders = yield from self.leaders_of(wanted, failures)
        offsets: dict[Partition, int | None] = {}
        for address, led in leaders.items():
            for group in batched(led, PARTITIONS_AT_ONCE):
                try:
                    offsets |= yield from self._list_offsets(
                        address, group, timestamp, by_id, isolation_level, failures
                    )
                except Unreachable as error:
                    failures |= dict.fromkeys(group, error)
                if failures and failed is None:
                    raise next(iter(failures.values()))
        if failed is not None:
            failed |= failures
        elif failures:
            raise next(iter(failures.values()))
        return {key: offsets[key] for key in wanted if key in offsets}

    def leaders_of(
        self, partitions: Iterable[Partition], failures: dict[Partition, ClientError]
    ) -> Steps[dict[Address, list[Partition]]]:
        """Return the partitions by their leaders, which one request looks up if some are not known."""
        known = self.known_leader
        unknown = dict.fromkeys(topic for topic, partition in partitions if known(topic, partition) is None)
        topics: dict[str, TopicInfo | BrokerError] = {}
        if unknown:
            topics = yield from self.look_up(unknown)
        leaders: dict[Address, list[Partition]] = {}
        for topic, partition in partitions:
            leader = known(topic, partition)
            if leader is None:
                failures[topic, partition] = _no_leader(topics.get(topic), topic, partition)
            else:
                leaders.setdefault(leader.address, []).append((topic, partition))
        return leaders

    def _list_offsets(
        self,
        address: Address,
        partitions: Iterable[Partition],
        timestamp: int,
        by_id: bool,
        isolation_level: int,
        failures: dict[Partition, ClientError],
    ) -> Steps[dict[Partition, int | None]]:
        topics: dict[str, list[dict[str, int]]] = {}
        for topic, partition in partitions:
            epoch = self.known_epoch(topic, partition)
            asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
            topics.setdefault(topic, []).append(asked)
        named = [{"name": topic, "partitions": asked} for topic, asked in topics.items()]
        fields = {"replica_id": -1, "isolation_level": isolation_level, "topics": named}
        response = yield from self.ask(address, LIST_OFFSETS, fields, by_id)
        offsets: dict[Partition, int | None] = {}
        for topic_answer in response.topics:
            for row in topic_answer.partitions:
                key = str(topic_answer.name), int(row.partition_index)
                try:
                    self.check(*key, int(row.error_code))
                except BrokerError as error:
                    failures[key] = error
                else:
                    offsets[key] = None if row.offset == NOT_FOUND else int(row.offset)
        missing = set(partitions) - offsets.keys() - failures.keys()
        if missing:
            raise BadAnswer(f"the broker at {address} gave no offsets of {_names(missing)}, which it was asked for")
        return offsets

    def produce(
        self, topic: str, partition: int, batch: bytes | bytearray, acks: int = -1, timeout_ms: int = 30_000
    ) -> Steps[PartitionResult]:
        """Send a record batch; the result has its base offset and, from Flakelog, its ids. Raise BrokerError."""
        address = yield from self.leader(topic, partition)
        version = yield from self.version(address, produce.API_KEY)
        records = (topic, partition, memoryview(batch))
        body = produce.encode_request(version, ProduceRequest(None, acks, timeout_ms, [records], wants_ids=True))
        exchange = Exchange(address, produce.API_KEY, version, version >= produce.FLEXIBLE, body, acks != 0)
        answer = yield exchange
        if acks == 0:
            return PartitionResult(topic, partition)
        result = produce.decode_response(version, answer, 0)[0]
        self.check(topic, partition, result.error_code, result.message)
        return result

    def produce_in_transaction(
        self,
        address: Address,
        transactional_id: str | None,
        batches: Iterable[PartitionRecords],
        timeout_ms: int = 30_000,
    ) -> Steps[list[PartitionResult]]:
        """Send one batch of each partition to their leader; return a result for each, with its error code.

        Without a transactional id they are in no transaction.
        """
        version = yield from self.version(address, produce.API_KEY, _TRANSACTIONAL_PRODUCE)
        request = ProduceRequest(transactional_id, -1, timeout_ms, list(batches), wants_ids=False)
        body = produce.encode_request(version, request)
        answer = yield Exchange(address, produce.API_KEY, version, version >= produce.FLEXIBLE, body)
        results = produce.decode_response(version, answer, 0)
        for result in results:
            if result.error_code in LEADER_IN_DOUBT:
                self._leaders.doubt((str(result.topic), result.partition))
        return results

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        wants_ids: bool = True,
        isolation_level: int = fetch.READ_UNCOMMITTED,
    ) -> Steps[FetchedPartition]:
        """Fetch batches, the first of which holds `offset`; broker.client.records decodes them. Raise BrokerError."""
        address = yield from self.leader(topic, partition)
        asked = FetchPartition(topic, partition, offset, max_bytes, self.known_epoch(topic, partition))
        request = FetchRequest(
            max_wait_ms, min_bytes, max_bytes, [asked], isolation_level=isolation_level, wants_ids=wants_ids
        )
        response = yield from self.fetch_answer(address, request)
        result = response.partitions[0]
        self.check(topic, partition, result.error_code)
        return result

    def fetch_answer(self, address: Address, request: FetchRequest) -> Steps[FetchResponse]:
        """Send a Fetch, again if a quota holds it back; return an answer with partitions. Raise ClientError."""
        version = yield from self.version(address, fetch.API_KEY)
        what = ", ".join(f"{partition.topic}-{partition.partition}" for partition in request.partitions[:3])
        for _ in range(THROTTLED_MAX):
            answer = yield fetch_exchange(address, version, request)
            response = fetch.decode_response(version, answer, 0)
            if response.error_code:
                raise BrokerError(response.error_code, what)
            if not response.is_held_back:  # if it is, the broker reads the next request after the throttle time
                break
        if not response.partitions:
            over = f"; a quota holds it back, {THROTTLED_MAX} times now" if response.is_held_back else ""
            raise ClientError(f"the broker at {address} answered a fetch of {what} without it{over}")
        return response

    def init_producer_id(self) -> Steps[tuple[int, int]]:
        """Return a (producer id, epoch) for an idempotent producer (KIP-98)."""
        fields = {"transactional_id": None, "transaction_timeout": 60_000}
        response = yield from self.ask_any(INIT_PRODUCER_ID, fields)
        if response.error_code:
            raise BrokerError(int(response.error_code), "a producer id")
        return int(response.producer_id), int(response.producer_epoch)


def fetch_exchange(address: Address, version: int, request: FetchRequest) -> Exchange:
    """Return the exchange of a Fetch. A shell that sends several before it receives uses this instead of `fetch`."""
    body = fetch.encode_request(version, request)
    return Exchange(address, fetch.API_KEY, version, version >= fetch.FLEXIBLE, body)


def batched(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in groups of at most `size`, in order."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _no_leader(info: TopicInfo | BrokerError | None, topic: str, partition: int) -> BrokerError:
    """Return the error of a partition without a leader. `info` is the answer about its topic."""
    if isinstance(info, BrokerError):
        return info
    if info is None or partition in info.leaders:
        return no_leader(topic, partition)
    there = f"the topic has partitions 0 to {info.partitions - 1}"
    return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}", there)


def _names(partitions: Iterable[Partition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)[:10])


def _all_of(failures: Sequence[Unreachable]) -> Unreachable:
    """Return one error that names every address that was tried."""
    if len(failures) == 1:
        return failures[0]
    return Unreachable(
        " or ".join(failure.address for failure in failures),
        "; ".join(f"{failure.address}: {failure.reason}" for failure in failures),
    )
