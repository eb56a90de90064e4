"""SHELL (asyncio): fetches of many partitions under asyncio, over one connection to each broker.

broker.client.fetch_session says what each request asks for, and how long the broker may hold it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from uuid import UUID

from broker.client.address import Address
from broker.client.asyncio import AsyncClient
from broker.client.consumer_figures import FetchFigures
from broker.client.errors import BrokerError, TopicRecreated, no_leader
from broker.client.fetch_config import FetchConfig
from broker.client.fetch_session import FetchSession, Key, PartitionAsk, fetch_next
from broker.client.leaders import Leader
from broker.wire.fetch import FetchedPartition

OnAnswer = Callable[[PartitionAsk, FetchedPartition | Exception], None]


class AsyncFetches:
    """Fetch partitions from their leaders, which `client` looks up; call `answer` with each ask and its result.

    A broker answers the requests of a connection in order, so fetches that wait for records need separate connections.
    """

    def __init__(self, client: AsyncClient, config: FetchConfig, figures: FetchFigures, answer: OnAnswer) -> None:
        self.client = client
        self.fetching = client.apart()
        self.figures = figures
        self._config = config
        self._answer = answer
        self._brokers: dict[Address, _Broker] = {}
        self._topic_ids: dict[Key, object] = {}
        self._expected_ids: dict[Key, UUID] = {}
        self._homeless: dict[Key, PartitionAsk] = {}
        self._lookup: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End all fetches, without answers."""
        all_tasks = *(broker.task for broker in self._brokers.values()), self._lookup
        tasks = [task for task in all_tasks if task is not None]
        self.fetching.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def expect(self, key: Key, topic_id: UUID | None) -> None:
        """Fetch the partition of this topic only. An ask gets TopicRecreated while its name means another topic.

        With None, the first topic that is found is the one.
        """
        self._topic_ids.pop(key, None)
        self._expected_ids.pop(key, None)
        if topic_id is not None:
            self._expected_ids[key] = topic_id

    def want(self, asks: Iterable[PartitionAsk]) -> None:
        """Fetch these partitions."""
        for ask in asks:
            leader = self.client.core.known_leader(ask.topic, ask.partition)
            if leader is None:
                self._homeless[ask.key] = ask
            else:
                self._send(leader, ask)
        if self._homeless and self._lookup is None:
            self._lookup = asyncio.create_task(self._look_up())

    def _send(self, leader: Leader, ask: PartitionAsk) -> None:
        now = self.client.core.known_id(ask.topic)
        before = self._expected_ids.get(ask.key) or self._topic_ids.get(ask.key)
        self._topic_ids[ask.key] = now or before
        if before is not None and now is not None and before != now:
            self._answer(ask, TopicRecreated(ask.topic, now))
            return
        if leader.address not in self._brokers:
            limits = self._config.fetch_max_wait_ms, self._config.fetch_max_bytes, self._config.isolation
            session = FetchSession(*limits, min_bytes=self._config.fetch_min_bytes)
            self._brokers[leader.address] = _Broker(self, leader.address, session)
        self._brokers[leader.address].want(ask._replace(topic_id=now), leader.epoch)

    async def _look_up(self) -> None:
        """Look up the leaders of partitions that have none known."""
        while self._homeless:
            asks, self._homeless = list(self._homeless.values()), {}
            errors: dict[str, Exception] = {}
            for topic in dict.fromkeys(ask.topic for ask in asks):
                try:
                    await self.client.run(self.client.core.metadata([topic]))
                except Exception as error:  # each ask needs an answer, whatever happened
                    errors[topic] = error
            for ask in asks:
                leader = self.client.core.known_leader(ask.topic, ask.partition)
                if ask.topic in errors:
                    self._answer(ask, errors[ask.topic])
                elif leader is None:
                    self._answer(ask, no_leader(ask.topic, ask.partition))
                else:
                    self._send(leader, ask)
        self._lookup = None

    def answered(self, ask: PartitionAsk, result: FetchedPartition) -> None:
        """Pass on a broker's result; an error code as BrokerError."""
        try:
            self.client.core.check(ask.topic, ask.partition, result.error_code)
        except BrokerError as error:
            self.failed(ask, error)
        else:
            self._answer(ask, result)

    def failed(self, ask: PartitionAsk, error: Exception) -> None:
        """Pass on an error."""
        self._answer(ask, error)


class _Broker:
    """The fetches of one broker: requests follow each other while a partition is wanted."""

    def __init__(self, owner: AsyncFetches, address: Address, session: FetchSession) -> None:
        self.task: asyncio.Task[None] | None = None
        self._owner = owner
        self._address = address
        self._session = session

    def want(self, ask: PartitionAsk, leader_epoch: int) -> None:
        self._session.want(ask, _now_ms(), leader_epoch)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._session:
            await asyncio.sleep(0)  # the asks of this turn go into one request
            begun = time.monotonic()
            steps = fetch_next(self._owner.client.core, self._address, self._session, _now_ms())
            try:
                response = await self._owner.fetching.run(steps)
            except Exception as error:  # each ask needs an answer, whatever happened
                for ask in self._session.fail():
                    self._owner.failed(ask, error)
                continue
            self._owner.figures.answered((time.monotonic() - begun) * 1_000)
            for ask, result in self._session.accept(response, _now_ms()):
                self._owner.answered(ask, result)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
