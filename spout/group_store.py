"""SHELL (Twisted, a separate thread): progress and partitions of a spout in a Kafka consumer group.

All tasks of a spout in one process are one member. The member's requests run in a separate thread (GroupThread), so
that heartbeats go on while a bolt blocks the reactor. Commits run on the reactor: the commits of one reactor turn are
one request.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

from twisted.internet.base import DelayedCall, ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.failure import Failure

from broker.client.errors import BrokerError, ClientError
from broker.client.group import Assigned, Event, Lost, MemberRefused, Revoke, Trouble, Unused, Waits
from broker.client.group_config import GroupMemberConfig
from broker.client.group_requests import CommittedOffset, GroupIdentity, commit_offsets, fetch_offsets
from broker.client.group_thread import GroupThread
from broker.client.security.client_security import ClientSecurity
from broker.client.twisted import TwistedClient
from broker.wire.errors import ErrorCode
from partition_manager.group_offsets import TooManyRanges, committed_offset, committed_progress
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import (
    Answer,
    AwaitShare,
    Failed,
    GroupRequest,
    Loaded,
    LoadOffset,
    Released,
    ReleasePartition,
    Saved,
    SaveOffset,
    StoreRequest,
    TopicPartition,
)
from partition_manager.progress_metadata import BadMetadata
from partition_manager.shares import Shares

POLL_SECONDS = 1.0  # how often the reactor shows the member that it works; far below max.poll.interval.ms
RETRY_SECONDS = 0.2
RETRIES_MAX = 25  # five seconds: a rebalance, a former owner's transaction, or a coordinator that moves

_PASSING = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)

OnAnswer = Callable[[Answer], None]


class _Waiting(NamedTuple):
    """A load or a commit that waits for the next request; `offset` is None for a load."""

    partition: TopicPartition
    offset: CommittedOffset | None
    answer: OnAnswer
    version: int = 0
    tries: int = 0


def never_failing(
    results: "Deferred[dict[TopicPartition, Any]]", partitions: Iterable[TopicPartition]
) -> "Deferred[dict[TopicPartition, ErrorCode | str] | dict[TopicPartition, Any]]":
    """Return a Deferred of the results by partition; an error, of whatever type, is the result of each partition.

    A partition without a result would never be opened, or never stored again.
    """

    def failed(failure: Failure) -> dict[TopicPartition, ErrorCode | str]:
        error = failure.value
        if isinstance(error, BrokerError):
            return dict.fromkeys(partitions, error.code)
        return dict.fromkeys(partitions, str(error) if isinstance(error, ClientError) else repr(error))

    return results.addErrback(failed)


class GroupMembership:
    """The member of a process. `tasks` stores share it; the last one that closes leaves the group."""

    def __init__(
        self,
        servers: str,
        group_id: str,
        tasks: int,
        config: GroupMemberConfig,
        reactor: ReactorBase,
        *,
        security: ClientSecurity | None = None,
    ) -> None:
        self._servers = servers
        self._group_id = group_id
        self._config = config
        self._reactor = reactor
        self._security = security
        self._client = TwistedClient(servers, reactor, security=security)
        self._shares = Shares(tasks)
        self._open = set(range(tasks))
        self._awaiting: dict[int, tuple[int, OnAnswer]] = {}
        self._waiting: list[_Waiting] = []
        self._topics: tuple[str, ...] = ()
        self._thread: GroupThread | None = None
        self._timer: DelayedCall | None = None
        self._flushing: DelayedCall | None = None
        self.is_closed = False

    @property
    def instance(self) -> str | None:
        """Return the name of the static member; None if it is dynamic."""
        return self._config.group_instance_id

    # --- requests of the tasks

    def ask(self, task: int, request: StoreRequest | GroupRequest, answer: OnAnswer) -> None:
        """Carry out a request of a task; the answer may come at once."""
        if self.is_closed:
            answer(Failed("the group's store is closed"))
        elif isinstance(request, AwaitShare):
            self._await(task, request, answer)
        elif isinstance(request, ReleasePartition):
            partition = request.topic, request.partition
            if self._shares.released(task, partition, request.grant) and self._thread is not None:
                self._thread.released([partition])
            answer(Released())
        elif isinstance(request, LoadOffset):
            self._queue(_Waiting((request.topic, request.partition), None, answer))
        else:
            self._save(request, answer)

    def _await(self, task: int, request: AwaitShare, answer: OnAnswer) -> None:
        former = self._awaiting.pop(task, None)
        if former is not None:  # the task asks again, because its topics changed
            former[1](Failed("asked again"))
        self._awaiting[task] = request.known_version, answer
        topics = tuple(sorted({*self._topics, *request.topics})) if len(self._open) > 1 else request.topics
        if self._thread is None:
            self._topics = topics
            self._thread = GroupThread(
                self._servers, self._group_id, topics, self._config, self._wake, self._security
            )
            self._thread.start()
        elif topics != self._topics:
            self._topics = topics
            self._thread.subscribe(topics)
        self._poll()

    def _save(self, request: SaveOffset, answer: OnAnswer) -> None:
        try:
            offset = committed_offset(OffsetDocument.decode(request.document))
        except TooManyRanges as error:
            answer(Failed(str(error)))
        else:
            self._queue(_Waiting((request.topic, request.partition), offset, answer, request.version + 1))

    def committed_offset(self, request: SaveOffset) -> tuple[GroupIdentity, CommittedOffset]:
        """Return what a transaction commits for this progress, and the member. Raise ClientError if it may not."""
        thread = self._thread
        if thread is None or not thread.owns((request.topic, request.partition)):
            raise ClientError(f"another member of group {self._group_id} owns {request.topic}-{request.partition} now")
        try:
            return thread.identity, committed_offset(OffsetDocument.decode(request.document))
        except TooManyRanges as error:
            raise ClientError(str(error)) from None

    def close(self, task: int) -> None:
        """Close a task's store; its outstanding requests get no answer. The last one leaves the group; blocks for it.
        """
        self._open.discard(task)
        self._awaiting.pop(task, None)
        if self._open or self.is_closed:
            return
        self.is_closed = True
        for call in (self._timer, self._flushing):
            if call is not None and call.active():
                call.cancel()
        if self._thread is not None:
            self._thread.close()
        self._client.close()

    # --- events of the member

    def _wake(self) -> None:
        """Process events soon; called in the member's thread."""
        self._reactor.callFromThread(self._poll)

    def _poll(self) -> None:
        if self.is_closed or self._thread is None:
            return
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = self._reactor.callLater(POLL_SECONDS, self._poll)
        events = self._thread.poll()
        if any(isinstance(event, MemberRefused) and event.is_fenced for event in events):
            self._fence(events)
        else:
            for event in events:
                self._happened(event)
        self._shares.waits(self._thread.waits_since_ms)
        for task, (known_version, answer) in list(self._awaiting.items()):
            share = self._shares.share(task, known_version)
            if share is not None:
                del self._awaiting[task]
                answer(share)

    def _fence(self, events: list[Event]) -> None:
        """Drop the partitions, which are another process's now, and tell the first task why."""
        for event in events:
            if isinstance(event, Lost):
                self._shares.lost(event.partitions)
        name = self._config.group_instance_id
        self._shares.fence(
            f"another process has joined group {self._group_id} as {name!r}, and goes on there with what is not "
            f"committed ({ErrorCode.FENCED_INSTANCE_ID.name})"
        )

    def _happened(self, event: Event) -> None:
        group = f"group {self._group_id}"
        if isinstance(event, Assigned):
            self._shares.assigned(event.partitions)
            self._shares.note("info", f"{group}: this process gets {_named(event.partitions)}")
        elif isinstance(event, Revoke):
            free = self._shares.revoke(event.partitions)
            self._shares.note("info", f"{group}: this process hands over {_named(event.partitions)}")
            if free and self._thread is not None:
                self._thread.released(free)
        elif isinstance(event, Lost):
            self._shares.lost(event.partitions)
            text = f"{group}: this process lost {_named(event.partitions)}, without a commit: {event.why}"
            self._shares.note("error", f"{text}; their unsettled messages come again")
        elif isinstance(event, MemberRefused):
            self._shares.refuse(event.error)
            self._shares.note("error", f"{group} does not take this process, which reads nothing: {event.error}")
        elif isinstance(event, Unused):
            self._shares.note("info", f"{group} has no partition for this process now, which waits in reserve")
        elif isinstance(event, Waits):
            self._shares.note("info", f"{group}: waits for its other members to join for {event.seconds} s")
        elif isinstance(event, Trouble):
            self._shares.note("warn", f"{group}: {event.error}; it is asked again")

    # --- offsets

    def _queue(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        if self._flushing is None:
            self._flushing = self._reactor.callLater(0 if waiting.tries == 0 else RETRY_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        waiting, self._waiting = self._waiting, []
        self._carry_out([request for request in waiting if request.offset is None], self._load)
        self._carry_out([request for request in waiting if request.offset is not None], self._commit)

    def _carry_out(
        self, waiting: list[_Waiting], how: Callable[[list[_Waiting]], "Deferred[dict[TopicPartition, Any]]"]
    ) -> None:
        """Send one request for all; answer each, or try again what passes."""
        if not waiting:
            return

        def answered(results: dict[TopicPartition, Any]) -> None:
            for request in waiting:
                self._answer(request, results.get(request.partition, ErrorCode.UNKNOWN_SERVER_ERROR))

        never_failing(how(waiting), [request.partition for request in waiting]).addCallback(answered)

    @inlineCallbacks
    def _load(self, waiting: list[_Waiting]) -> Generator["Deferred[Any]", Any, dict[TopicPartition, Any]]:
        at = self._thread.coordinator if self._thread is not None else None
        if at is None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self._group_id}")
        partitions = [load.partition for load in waiting]
        offsets = yield self._client.run(fetch_offsets(self._client.core, at, self._group_id, partitions))
        return dict(offsets)

    @inlineCallbacks
    def _commit(self, waiting: list[_Waiting]) -> Generator["Deferred[Any]", Any, dict[TopicPartition, Any]]:
        thread = self._thread
        at = thread.coordinator if thread is not None else None
        if at is None or thread is None:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self._group_id}")
        ours = [commit for commit in waiting if thread.owns(commit.partition)]
        offsets = {commit.partition: commit.offset for commit in ours if commit.offset is not None}
        results: dict[TopicPartition, Any] = {commit.partition: "another member owns it now" for commit in waiting}
        if offsets:
            codes = yield self._client.run(commit_offsets(self._client.core, at, thread.identity, offsets))
            results |= codes
        return results

    def _answer(self, waiting: _Waiting, result: CommittedOffset | ErrorCode | str) -> None:
        if self.is_closed:
            return
        if isinstance(result, CommittedOffset):
            waiting.answer(self._loaded(waiting.partition, result))
        elif isinstance(result, str):
            waiting.answer(Failed(result))
        elif result is ErrorCode.NONE:
            waiting.answer(Saved(waiting.version))
        elif result in _PASSING and waiting.tries < RETRIES_MAX:
            self._queue(waiting._replace(tries=waiting.tries + 1))
        else:
            waiting.answer(Failed(f"group {self._group_id}: {result.name}"))

    def _loaded(self, partition: TopicPartition, committed: CommittedOffset) -> Answer:
        topic, number = partition
        if committed.offset < 0:
            return Loaded(None, -1)
        try:
            stored, note = committed_progress(committed)
        except BadMetadata as error:
            return Failed(f"{error}; commit the offset again, without metadata, to go on from it")
        if note:
            self._shares.note("warn", f"{topic}-{number}: {note}")
        document = OffsetDocument(
            "", "", topic, number, stored.progress, topic_id=stored.topic_id, leader_epoch=committed.leader_epoch
        )
        return Loaded(document.encode(), 0)


class GroupOffsetStore:
    """The part of one task in a membership: a partition_manager.ports.GroupStore."""

    def __init__(self, membership: GroupMembership, task: int) -> None:
        self._membership = membership
        self._task = task

    @property
    def instance(self) -> str | None:
        """Return the name of the static member; None if it is dynamic."""
        return self._membership.instance

    def ask(self, request: StoreRequest | GroupRequest, answer: OnAnswer) -> None:
        self._membership.ask(self._task, request, answer)

    def committed_offset(self, request: SaveOffset) -> tuple[GroupIdentity, CommittedOffset]:
        """Return what a transaction commits for this progress; see spout.transaction_ports.TransactionalStore."""
        return self._membership.committed_offset(request)

    def close(self) -> None:
        self._membership.close(self._task)


def _named(partitions: frozenset[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))
