"""SHELL (Twisted): fetches of many partitions over one connection to each broker.

A fetch that a broker holds open delays all later requests of its connection, so fetches have connections of their own.
broker.client.fetch_session says what each request asks for, and how long the broker may hold it.
"""

from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from broker.client.core import Address
from broker.client.errors import BrokerError, ClientError, TopicRecreated
from broker.client.fetch_session import FetchSession, Key, PartitionAsk, fetch_next
from broker.client.twisted import TwistedClient
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_UNCOMMITTED, FetchedPartition

ANOTHER_TOPIC = {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}


class FetchConnections:
    """Fetch partitions from their leaders, which `client` looks up and knows.

    An answer has at most `max_bytes` of records, of all partitions of its broker.
    """

    def __init__(
        self,
        client: TwistedClient,
        *,
        max_wait_ms: int = 500,
        max_bytes: int = 4 << 20,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> None:
        self._client = client
        self._core = client.core
        self._fetching = TwistedClient("", client.reactor, core=client.core)
        self._limits = max_wait_ms, max_bytes, isolation_level
        self._brokers: dict[Address, _Broker] = {}
        self._looking_up: dict[str, list[Deferred[None]]] = {}
        self._hold = _Hold()

    def close(self) -> None:
        """Close the connections; the Deferreds that wait fail."""
        self._fetching.close()
        self.hold(False)

    def hold(self, is_held: bool) -> None:
        """While `is_held`, send no request, so that records stay at the brokers; requests that are out go on."""
        self._hold.set(is_held)

    @inlineCallbacks
    def fetch(self, ask: PartitionAsk) -> Any:
        """Return a Deferred of the FetchedPartition, once it has records or its log has another end.

        It fails with TopicRecreated if the topic's id is no longer that of the ask, else with ClientError. Without a
        topic id the topic is read that has the name now.
        """
        topic, partition, topic_id = ask.topic, ask.partition, ask.topic_id
        if topic_id is not None and self._core.known_id(topic) not in (None, topic_id):
            yield self._look_up(topic)
            self._check_id(topic, topic_id)
        leader = self._core.known_leader(topic, partition)
        if leader is None:
            yield self._look_up(topic)
            self._check_id(topic, topic_id)
            leader = self._core.known_leader(topic, partition)
        if leader is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        if topic_id is None:
            ask = ask._replace(topic_id=self._core.known_id(topic))
        result: FetchedPartition = yield self._broker(leader).fetch(ask)
        if result.error_code in ANOTHER_TOPIC:
            yield self._look_up(topic)
            self._check_id(topic, topic_id)
        self._core.check(topic, partition, result.error_code)
        return result

    def _broker(self, address: Address) -> "_Broker":
        broker = self._brokers.get(address)
        if broker is None:
            broker = self._brokers[address] = _Broker(
                self._fetching, address, FetchSession(*self._limits), self._hold
            )
        return broker

    def _check_id(self, topic: str, topic_id: UUID | None) -> None:
        found = self._core.known_id(topic)
        if topic_id is not None and found not in (None, topic_id):
            raise TopicRecreated(topic, found)

    def _look_up(self, topic: str) -> "Deferred[None]":
        """Look up a topic's leaders and id; all who ask meanwhile share the request."""
        found: Deferred[None] = Deferred()
        waiting = self._looking_up.setdefault(topic, [])
        waiting.append(found)
        if len(waiting) == 1:
            self._client.run(self._core.metadata([topic])).addBoth(self._looked_up, topic)
        return found

    def _looked_up(self, result: Any, topic: str) -> None:
        for found in self._looking_up.pop(topic):
            found.callback(result if isinstance(result, Failure) else None)


class _Hold:
    """Whether the brokers' next requests are held back."""

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: list[Deferred[None]] = []

    def set(self, is_held: bool) -> None:
        self.is_held = is_held
        if not is_held and self._waiting:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                each.callback(None)

    def end(self) -> "Deferred[None]":
        """Return a Deferred that fires when the hold ends."""
        end: Deferred[None] = Deferred()
        self._waiting.append(end)
        return end


class _Broker:
    """The fetches of one broker: requests follow each other while a partition is wanted."""

    def __init__(self, client: TwistedClient, address: Address, session: FetchSession, hold: _Hold) -> None:
        self._client = client
        self._address = address
        self._session = session
        self._waiting: dict[Key, Deferred[FetchedPartition]] = {}
        self._runs = False
        self._hold = hold

    def fetch(self, ask: PartitionAsk) -> "Deferred[FetchedPartition]":
        """Return a Deferred of the partition's next result. It fails if the partition is asked for again meanwhile."""
        replaced = self._waiting.pop(ask.key, None)
        self._session.want(ask, self._now_ms())
        found = self._waiting[ask.key] = Deferred()
        if replaced is not None:
            replaced.errback(ClientError(f"{ask.topic}-{ask.partition} was asked for again"))
        if not self._runs:
            self._runs = True
            self._run()
        return found

    @inlineCallbacks
    def _run(self) -> Any:
        while self._session:
            yield deferLater(self._client.reactor, 0)  # the asks of this turn go into one request
            while self._hold.is_held:
                yield self._hold.end()
            try:
                yield self._exchange()
            except Exception as error:
                self._session.fail()
                waiting, self._waiting = self._waiting, {}
                for found in waiting.values():
                    found.errback(error)
        self._runs = False

    @inlineCallbacks
    def _exchange(self) -> Any:
        steps = fetch_next(self._client.core, self._address, self._session, self._now_ms())
        response = yield self._client.run(steps)
        for ask, result in self._session.accept(response, self._now_ms()):
            self._waiting.pop(ask.key).callback(result)

    def _now_ms(self) -> int:
        return int(self._client.reactor.seconds() * 1_000)
