"""This broker's part in a cluster, without I/O: its life in the coordinator, its controller, its image, its peers.

    session established -> settings are read -> (logs are open: `serve`) -> registered -> orders of the controller
                                  ^                                             |
                                  +---------- session ended, a new one <--------+

A shell carries out `take_operations` and passes the results to `completed`, passes the coordinator's events to
`notified`, sends `take_calls` to brokers and passes the responses to `called`, and calls `tick` at `next_deadline_ms`.

A broker that has lost its session serves on as before (rule E7): whether it still leads is decided by the next order,
which names its next life.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from broker.cluster.acl_watch import AclWatch
from broker.cluster.channel import Call
from broker.cluster.config_entity import BROKER_TYPE, TOPIC_TYPE, ConfigEntity, broker_entity
from broker.cluster.config_watch import ConfigWatch
from broker.cluster.controller import Controller
from broker.cluster.documents import CONTROLLER, Life
from broker.cluster.driver import Core, Driver, OperationOwners
from broker.cluster.policy import Policy
from broker.cluster.registration import Registered, create_persistent_nodes, register
from broker.cluster.requests import Answer, Request
from broker.membership.calls import AddressedCall, AnyCall, FetchCall, Fetchers
from broker.membership.cluster_executor import ClusterExecutor
from broker.membership.cluster_identity import Membership
from broker.membership.coordinator_outage import CoordinatorOutage
from broker.membership.disk_notices import DiskNotices
from broker.membership.entity_settings import EntitySettings, encoded
from broker.membership.metadata_updates import live_brokers, topics_of
from broker.membership.peer_calls import PeerCalls
from broker.membership.problem_reports import ProblemReports
from broker.membership.producer_id_requests import ProducerIdRequests
from broker.membership.stale_image import StaleImage
from broker.membership.unknown_topics import UnknownTopics
from broker.metadata.change import Change
from broker.metadata.image import IMAGE_CAME, Image, ImageDelta
from broker.metadata.producer_ids import ProducerIds
from broker.metadata.topic import Topic
from broker.now import Now
from broker.security.sasl.listeners import SCRAM_MECHANISMS
from broker.security.sasl.user_text import without_password
from broker.waiting.pending import Pending
from broker.wire.errors import ErrorCode, WireError
from coordination.port import (
    Changed,
    CoordinationError,
    CoordinatorUnavailable,
    Event,
    Operation,
    Result,
    SessionEnded,
    SessionEstablished,
    SessionLost,
)

RETRY_MS = 1_000
"""The pause after a registration that the coordinator refused."""
SETTINGS_READ = "settings of topics were read"
"""The purgatory key of requests that wait for settings of topics."""
_ANY_TOPIC = ""
"""The name of no topic: its settings are the broker's defaults."""


class _TimedCore(Core, Protocol):
    """A part that hands out operations of the coordinator, and has deadlines of its own."""

    def tick(self, now: Now) -> None: ...

    def next_deadline_ms(self) -> int | None: ...


class Member:
    """See the module. `problem` is the error that ended a registration, which no retry mends."""

    def __init__(
        self, membership: Membership, report: Callable[[str], None], new_uuid: Callable[[], UUID]
    ) -> None:
        self.membership = membership
        self.pending = Pending()
        """Whether `take_operations` and `take_calls` may have something."""
        self.image = Image(membership.cluster_id)
        self.unknown_topics = UnknownTopics(membership.broker_id, self.image)
        self.controller = Controller(membership.broker_id, self.pending, listener=membership.listener)
        self.peers = PeerCalls(self.pending)
        self.fetchers: Fetchers | None = None
        """None while no partition has several copies."""
        self.life: Callable[[], Life | None] = lambda: None
        """Returns what a registration says of this broker's data (rule W1); None while no partition has several copies.
        """
        self.consequences: Callable[[ImageDelta, Now], None] = lambda delta, now: None
        """Called after each change of the image, with the difference."""
        self.touch: Callable[[Hashable, Now], object] = lambda key, now: None
        """Answers the requests that wait for a purgatory key."""
        self.user_of_brokers: Callable[[], tuple[str, int] | None] = lambda: None
        """Returns the user as which this broker logs in to others by SCRAM, and Kafka's number of the mechanism."""
        self.broker_epoch = -1
        self.controller_epoch = 0
        """Orders of an earlier controller are refused (rule E2)."""
        self.is_registered = False
        self.problem: Exception | None = None
        self._report = report
        self._problem_reports = ProblemReports(report)
        self.coordinator_outage = CoordinatorOutage(membership.coordinator_name, report)
        self.stale_image = StaleImage()
        self._registration = Driver(self.pending)
        self._configs = ConfigWatch(self.pending)
        self._acls = AclWatch(self.pending) if membership.has_authorizer else None
        """The access rules of the cluster."""
        self._settings = EntitySettings(report, membership.passwords, membership.broker_id)
        self._session_id = 0
        self._serves = False
        self._retry_ms = 0
        self._answered: dict[Request, Callable[[Answer, Now], None]] = {}
        self.producer_ids = ProducerIds()
        self.producer_id_requests = ProducerIdRequests(
            self.peers,
            self.producer_ids,
            self.image,
            membership.broker_id,
            lambda: self.broker_epoch,
            lambda now: self.executor.follow(now),
            report,
        )
        self.executor = ClusterExecutor(
            self.image, self.controller, self.submit, self.producer_ids, new_uuid, membership.passwords, self.pending
        )
        self._disk_notices = DiskNotices(membership.broker_id, self.pending)
        self._parts: tuple[_TimedCore, ...] = (
            self._registration, self._configs, self.controller, self.executor, self._disk_notices
        )  # fmt: skip
        if self._acls is not None:
            self._parts = (*self._parts, self._acls)
        self._owners = OperationOwners()

    @property
    def is_ready(self) -> bool:
        """Return True if settings and access rules of the cluster were read, so that logs can be opened."""
        return self._configs.has_read_all and (self._acls is None or self._acls.has_read_all)

    @property
    def is_informed(self) -> bool:
        """Return True if the controller has told this broker of the cluster and of itself: clients may be answered."""
        return self.membership.broker_id in self.image.live_ids

    @property
    def login_problem(self) -> str | None:
        """Return that the user of the brokers has no password, so that their next logins fail; None if it has one."""
        own = self.user_of_brokers()
        if own is None or own in self.image.credentials:
            return None
        return without_password(own[0], SCRAM_MECHANISMS[own[1]])

    @property
    def own_problems(self) -> list[str]:
        """Return what keeps this broker from its part in the cluster, now or at its next start."""
        login = self.login_problem if self.is_informed else None  # before that, the first start may still add the user
        problems = self.coordinator_outage.problem, self.stale_image.problem, login
        return [problem for problem in problems if problem is not None]

    @property
    def problems(self) -> list[str]:
        """Return what ails this broker, its view of the settings and the cluster that it controls, for people; also the
        topics whose deletion waits for a broker."""
        return [*self._problems, *self.controller.context.waiting_deletions]

    @property
    def _problems(self) -> list[str]:
        controller, configs = self.controller, self._configs
        problems = [*self.own_problems, *self.unknown_topics.problems, *controller.problems, *configs.problems.values()]
        if controller.problem is not None:
            problems.append(f"the controller of this broker fails, and tries again: {controller.problem}")
        if configs.failure is not None:
            problems.append(f"the settings of the cluster cannot be read, which is tried again: {configs.failure}")
        if self._acls is not None:
            problems += self._acls.problems.values()
            if self._acls.failure is not None:
                problems.append(f"access rules cannot be read, which is tried again: {self._acls.failure}")
        return problems

    def check_passwords(self, properties: Mapping[str, str]) -> None:
        """Raise InvalidSetting if a setting of this broker is a password that the coordinator may not keep."""
        encoded(broker_entity(self.membership.broker_id), properties, self.membership.passwords)

    # --- life ----------------------------------------------------------------------------------------------------

    def replicate(self, fetchers: Fetchers, life: Callable[[], Life], policy: Policy) -> None:
        """Take part in replication, from the registration on."""
        self.fetchers, self.life = fetchers, life
        self.controller.use(policy)

    def leave(self) -> None:
        """Copy nothing of what this broker has led, because it stops. The controller is about to be asked to move that.
        """
        if self.fetchers is not None:
            self.fetchers.leave()

    def serve(self, now: Now) -> None:
        """Register, because the logs are open, and take orders from then on."""
        self._serves = True
        self._register(now)

    def _prepared(self, value: None, error: Exception | None, now: Now) -> None:
        """Read the settings, because the nodes of a cluster exist. A session that has ended begins anew."""
        if error is None:
            self._configs.begin(now)
            if self._acls is not None:
                self._acls.begin(now)
        elif isinstance(error, CoordinatorUnavailable):
            self.problem = error
        elif not isinstance(error, CoordinationError):
            raise error

    def _register(self, now: Now) -> None:
        if not self._may_register or now.ms < self._retry_ms:
            return
        own = self.membership
        procedure = register(
            own.broker_id,
            replace(own.registration, timestamp_ms=now.wall_ms, life=self.life()),
            session_id=self._session_id,
            session_timeout_ms=own.session_timeout_ms,
            cluster_id=own.cluster_id,
            is_new_directory=own.is_new_directory,
            directory=own.directory_name,
            coordinator=own.coordinator_name,
        )
        self._registration.begin(procedure, self._registered, now)

    @property
    def _may_register(self) -> bool:
        """Return True if nothing but a pause is in the way of the next registration."""
        can_register = self._serves and self._session_id and self.is_ready
        return bool(can_register) and not (self.is_registered or self._registration.is_running or self.problem)

    def _registered(self, registered: Registered | None, error: Exception | None, now: Now) -> None:
        if registered is None:
            if isinstance(error, SessionLost):
                self._session_id = 0  # the next session registers
            elif isinstance(error, CoordinationError) and not isinstance(error, CoordinatorUnavailable):
                self._report(f"this broker could not register, and tries again: {error}")
                self._retry_ms = now.ms + RETRY_MS
            else:
                self.problem = error
            return
        self.is_registered = True
        if self.fetchers is not None:
            self.fetchers.registered()
        self._retry_ms = 0
        self.broker_epoch = registered.broker_epoch
        self.controller_epoch = max(self.controller_epoch, registered.controller_epoch)
        self.image.cluster_id = registered.cluster_id
        self.controller.registered(now)

    @property
    def waiting_for(self) -> str | None:
        """Return what the registration waits for, for people."""
        return self._registration.waiting_for

    def log_went_offline(self, now: Now) -> None:
        """Tell the controller, so that others lead what this broker cannot. A new life is asked for all its logs."""
        if self.is_registered:
            self._disk_notices.notify(now)

    # --- the coordinator -----------------------------------------------------------------------------------------

    def take_operations(self) -> list[Operation]:
        """Return the operations to carry out now. Pass each result to `completed` with the same object."""
        if not self.pending.operations:
            return []
        self.pending.operations = False
        return self._owners.take(self._parts)

    def completed(self, operation: Operation, outcome: Result | CoordinationError, now: Now) -> None:
        """Take the result or the error of an operation."""
        self._owners.completed(operation, outcome, now)
        self._follow(now)

    def notified(self, event: Event, now: Now) -> None:
        """Take an event of the coordinator."""
        self.coordinator_outage.notified(event, now)
        match event:
            case SessionEstablished(session_id) if session_id != self._session_id:
                self._session_id = session_id
                self._registration.cancel()
                self._registration.begin(create_persistent_nodes(), self._prepared, now)
            case SessionEnded():
                self._session_id = 0
                self.is_registered = False
                self._registration.cancel()
                self._disk_notices.cancel()
        self.controller.notified(event, now)
        self._configs.notified(event, now)
        if self._acls is not None:
            self._acls.notified(event, now)
        self._follow(now)

    def _follow(self, now: Now) -> None:
        """Apply what the parts have learned, and let them go on."""
        updates, topics = self._configs.take_updates(), self._configs.take_topics_read()
        if updates:
            self.apply(self._settings.changes(self.image, updates), now)
            if any(self._allows_unclean(entity) for entity, _ in updates):
                self.controller.unclean_leaders_allowed(now)
        acls = None if self._acls is None else self._acls.take_acls()
        if acls is not None:
            self.apply([Change(acls=acls)], now)
        if topics:
            self._settings.read(topics)
            self.touch(SETTINGS_READ, now)
        self._register(now)
        for request, answer in self.controller.take_answers():
            self._answered.pop(request)(answer, now)
        self.producer_id_requests.tick(now)
        self.stale_image.follow(self.controller.controller_id, self.image.controller_id, now)
        self._problem_reports.follow([*self._problems, *self._awaited_by_deletions()], now)

    def _awaited_by_deletions(self) -> list[str]:
        """Return a line for each broker. It names no topic, because each further deletion would be another line."""
        named = "/health and `flakelog cluster describe` name the topics"
        return [
            f"deletions of topics wait for broker {broker_id}, which has copies of them: {named}"
            for broker_id in self.controller.context.brokers_awaited_by_deletions
        ]

    def _allows_unclean(self, entity: ConfigEntity) -> bool:
        """Return True for a topic that may have an unclean leader, and for brokers if any topic may."""
        topic = str(entity.names[0]) if entity.entity_type == TOPIC_TYPE else _ANY_TOPIC
        concerns_leaders = entity.entity_type in (TOPIC_TYPE, BROKER_TYPE)
        return concerns_leaders and self.controller.policy.allows_unclean(topic)

    # --- other brokers -------------------------------------------------------------------------------------------

    def take_calls(self, now: Now) -> list[AddressedCall]:
        """Return the requests to send now. Pass the response of each to `called`, or None without one."""
        pending, to_send = self.pending, list[AnyCall]()
        if pending.calls:
            pending.calls = False
            self.producer_id_requests.tick(now)  # a handler may have asked for a block
            to_send += *self.controller.take_calls(now), *self.peers.take()
        if pending.fetches and self.fetchers is not None:
            pending.fetches = False
            to_send += self.fetchers.take_calls(now)
        calls: list[AddressedCall] = []
        for call in to_send:
            address = self._address(call)
            if address is None:
                self.called(call, None, now)
            else:
                calls.append(AddressedCall(*address, call))
        return calls

    def _address(self, call: AnyCall) -> tuple[str, int] | None:
        listener = self.membership.listener
        if isinstance(call, Call):  # the controller knows a broker earlier than its image does
            broker = self.controller.context.brokers.get(call.broker_id)
            endpoints = () if broker is None else broker.endpoints
            return next(((end.host, end.port) for end in endpoints if end.listener == listener), None)
        node = self.image.node(call.broker_id, listener)
        return None if node is None else (node.host, node.port)

    def called(self, call: AnyCall, response: Any | None, now: Now) -> None:
        """Take the response to a call, None if the broker was not reached or did not answer."""
        if isinstance(call, FetchCall):
            if self.fetchers is not None:
                self.fetchers.called(call, response, now)
            return
        if isinstance(call, Call):
            self.controller.called(call, response, now)
            self.executor.follow(now)
        else:
            self.peers.called(call, response, now)
        self._follow(now)

    # --- the controller ------------------------------------------------------------------------------------------

    def submit(self, request: Request, answered: Callable[[Answer, Now], None], now: Now) -> None:
        """Pass a request to the controller. `answered` receives NOT_CONTROLLER if that is another broker."""
        self._answered[request] = answered
        self.controller.submit(request, now)
        self._follow(now)

    def refusal_of_order(self, order: Any, now: Now) -> ErrorCode:
        """Return the error for an order of a controller that was replaced (rule E2), or for an earlier life (E3).

        An order for a later life is taken, because the answer to this broker's registration may still be under way.
        Before the first registration this broker cannot tell whom to refuse: WireError closes the connection, and the
        controller repeats the order.
        """
        if self.broker_epoch < 0:
            raise WireError("this broker has not registered yet, so it takes no orders")
        if order.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if order.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        self.controller_epoch = order.controller_epoch
        if self.controller.is_active and order.controller_epoch > self.controller.context.epoch:
            self.controller.notified(Changed(CONTROLLER), now)  # it may have been replaced: let it look
        return ErrorCode.NONE

    def update_metadata(self, order: Any, now: Now) -> None:
        """Take the live brokers and the leaders of partitions from an UpdateMetadata that was not refused."""
        live_before, was_informed = self.image.live_ids, self.is_informed
        self.image.register(live_brokers(order))
        self.image.controller_id = int(order.controller_id)
        self.apply([topics_of(self.image, order, self._settings.of_topic)], now)
        self.unknown_topics.compare(order, now)
        self.want_settings([(str(topic.topic_name), topic.topic_id) for topic in order.topic_states], now)
        for broker_id in live_before - self.image.live_ids:
            self.peers.lost(broker_id, now)
        if not was_informed:
            self.touch(IMAGE_CAME, now)

    def apply(self, changes: Iterable[Change], now: Now) -> None:
        """Apply changes that the cluster has, and carry out their consequences."""
        delta = self.image.apply(list(changes))
        for topic in delta.deleted:
            if self._settings.forget(topic.name):
                self._configs.forget_topic(topic.name)
        self.consequences(delta, now)
        self.executor.follow(now)

    # --- settings of topics --------------------------------------------------------------------------------------

    def want_settings(self, topics: Iterable[tuple[str, UUID | None]], now: Now) -> bool:
        """Have the settings of these topics read, given with their ids. Return True if all were read already.

        The settings of a new topic are written before the topic, and no notification names them.
        """
        unknown = [topic for topic in topics if not self._settings.knows(*topic)]
        for name, topic_id in unknown:
            if self._settings.want(name, topic_id):
                self._configs.want_topic(name, topic_id, now)
        return not unknown

    def settings_of(self, name: str) -> Mapping[str, str]:
        """Return the settings of a topic that were read."""
        return self._settings.of_topic(name)

    def with_settings(self, topics: Iterable[Topic]) -> dict[str, Topic | None]:
        """Return topics with the settings that were read, which may have changed since the topics were stored."""
        return {topic.name: topic.with_properties(dict(self.settings_of(topic.name))) for topic in topics}

    # --- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        self.pending.changed()
        for part in self._parts:
            part.tick(now)
        self.coordinator_outage.tick(now)
        self.peers.tick(now)
        self.unknown_topics.tick(now)
        if self.fetchers is not None:
            self.fetchers.tick(now)
        self._follow(now)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None without a deadline."""
        deadlines = [part.next_deadline_ms() for part in self._parts]
        deadlines += self.peers.next_deadline_ms(), self.producer_id_requests.next_deadline_ms()
        deadlines.append(self.stale_image.next_deadline_ms())
        deadlines.append(self.coordinator_outage.next_deadline_ms())
        deadlines.append(self.unknown_topics.next_deadline_ms())
        if self.fetchers is not None:
            deadlines.append(self.fetchers.next_deadline_ms())
        if self._may_register:
            deadlines.append(self._retry_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)
