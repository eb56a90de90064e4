"""SHELL (asyncio, a session with ZooKeeper): a connector on an event loop, which ConsumerConnector wraps.

The loop carries out what the core (broker.client.connector.rebalance) wants, and follows its events: it begins and ends
the fetches of partitions. Program threads take records from the streams' feeds. One lock guards the core and the feeds.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Condition, RLock
from typing import Any

from broker.client.address import addresses_of
from broker.client.asyncio import AsyncClient
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.events import (
    Claimed,
    Committed,
    Event,
    LookAgain,
    Lost,
    MadeAgain,
    RebalanceFailed,
    Stopped,
    Trouble,
)
from broker.client.connector.metadata_topics import metadata_topics
from broker.client.connector.rebalance import METADATA_LAG_MAX_MS, RegistryConsumer
from broker.client.connector.stream_feed import StreamFeed
from broker.client.connector.topic_filter import TopicStreams
from broker.client.consumer_offsets import passes
from broker.client.errors import BrokerError, ClientError, CommitFailed, GroupRefused, Unreachable
from broker.client.offset_lookup import find_offsets
from broker.client.registry.living_brokers import LivingBrokers
from broker.client.registry.nodes import StreamId
from broker.client.security.client_security import ClientSecurity
from broker.client.security.settings import PLAINTEXT
from broker.client.timed_wait import wait_for_event
from broker.cluster.documents import TopicPartition
from broker.cluster.procedure import Outcome
from broker.now import Now
from coordination.asyncio import carry_out, executor
from coordination.port import CoordinationError, Operation
from coordination.zookeeper import ZooKeeperCoordinator
from idgen.clock import steady_ms

TURN_SECONDS = 1.0  # between two turns of the loop, because a wake-up of the coordinator may get lost
LOOKUP_SECONDS = 0.2  # pause after a failed look-up
COMMIT_MS = 15_000  # longest wait of commit_offsets
CLOSE_SECONDS = 10.0  # longest wait for the last commits; then the session ends without them
LAG_MS = 100  # beyond METADATA_LAG_MAX_MS, until the topics are looked up again

_log = logging.getLogger("broker.client.connector")


class ConnectorEngine:
    """A consumer of a group of the registry, with its streams. `serve` runs on the loop until the consumer has left."""

    def __init__(
        self,
        coordinator: ZooKeeperCoordinator,
        servers: str | None,
        group: str,
        consumer: str,
        wanted: TopicStreams,
        config: ConnectorConfig,
        loop: asyncio.AbstractEventLoop,
        security: ClientSecurity | None = None,
    ) -> None:
        self.feeds: dict[tuple[str | None, int], StreamFeed] = {}
        """By topic and number; those of a filter have no topic."""
        lock = RLock()
        self.changed = Condition(lock)
        self._coordinator = coordinator
        self._execute = executor(coordinator, loop)
        self._servers = None if servers is None else addresses_of(servers)
        self._group = group
        self._wanted = wanted
        self._config = config
        self._security = security
        self._loop = loop
        self._wake = asyncio.Event()
        self._consumer = RegistryConsumer(group, consumer, wanted, config, sees_topics=servers is not None)
        topics = [None] if wanted.topic_filter is not None else list(wanted.counts)
        for topic in topics:
            count = wanted.streams if topic is None else wanted.counts[topic]
            for number in range(count):
                feed = StreamFeed(self.changed, lock, self._consumer, config, self.call, self._wake.set)
                self.feeds[topic, number] = feed
        self._readers: dict[TopicPartition, StreamFeed] = {}
        self._brokers = LivingBrokers(PLAINTEXT if security is None else security.settings.protocol)
        self._commits: list[_Commit] = []
        self._operations: set[asyncio.Task[None]] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._topics_due_ms = 0
        self._close_ms: int | None = None
        self._refusal: Exception | None = None
        """The error that all streams raise from now on."""
        self._has_ended = False
        self._logged = ""

    @property
    def is_interrupted(self) -> bool:
        """True in a signal handler that has interrupted a method of the core or of a stream.

        Its thread holds the lock, so it must neither wait for the loop nor call such a method.
        """
        is_owned: bool = self.changed._is_owned()  # type: ignore[attr-defined]  # what Condition itself asks an RLock
        return is_owned

    @contextmanager
    def _core_acts(self) -> Iterator[None]:
        """Hold the lock for actions of the core, which know all that is processed."""
        with self.changed:
            self._sync()
            yield

    def _sync(self) -> None:
        for feed in self.feeds.values():
            feed.sync()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop, from any thread. Do nothing if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # --- the loop

    async def serve(self) -> None:
        """Consume until the consumer has left the group, by `close` or because it failed."""
        self._client = AsyncClient(
            self._servers or [],
            timeout_ms=self._config.socket_timeout_ms + self._config.fetch_max_wait_ms,
            client_id=self._config.client_id or self._group,
            security=self._security,
        )
        for feed in self.feeds.values():
            feed.open(self._client)
        self._coordinator.on_wake(lambda: self.call(self._wake.set))
        try:
            while not self._is_over:
                self._wake.clear()
                seconds = self._turn()
                await wait_for_event(self._wake, seconds)
        except Exception as error:
            self._failed(error)
        finally:
            await self._end()

    @property
    def _is_over(self) -> bool:
        if self._close_ms is not None and steady_ms() > self._close_ms + CLOSE_SECONDS * 1_000:
            _log.warning("group %s: ZooKeeper did not answer; records since the last commit come again", self._group)
            return True
        return self._consumer.is_over or self._refusal is not None

    def _turn(self) -> float:
        """Do all that is due. Return the seconds until something is due again."""
        with self._core_acts():
            now = _now()
            self._pass_events(now)
            self._consumer.tick(now)
            self._follow()
            for operation in self._consumer.take(now):
                self._begin_operation(operation)
            self._begin_due_work(now)
            away = f"no commit within {COMMIT_MS} ms, so ZooKeeper may be away; call it again"
            self._end_commits(away, lambda commit: now.ms >= commit.until_ms)
            dues = [self._consumer.next_deadline_ms(), *(feed.want() for feed in self.feeds.values())]
            if self._consumer_sees_topics:
                dues.append(self._topics_due_ms)
            for feed in self.feeds.values():
                feed.wake()
        due_ms = min((due for due in dues if due is not None), default=now.ms + 1_000)
        return min(TURN_SECONDS, max(0.001, (due_ms - now.ms) / 1_000))

    @property
    def _consumer_sees_topics(self) -> bool:
        return self._servers is not None

    def _pass_events(self, now: Now) -> None:
        """Pass what happened at the coordinator. It is called before each answer, so that the order is kept."""
        for event in self._coordinator.take_events():
            self._consumer.happened(event, now)
            self._brokers.notified(event)

    def _begin_operation(self, operation: Operation) -> None:
        task = self._loop.create_task(self._carry_out(operation))
        self._operations.add(task)
        task.add_done_callback(self._operation_ended)

    def _operation_ended(self, task: "asyncio.Task[None]") -> None:
        self._operations.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Leave the group because of an error that no part of the work expects. All streams raise it."""
        _log.error("group %s: the consumer has left: %s", self._group, error, exc_info=error)
        self._refusal = self._refusal or error
        self._wake.set()

    async def _carry_out(self, operation: Operation) -> None:
        outcome: Outcome
        try:
            outcome = await self._execute(operation)
        except CoordinationError as error:
            outcome = error
        with self._core_acts():
            now = _now()
            self._pass_events(now)
            self._consumer.answered(operation, outcome, now)
            self._follow()
        self._wake.set()

    def _begin_due_work(self, now: Now) -> None:
        if not self._consumer_sees_topics and self._brokers.is_due(now.ms):
            self._begin("brokers", self._read_brokers)
        if self._consumer_sees_topics and now.ms >= self._topics_due_ms:
            self._begin("topics", self._read_topics)
        if any(feed.unplaced() for feed in self.feeds.values()):
            self._begin("positions", self._place_all)

    def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a task unless one of its name is under way."""
        task = self._tasks.get(name)
        if task is None or task.done():
            self._tasks[name] = self._loop.create_task(self._work(work))

    async def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a part of the work. All streams raise an error that it does not expect, once; then it is tried again."""
        try:
            await work()
        except Exception as error:
            for feed in self.feeds.values():
                feed.fail(error)
            await asyncio.sleep(LOOKUP_SECONDS)
        self._wake.set()

    # --- what the core says

    def _follow(self) -> None:
        """Follow the events of the core. The lock is held, so no record is handed out in between."""
        while events := self._consumer.take_events():
            for event in events:
                self._happened(event)

    def _happened(self, event: Event) -> None:
        match event:
            case Claimed(partition, stream, offset):
                start = f"the {self._config.auto_offset_reset} offset" if offset is None else f"offset {offset}"
                _log.info("group %s: reads %s from %s", self._group, partition, start)
                self._readers[partition] = self._feed_of(partition.topic, stream)
                self._readers[partition].claim(event)
            case Stopped(partition):
                self._drop(partition)
            case Lost(partition, why):
                _log.warning("group %s: lost %s, without a commit: %s", self._group, partition, why)
                for commit in self._commits:
                    commit.failed.append(partition)
                self._drop(partition)
            case Committed(number, failed):
                for commit in self._commits:
                    commit.failed.extend(failed if commit.number <= number else ())
                self._end_commits(None, lambda commit: commit.number <= number)
            case MadeAgain(topic):
                begin = f"begins at the {self._config.auto_offset_reset} offset"
                _log.warning("group %s: topic %s was made again, so it %s", self._group, topic, begin)
            case LookAgain():
                self._topics_due_ms = min(self._topics_due_ms, steady_ms() + METADATA_LAG_MAX_MS + LAG_MS)
            case Trouble(text):
                _log.warning("group %s: %s", self._group, text)
            case RebalanceFailed(error):
                _log.error("group %s: the consumer has left: %s", self._group, error)
                self._refusal = GroupRefused(error)

    def _drop(self, partition: TopicPartition) -> None:
        feed = self._readers.pop(partition, None)
        if feed is not None:
            feed.drop(partition)

    def _feed_of(self, topic: str, stream: StreamId) -> StreamFeed:
        return self.feeds[None if self._wanted.topic_filter is not None else topic, stream.number]

    # --- work in tasks

    async def _read_brokers(self) -> None:
        """Read the brokers that live now, as ZooKeeper names them."""
        try:
            await carry_out(self._brokers.read(steady_ms()), self._execute)
        except CoordinationError as error:
            self._brokers.failed(error, steady_ms())
        if self._brokers.problem is not None:
            self._client.core.why_no_broker = f"the brokers in ZooKeeper: {self._brokers.problem}"
            self._log_once(self._client.core.why_no_broker)
        if self._brokers.addresses:
            self._client.core.bootstrap[:] = self._brokers.addresses.values()

    async def _read_topics(self) -> None:
        """Read the topics from the brokers. A view is no older than the pause between two tries to rebalance."""
        begun_ms = steady_ms()
        self._topics_due_ms = begun_ms + self._config.rebalance_backoff_ms
        try:
            topics = await self._client.run(metadata_topics(self._client.core))
        except ClientError as error:
            self._log_once(f"topics: {error}; they are asked for again")
            await asyncio.sleep(LOOKUP_SECONDS)
            self._topics_due_ms = 0
            return
        with self._core_acts():
            self._consumer.topics_seen(topics, Now(begun_ms, _wall_ms()))
            self._follow()

    async def _place_all(self) -> None:
        """Find where partitions begin that have no offset. Failures that may pass are tried again."""
        keys = [partition for feed in self.feeds.values() for partition in feed.unplaced()]
        failed: dict[tuple[str, int], ClientError] = {}
        if not self._client.core.bootstrap:
            await asyncio.sleep(LOOKUP_SECONDS)  # no broker has been found yet
            return
        try:
            leaders = await self._client.run(self._client.core.leaders_of(keys, failed))
        except (BrokerError, Unreachable) as unanswered:
            failed |= dict.fromkeys(keys, unanswered)
            leaders = {}
        await asyncio.gather(*(self._find_beginnings(partitions, failed) for partitions in leaders.values()))
        for key, error in failed.items():
            if isinstance(error, (BrokerError, Unreachable)) and passes(error):
                self._log_once(f"positions: {error}; they are asked for again")
            elif (feed := self._readers.get(TopicPartition(*key))) is not None:
                feed.fail(error)
        if failed:
            await asyncio.sleep(LOOKUP_SECONDS)

    async def _find_beginnings(
        self, partitions: Iterable[tuple[str, int]], failed: dict[tuple[str, int], ClientError]
    ) -> None:
        """Find where the partitions of one broker begin."""
        core, level = self._client.core, self._config.isolation
        steps = find_offsets(core, partitions, self._config.start, isolation_level=level, failed=failed)
        for key, offset in (await self._client.run(steps)).items():
            partition = TopicPartition(*key)
            with self._core_acts():
                feed = self._readers.get(partition)
                if feed is not None and feed.place(partition, offset, core.known_id(partition.topic)):
                    self._consumer.placed(partition, offset, _now())
                    self._follow()
                elif feed is not None and core.known_leader(*partition) is not None:
                    failed[partition] = feed.refuse_topic(partition)
        self._wake.set()

    def _log_once(self, text: str) -> None:
        if text != self._logged:
            _log.warning("group %s: %s", self._group, text)
            self._logged = text

    # --- the program's side

    def commit(self, taker: object) -> "Future[None]":
        """Commit what the streams' callers are done with, and the records that `taker` took last. Any thread may call.

        The Future fails with CommitFailed.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # a caller cannot cancel it from now on
        with self.changed:
            if self._has_ended or self._consumer.is_over:
                done.set_exception(CommitFailed(f"group {self._group}: the consumer has left the group"))
                return done
            lost = [feed.finish_record() for feed in self.feeds.values() if feed.is_taken_by(taker)]
            self._sync()
            commit = _Commit(self._consumer.commit(_now()), steady_ms() + COMMIT_MS, done)
            commit.failed.extend(partition for partition in lost if partition is not None)
            self._commits.append(commit)
        self.call(self._wake.set)
        return done

    def _end_commits(self, why: str | None, is_over: Callable[["_Commit"], bool]) -> None:
        """End the commits that are over: as failed because of `why`, or for the partitions that they left out."""
        for commit in [commit for commit in self._commits if is_over(commit)]:
            self._commits.remove(commit)
            names = ", ".join(map(str, list(dict.fromkeys(commit.failed))[:10]))
            gone = "it may have gone to another consumer; what was processed since the last commit comes again"
            reason = why or (names and f"{names} not committed: {gone}")
            if reason:
                commit.done.set_exception(CommitFailed(f"group {self._group}: {reason}"))
            else:
                commit.done.set_result(None)

    def begin_close(self) -> None:
        """Hand out nothing more, commit, release all and leave. Call it on the loop."""
        if self._close_ms is None:
            self._close_ms = steady_ms()
            with self._core_acts():
                for feed in self.feeds.values():
                    feed.end()
                self._consumer.close(_now())
                self._follow()
            self._wake.set()

    async def _end(self) -> None:
        with self.changed:
            self._has_ended = True
            self._end_commits("the consumer has left the group", lambda commit: True)
        for feed in self.feeds.values():
            feed.end(self._refusal)
        tasks = [*self._operations, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._client.close()
        await asyncio.gather(*(feed.close() for feed in self.feeds.values()))


@dataclass(frozen=True)
class _Commit:
    """A commit that the program waits for until `until_ms`. `failed` has the partitions that it left out."""

    number: int
    until_ms: int
    done: "Future[None]"
    failed: list[TopicPartition] = field(default_factory=list)


def _now() -> Now:
    return Now(steady_ms(), _wall_ms())


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
