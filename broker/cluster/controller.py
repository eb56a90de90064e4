"""The controller of a cluster (Kafka's KafkaController), without I/O: each broker has one, and one of them is active.

Events wait in one queue, and each is carried out to the end of its operations. A shell carries out `take_operations`
and passes the results to `completed`, passes the coordinator's events to `notified`, sends `take_calls` to brokers and
passes the responses to `called`, calls `tick` at `next_deadline_ms`, and passes requests to `submit`, whose answers
`take_answers` returns.

    broker registered -> Reelect -> (won) recover -> BrokerChange, TopicChange, PartitionChange, TopicDeletion,
                            ^  |                     DeletionAnswered, a request ...
                            |  +-> (lost) waits for /controller to go                |
                            +------------------- ControllerChange, ControllerMoved <-+

The broker resigns when its session ends, when /controller is not its own, or when a write fails the check of the
controller epoch. It then forgets all it knows, and drops what it has not sent yet.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from broker.cluster.answered_orders import (
    DeletionAnswered,
    DiskFailed,
    DisksAnswered,
    deletion_answered,
    disks_answered,
)
from broker.cluster.channel import Call, Channels, Sent
from broker.cluster.client_requests import answer
from broker.cluster.cluster_changes import ClusterChanges
from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import (
    BROKER_IDS,
    CONTROLLER,
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    TOPICS,
    DamagedDocument,
)
from broker.cluster.driver import Driver
from broker.cluster.election import Lost, Won, elect, is_own
from broker.cluster.policy import Policy
from broker.cluster.procedure import ControllerMoved, Pause, Procedure
from broker.cluster.requests import NOT_CONTROLLER, Answer, Request
from broker.now import Now
from broker.waiting.pending import Pending
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import LeaderAndIsrRequest, StopReplicaRequest
from coordination.port import (
    Changed,
    CoordinationError,
    Event,
    Operation,
    Result,
    SessionEnded,
    SessionEstablished,
    SessionLost,
)


class Change(Enum):
    """An event that names nothing: the controller reads what changed."""

    REELECT = "Reelect"
    CONTROLLER = "ControllerChange"
    BROKERS = "BrokerChange"
    TOPICS = "TopicChange"
    DELETIONS = "TopicDeletion"
    LOG_DIRS = "LogDirEventNotification"
    ISRS = "IsrChangeNotification"
    UNCLEAN_LEADERS = "TopicUncleanLeaderElectionEnable"
    REBALANCE = "AutoPreferredReplicaLeaderElection"


@dataclass(frozen=True)
class PartitionChange:
    """A topic's document has changed: it may have more partitions."""

    topic: str


PAUSE_AFTER_ERROR_MS = 1_000
PAUSE_AFTER_DISK_MS = 10_000
"""The pause before an order is repeated that a broker's disk did not take: someone has to make room on it."""

FIRST_REBALANCE_MS = 5_000
"""The pause before a new controller first looks at the preferred leaders, as in Kafka."""

QueuedEvent: TypeAlias = Change | PartitionChange | DeletionAnswered | DiskFailed | DisksAnswered | Request

_OWN_EVENTS = Change | PartitionChange | DeletionAnswered | DiskFailed | DisksAnswered
"""Events of the controller's own, which have no answer."""

CHANGES_BY_PATH = {
    CONTROLLER: Change.CONTROLLER,
    BROKER_IDS: Change.BROKERS,
    TOPICS: Change.TOPICS,
    DELETE_TOPICS: Change.DELETIONS,
    LOG_DIR_EVENTS: Change.LOG_DIRS,
    ISR_CHANGES: Change.ISRS,
}


class Controller:
    """A broker's part in the control of its cluster, as the controller or as a candidate.

    `listener` is the name of the listener that brokers reach each other on. `controller_id` is the active controller as
    far as this broker knows, -1 if it knows of none. `problem` is the error that ended the last election or term, for
    people; None once an election has gone well, and if another broker took over or the session ended. `policy` has the
    settings that decide about leaders. The controller marks `pending` when it has operations or requests.
    """

    def __init__(
        self, broker_id: int, pending: Pending, *, listener: str, policy: Policy | None = None
    ) -> None:
        self.broker_id = broker_id
        self._policy = policy or Policy()
        self.controller_id = -1
        self.problem: str | None = None
        self._listener = listener
        self._session_id = 0
        self._pause_ms = 0
        self._is_registered = False
        self._is_active = False
        self._channels = Channels(pending)
        self._changes = self._new_term()
        self._driver = Driver(pending)
        self._events: deque[QueuedEvent] = deque()
        self._rebalance_ms: int | None = None
        self._unclean_elections = 0  # of the terms before this one
        self._postponed: deque[tuple[int, DiskFailed]] = deque()
        """The orders to repeat, each with its time, in the order of these times."""
        self._current: QueuedEvent | None = None
        self._is_in_run = False
        self._answers: list[tuple[Request, Answer]] = []

    @property
    def is_active(self) -> bool:
        """Return True while this broker is the controller."""
        return self._is_active

    @property
    def context(self) -> ControllerContext:
        return self._changes.context

    @property
    def policy(self) -> Policy:
        return self._policy

    def use(self, policy: Policy) -> None:
        """Take the settings that decide about leaders, before this broker registers."""
        self._policy = policy
        self._changes = self._new_term()

    @property
    def problems(self) -> list[str]:
        """Return what ails the cluster, for people: damaged nodes, partitions that wait for a trusted member, disks,
        and brokers that orders do not reach.
        """
        unreached = (
            f"broker {broker_id} is live, but answers no order of the controller, broker {self.broker_id}: it knows of "
            "no change of the cluster since. The logs of both say why"
            for broker_id in sorted(self.unreached)
        )
        return [*self.context.damages, *self.context.problems, *unreached]

    @property
    def unreached(self) -> Collection[int]:
        """Return the live brokers that this controller's orders have not reached for a while."""
        return self._channels.unreached

    @property
    def unclean_elections(self) -> int:
        """Return how many leaders this broker has elected that may lack acknowledged records."""
        return self._unclean_elections + self.context.unclean_elections

    @property
    def is_idle(self) -> bool:
        """Return True if no event, operation or order is in progress, and none is to be repeated."""
        is_waiting = self._events or self._postponed
        return not is_waiting and not self._driver.is_running and self._channels.is_idle()

    # The life of the broker

    def registered(self, now: Now) -> None:
        """Take part in elections, because the broker has registered with the present session."""
        self._is_registered = True
        self._queue(Change.REELECT, now)

    def stop(self, now: Now) -> None:
        """Resign, and take part in no further election. The end of the session lets another broker win (rule S6)."""
        self._is_registered = False
        self._resign()

    # The coordinator

    def take_operations(self) -> list[Operation]:
        """Return the operations to carry out now, in this order if they are not carried out at the same time."""
        return self._driver.take_operations()

    def completed(self, operation: Operation, outcome: Result | CoordinationError, now: Now) -> None:
        """Take the result or the error of an operation, which is the same object that `take_operations` returned."""
        self._driver.completed(operation, outcome, now)

    def notified(self, event: Event, now: Now) -> None:
        """Take an event of the coordinator."""
        match event:
            case SessionEstablished(session_id) if session_id != self._session_id:
                self._session_id = session_id
            case SessionEnded():
                self._is_registered = False
                self.controller_id = -1
                self._resign()
            case Changed(path) if self._is_registered and (path in CHANGES_BY_PATH or path.startswith(f"{TOPICS}/")):
                self._queue(_change_at(path), now)

    # The brokers

    def take_calls(self, now: Now) -> list[Call]:
        """Return the requests to send to brokers now."""
        return self._channels.take_calls(now)

    def called(self, call: Call, response: Any | None, now: Now) -> None:
        """Take the response to a call; None if the broker could not be reached or did not answer."""
        if not self._channels.called(call, response, now):
            return
        assert response is not None
        if response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._queue(Change.CONTROLLER, now)
            return
        answered = disks_answered(call, response)
        self._order_again_later(answered, now)
        if isinstance(call.request, LeaderAndIsrRequest) and (answered.failed or self.context.failed_disks):
            self._queue(answered, now)
        if isinstance(call.request, StopReplicaRequest):
            deletion = deletion_answered(call, call.request, response)
            if deletion.deleted or deletion.failed:
                self._queue(deletion, now)

    def _order_again_later(self, answered: DisksAnswered, now: Now) -> None:
        """Repeat the orders that a disk did not take after a pause, each once to a life of its broker."""
        epoch = answered.broker_epoch
        waiting = {r for _, failed in self._postponed if failed.broker_epoch == epoch for r in failed.replicas}
        replicas = tuple(replica for replica in answered.failed if replica not in waiting)
        if replicas:
            failed = DiskFailed(answered.broker_id, answered.broker_epoch, replicas)
            self._postponed.append((now.ms + PAUSE_AFTER_DISK_MS, failed))

    def unclean_leaders_allowed(self, now: Now) -> None:
        """Elect leaders for partitions without one, because the unclean.leader.election.enable of a topic changed."""
        self._queue(Change.UNCLEAN_LEADERS, now)

    @property
    def sent(self) -> Sent:
        """Return the orders that this controller has decided so far, for `have_answered`; none if it is not active."""
        return self._channels.sent

    def have_answered(self, sent: Sent) -> bool:
        """Return True if all brokers that live on have answered these orders."""
        return self._channels.have_answered(sent)

    # Requests

    def submit(self, request: Request, now: Now) -> None:
        """Take a request; `take_answers` returns its answer later."""
        if self._is_active:
            self._queue(request, now)
        else:
            self._answers.append((request, NOT_CONTROLLER))

    def take_answers(self) -> list[tuple[Request, Answer]]:
        answers, self._answers = self._answers, []
        return answers

    # Time

    def tick(self, now: Now) -> None:
        self._driver.tick(now)
        while self._postponed and self._postponed[0][0] <= now.ms:
            _, failed = self._postponed.popleft()
            self._queue(failed, now)
        rebalance = self._policy.rebalance
        if rebalance is not None and self._rebalance_ms is not None and self._rebalance_ms <= now.ms:
            self._rebalance_ms = now.ms + rebalance.interval_ms
            self._queue(Change.REBALANCE, now)

    def next_deadline_ms(self) -> int | None:
        repeat_ms = self._postponed[0][0] if self._postponed else None
        deadlines = (self._driver.next_deadline_ms(), self._channels.next_deadline_ms(), repeat_ms, self._rebalance_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # The queue

    def _queue(self, event: QueuedEvent, now: Now) -> None:
        if not isinstance(event, Change | PartitionChange) or event not in self._events:
            self._events.append(event)
        self._run(now)

    def _run(self, now: Now) -> None:
        if self._is_in_run:  # the loop below is in progress, and takes the next event
            return
        self._is_in_run = True
        fault: Exception | None = None
        while self._events and not self._driver.is_running:
            event = self._events.popleft()
            procedure = self._procedure(event, now)
            if procedure is not None:
                self._current = event
                try:
                    self._driver.begin(procedure, self._ended, now)
                except Exception as error:  # the events that wait, such as the next election, must still come
                    fault = error
        self._is_in_run = False
        if fault is not None:
            raise fault

    def _procedure(self, event: QueuedEvent, now: Now) -> Procedure[Any] | None:
        if event is Change.REELECT:
            return self._reelect(now) if self._is_registered else None
        if event is Change.CONTROLLER:
            return self._controller_changed(now) if self._is_registered else None
        if not self._is_active:
            return None
        changes = self._changes
        steps: dict[QueuedEvent, Callable[[], Procedure[None]]] = {
            Change.BROKERS: changes.brokers_changed,
            Change.TOPICS: changes.topics_changed,
            Change.DELETIONS: changes.deletions_changed,
            Change.LOG_DIRS: changes.log_dirs_changed,
            Change.ISRS: changes.isrs_changed,
            Change.UNCLEAN_LEADERS: changes.leaders_allowed,
            Change.REBALANCE: changes.rebalance,
        }
        match event:
            case Change():
                return steps[event]()
            case PartitionChange(topic):
                return changes.topic_changed(topic)
            case DeletionAnswered(broker_id, broker_epoch, deleted, failed):
                if self.context.broker_epochs.get(broker_id) != broker_epoch:
                    return None
                return changes.deletion_answered(list(deleted), list(failed))
            case DiskFailed(broker_id, broker_epoch, replicas):
                if self.context.broker_epochs.get(broker_id) != broker_epoch:
                    return None
                return changes.order_again(replicas)
            case DisksAnswered(broker_id, broker_epoch, failed, taken, kept, others):
                if self.context.broker_epochs.get(broker_id) != broker_epoch:
                    return None
                return changes.disks_answered(failed, taken, kept, others)
            case _:
                return answer(changes, event)

    def _ended(self, value: Any, error: Exception | None, now: Now) -> None:
        event, self._current = self._current, None
        if isinstance(value, Answer):
            self._answers.append((event, value))  # type: ignore[arg-type]
        if error is None:
            self._run(now)
            return
        is_expected = isinstance(error, ControllerMoved | SessionLost)
        self.problem = None if is_expected else str(error) or type(error).__name__
        self._current = event
        self._resign()
        if isinstance(error, SessionLost):
            self._is_registered = False
        self._pause_ms = 0 if isinstance(error, ControllerMoved) else PAUSE_AFTER_ERROR_MS
        self._queue(Change.REELECT, now)
        if not isinstance(error, ControllerMoved | CoordinationError | DamagedDocument):
            raise error

    # Terms

    def _new_term(self) -> ClusterChanges:
        return ClusterChanges(ControllerContext(self._policy), self._channels, self.broker_id, self._listener)

    def _reelect(self, now: Now) -> Procedure[None]:
        if self._is_active:
            return
        if self._pause_ms:
            yield Pause(self._pause_ms, "the last election or term ended with an error")
            self._pause_ms = 0
        result = yield from elect(self.broker_id, self._session_id, now.wall_ms)
        match result:
            case Lost(controller_id):
                self.controller_id = controller_id
                self.problem = None
            case Won(epoch, epoch_version):
                self.controller_id = self.broker_id
                self._changes = self._new_term()
                self.context.epoch, self.context.epoch_version = epoch, epoch_version
                self._is_active = True
                self._rebalance_ms = None if self._policy.rebalance is None else now.ms + FIRST_REBALANCE_MS
                yield from self._changes.recover()
                self.problem = None

    def _controller_changed(self, now: Now) -> Procedure[None]:
        if self._is_active:
            if (yield from is_own(self._session_id)):
                return
            raise ControllerMoved("/controller belongs to another broker")
        yield from self._reelect(now)

    def _resign(self) -> None:
        """Forget the term: drop the orders that were not sent, and answer the requests in the queue."""
        self._driver.cancel()
        self._channels.close_all()
        self._is_active = False
        if self.controller_id == self.broker_id:
            self.controller_id = -1
        unanswered = [self._current, *self._events]
        self._current = None
        self._events.clear()
        self._postponed.clear()
        self._rebalance_ms = None
        self._unclean_elections += self.context.unclean_elections
        for event in unanswered:
            if event is not None and not isinstance(event, _OWN_EVENTS):
                self._answers.append((event, NOT_CONTROLLER))
        self._changes = self._new_term()


def _change_at(path: str) -> QueuedEvent:
    change = CHANGES_BY_PATH.get(path)
    return PartitionChange(path.removeprefix(f"{TOPICS}/")) if change is None else change
