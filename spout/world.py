"""SHELL (Twisted; through its ports the network and files): the ports of the embedded engine.

Coordinators are opened in a worker thread when they are first needed, and again after a failure to open. So a ZooKeeper
that is not up yet delays the spouts that need it, but not the reactor.
"""

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, cast

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IReactorFromThreads
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from broker.client.group_config import GroupMemberConfig
from broker.client.security.client_security import ClientSecurity, Security
from coordination.access import Access
from coordination.deferred import Execute, carry_out, executor
from coordination.port import Coordinator
from coordination.sessions import open_session
from idgen.settings import InvalidSetting
from partition_manager.config import SpoutConfig
from partition_manager.dead_letter_sink import TwistedDeadLetters
from partition_manager.fetcher import TwistedFetcher
from partition_manager.offset_store import CoordinatedOffsetStore, Procedure
from partition_manager.ports import Answer, DeadLetterSink, Failed, GroupStore, OffsetStore, RecordFetcher
from spout.group_store import GroupMembership, GroupOffsetStore
from spout.record_producer import TwistedRecordProducer
from spout.sink_config import SinkConfig
from spout.sink_ports import RecordProducer
from spout.transaction_ports import Transactor
from spout.transactor import TwistedTransactor

ZOOKEEPER = "zookeeper://"


class TwistedWorld:
    """The spout.api.World of a Twisted reactor. Its ports raise InvalidSetting if `security` cannot be used here."""

    def __init__(self, reactor: ReactorBase) -> None:
        self._reactor = reactor
        self._members: dict[tuple[str, str, str], GroupMembership] = {}
        self._securities: list[tuple[Security, ClientSecurity | None]] = []

    def fetcher(self, servers: str, config: SpoutConfig, *, security: Security = None) -> RecordFetcher:
        """Return a reader of Kafka-protocol brokers; `servers` is host:port, or several separated by commas."""
        return TwistedFetcher(servers, config, self._reactor, security=self._shared(security))

    def offset_store(self, store: str, path: str, access: Access) -> OffsetStore:
        """Return a store of progress in a directory or in ZooKeeper.

        A ZooKeeper store is zookeeper://host:port,host:port/chroot, accessed with `access`.
        """
        session = _Session(store, access, self._reactor)
        return CoordinatedOffsetStore(path, session.carry_out, session.close)

    def group_member(
        self,
        servers: str,
        group_id: str,
        component: str,
        tasks: int,
        config: GroupMemberConfig,
        *,
        security: Security = None,
    ) -> Callable[[int], GroupStore]:
        """Return a function from a task's index to its part of this process's member of a consumer group.

        Raise InvalidSetting if another spout of this process is a static member of the same name.
        """
        key = servers, group_id, component
        member = self._members.get(key)
        if member is None or member.is_closed:
            self._check_instance(key, config.group_instance_id)
            shared = self._shared(security)
            member = GroupMembership(servers, group_id, tasks, config, self._reactor, security=shared)
            self._members[key] = member
        return partial(GroupOffsetStore, member)

    def _check_instance(self, key: tuple[str, str, str], instance: str | None) -> None:
        servers, group_id, component = key
        for other, member in self._members.items():
            is_same = other[:2] == key[:2] and not member.is_closed and member.instance == instance
            if is_same and instance is not None:
                wanted = f"the spouts {other[2]} and {component} are in group {group_id}; give each a name of its own"
                raise InvalidSetting("group.instance.id", instance, wanted)

    def dead_letters(self, servers: str, topic: str, *, security: Security = None) -> DeadLetterSink:
        """Return a sink that produces to `topic`, acknowledged by all in-sync replicas."""
        return TwistedDeadLetters(servers, topic, self._reactor, security=self._shared(security))

    def producer(self, servers: str, *, security: Security = None) -> RecordProducer:
        """Return a writer of topics, acknowledged by all in-sync replicas."""
        return TwistedRecordProducer(servers, self._reactor, security=self._shared(security))

    def transactor(
        self,
        servers: str,
        sources: Mapping[str, Security],
        transactional_id: str,
        config: SinkConfig,
        *,
        security: Security = None,
    ) -> Transactor:
        """Return a transactional producer for `servers`, whose cluster the spouts read at `sources`."""
        theirs = {servers: self._shared(given) for servers, given in sources.items()}
        ours = self._shared(security)
        return TwistedTransactor(servers, theirs, transactional_id, config, self._reactor, security=ours)

    def _shared(self, given: Security) -> ClientSecurity | None:
        """Return the security with these properties; ports with equal ones share it, and so the files it has read."""
        for properties, security in self._securities:
            if properties == given:
                return security
        self._securities.append((given, ClientSecurity.of(given)))
        return self._securities[-1][1]


class _Session:
    """A coordinator, opened when first needed. Its procedures run in the reactor thread, one step at a time."""

    def __init__(self, store: str, access: Access, reactor: ReactorBase) -> None:
        self._store = store
        self._access = access
        self._reactor = reactor
        self._coordinator: Coordinator | None = None
        self._execute: Execute | None = None
        self._waiting: list[Deferred[Execute]] = []
        self._closed = False

    def carry_out(self, procedure: Procedure, answer: Callable[[Answer], None]) -> None:
        """Run the procedure and call `answer` with its return value, or with Failed on any error."""

        def named(outcome: Answer) -> None:
            answer(Failed(f"{self._store}: {outcome.error}") if isinstance(outcome, Failed) else outcome)

        def failed(failure: Failure) -> None:
            named(Failed(failure.getErrorMessage()))

        self._carry_out(procedure).addCallbacks(named, failed)

    def close(self) -> None:
        """End the session; blocks for no longer than a clean disconnect takes."""
        self._closed = True
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = self._execute = None

    @inlineCallbacks
    def _carry_out(self, procedure: Procedure) -> Generator["Deferred[Any]", Any, Answer]:
        execute = self._execute
        if execute is None:
            execute = yield self._open()
        answer: Answer = yield carry_out(procedure, execute)
        return answer

    def _open(self) -> "Deferred[Execute]":
        """Return a Deferred of the coordinator's executor; all who ask while it is opened share the session."""
        opened: Deferred[Execute] = Deferred()
        self._waiting.append(opened)
        if len(self._waiting) == 1:
            reactor = cast(IReactorFromThreads, self._reactor)
            threads = self._reactor.getThreadPool()
            opening = deferToThreadPool(reactor, threads, _open_coordinator, self._store, self._access)
            opening.addCallback(self._opened).addBoth(self._tell)
        return opened

    def _opened(self, coordinator: Coordinator) -> Execute:
        if self._closed:
            coordinator.close()
            raise ConnectionAbortedError("closed while it was being opened")
        self._coordinator = coordinator
        self._execute = executor(coordinator, cast(IReactorFromThreads, self._reactor))
        return self._execute

    def _tell(self, outcome: Execute | Failure) -> None:
        waiting, self._waiting = self._waiting, []
        for opened in waiting:
            opened.callback(outcome)  # a Failure calls the errbacks


def _open_coordinator(store: str, access: Access) -> Coordinator:
    if store.startswith(ZOOKEEPER):
        return open_session(zookeeper=store.removeprefix(ZOOKEEPER), access=access)
    return open_session(directory=store)
