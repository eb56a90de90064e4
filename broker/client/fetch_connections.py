"""SHELL (Twisted): fetches of many partitions over one connection to each broker.

A fetch that a broker holds open delays all later requests of its connection, so fetches have connections of their own.
broker.client.fetch_session says what each request asks for, and how long the broker may hold it.
"""

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from broker.client.core import Address
from broker.client.errors import ClientError, TopicRecreated, no_leader
from broker.client.fetch_session import FetchSession, Key, PartitionAsk, fetch_next
from broker.client.twisted import TwistedClient
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_UNCOMMITTED, FetchedPartition

OnResult = Callable[[FetchedPartition | Exception], None]
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
        self._looking_up: dict[str, list[Callable[[Exception | None], None]]] = {}
        self._hold = _Hold()

    def close(self) -> None:
        """Close the connections; the Deferreds that wait fail."""
        self._fetching.close()
        self.hold(False)

    def hold(self, is_held: bool) -> None:
        """While `is_held`, send no request, so that records stay at the brokers; requests that are out go on."""
        self._hold.set(is_held)

    def fetch(self, ask: PartitionAsk, answer: OnResult) -> None:
        """Call `answer` with the FetchedPartition, once it has records or its log has another end, or with an error.

        The error is TopicRecreated if the topic's id is no longer that of the ask, else another ClientError. Without a
        topic id the topic is read that has the name now.
        """
        topic = ask.topic
        is_another = ask.topic_id is not None and self._core.known_id(topic) not in (None, ask.topic_id)
        if is_another or self._core.known_leader(topic, ask.partition) is None:
            self._look_up(topic, lambda error: answer(error) if error is not None else self._begin(ask, answer))
        else:
            self._begin(ask, answer)

    def _begin(self, ask: PartitionAsk, answer: OnResult) -> None:
        leader = self._core.known_leader(ask.topic, ask.partition)
        if (error := self._another_topic(ask)) is not None:
            answer(error)
        elif leader is None:
            answer(no_leader(ask.topic, ask.partition))
        else:
            self._broker(leader.address).fetch(ask, answer, leader.epoch)

    def fetched(self, ask: PartitionAsk, result: FetchedPartition, answer: OnResult) -> None:
        """Pass on the result of a broker."""
        if result.error_code in ANOTHER_TOPIC:
            self._look_up(
                ask.topic, lambda error: answer(error or self._another_topic(ask) or self._error(ask, result))
            )
        elif result.error_code:
            answer(self._error(ask, result))
        else:
            answer(result)

    def _broker(self, address: Address) -> "_Broker":
        broker = self._brokers.get(address)
        if broker is None:
            session = FetchSession(*self._limits)
            broker = self._brokers[address] = _Broker(self, self._fetching, address, session, self._hold)
        return broker

    def _another_topic(self, ask: PartitionAsk) -> ClientError | None:
        known_id = self._core.known_id(ask.topic)
        is_another = ask.topic_id is not None and known_id is not None and known_id != ask.topic_id
        return TopicRecreated(ask.topic, known_id) if is_another else None

    def _error(self, ask: PartitionAsk, result: FetchedPartition) -> ClientError:
        try:
            self._core.check(ask.topic, ask.partition, result.error_code)
        except ClientError as error:
            return error
        raise AssertionError("only results with an error come here")

    def _look_up(self, topic: str, done: Callable[[Exception | None], None]) -> None:
        """Look up a topic's leaders and id; all who ask meanwhile share the request."""
        waiting = self._looking_up.setdefault(topic, [])
        waiting.append(done)
        if len(waiting) == 1:
            self._client.run(self._core.metadata([topic])).addBoth(self._looked_up, topic)

    def _looked_up(self, result: Any, topic: str) -> None:
        error = cast(Exception, result.value) if isinstance(result, Failure) else None
        for done in self._looking_up.pop(topic):
            done(error)


class _Hold:
    """Whether the brokers' next requests are held back."""

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: list[Deferred[None]] = []

    def set(self, is_held: bool) -> None:
        self.is_held = is_held
        if not is_held and self._waiting:
            waiting, self._waiting = self._waiting, []
            for deferred in waiting:
                deferred.callback(None)

    def end(self) -> "Deferred[None]":
        """Return a Deferred that fires when the hold ends."""
        end: Deferred[None] = Deferred()
        self._waiting.append(end)
        return end


class _Broker:
    """The fetches of one broker: requests follow each other while a partition is wanted.

    A fetch has no Deferred: 1,000 partitions wait for records at any time, and the garbage collector would visit the
    objects of 1,000 Deferreds again and again.
    """

    def __init__(
        self, owner: FetchConnections, client: TwistedClient, address: Address, session: FetchSession, hold: _Hold
    ) -> None:
        self._owner = owner
        self._client = client
        self._address = address
        self._session = session
        self._waiting: dict[Key, tuple[PartitionAsk, OnResult]] = {}
        self._runs = False
        self._hold = hold

    def fetch(self, ask: PartitionAsk, answer: OnResult, leader_epoch: int) -> None:
        """Call `answer` with the partition's next result; with an error if the partition is asked for again first."""
        replaced = self._waiting.pop(ask.key, None)
        topic_id = ask.topic_id if ask.topic_id is not None else self._client.core.known_id(ask.topic)
        wanted = ask if topic_id is ask.topic_id else ask._replace(topic_id=topic_id)
        self._session.want(wanted, self._now_ms(), leader_epoch)
        self._waiting[ask.key] = ask, answer
        if replaced is not None:
            replaced[1](ClientError(f"{ask.topic}-{ask.partition} was asked for again"))
        if not self._runs:
            self._runs = True
            self._run()

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
                for _, answer in waiting.values():
                    answer(error)
        self._runs = False

    @inlineCallbacks
    def _exchange(self) -> Any:
        steps = fetch_next(self._client.core, self._address, self._session, self._now_ms())
        response = yield self._client.run(steps)
        for asked, result in self._session.accept(response, self._now_ms()):
            ask, answer = self._waiting.pop(asked.key)
            self._owner.fetched(ask, result, answer)

    def _now_ms(self) -> int:
        return int(self._client.reactor.seconds() * 1_000)
