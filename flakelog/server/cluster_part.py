"""A server's part in a cluster: its session with the coordinator, its Member, and its connections to other brokers.

    session -> the directory's data is brought into an empty coordinator -> settings are read -> (logs open)
      -> registered -> (serves) ... told to stop -> controlled shutdown -> (logs closed) -> session ends
"""

import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.endpoints import UNIXClientEndpoint, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread

from broker.address import host_port
from broker.client.core import Address
from broker.client.security.client_security import ClientSecurity
from broker.cluster.adoption import AdoptedData, AdoptedTopic, adopt
from broker.cluster.assignment import Spread
from broker.cluster.documents import Endpoint, Registration
from broker.cluster.procedure import Pause, Procedure
from broker.cluster.protected_nodes import cluster_access
from broker.cluster.registration import await_cluster
from broker.cluster.shared_secret import shared_secret
from broker.log.leader_epochs import FILE, decode
from broker.membership.cluster_identity import Membership
from broker.membership.entity_settings import altered_entities, encoded
from broker.membership.member import Member
from broker.metadata.change import Change
from broker.metadata.image import IMAGE_CAME, Image
from broker.metadata.topic import Topic
from broker.net.coordination import CoordinatorShell
from broker.net.peer_security import PeerSecurity
from broker.net.peers import CONNECT_SECONDS, PeerConnections
from broker.security.password_encoder import EncryptedPasswords, PasswordEncoder, PlainPasswords
from broker.security.principal_rules import ANONYMOUS
from broker.settings.config import BrokerConfig, parse_super_users
from broker.waiting.purgatory import Delayed, Purgatory
from coordination.port import ConnectionLost, CoordinationError, Coordinator, SessionLost
from coordination.sessions import open_session
from coordination.socket_folder import SocketFolder
from flakelog.console.own_place import OtherBrokers
from flakelog.inter_broker import security_of_brokers
from flakelog.listeners import PLAINTEXT, parse_names
from flakelog.machine import boot_id
from flakelog.server.bound_broker import BoundBroker
from flakelog.server.cluster_coordinator import PROCESSES, ClusterCoordinator, ClusterDirectory, name_of
from flakelog.server.controlled_shutdown import ControlledShutdown
from flakelog.server.lifecycle import Lifecycle, Report, Stage, StartError
from flakelog.server.own_socket import CONSOLE
from flakelog.server.sasl_secret import keep_secret, secret_of
from flakelog.server.worker_numbers import repeat_while_waiting
from flakelog.settings import Settings

if TYPE_CHECKING:
    from broker.net.tls_listeners import TlsListeners

RETRY_S = 0.1
CHECK_S = 1.0


@inlineCallbacks
def join_cluster(
    coordinator: ClusterCoordinator,
    settings: Settings,
    bound: BoundBroker,
    tls: "TlsListeners | None",
    reactor: Any,
    report: Report,
    lifecycle: Lifecycle,
) -> Any:
    """Open a session, and read the settings of the cluster, so that logs can be opened; fire with the ClusterPart."""
    if isinstance(coordinator, ClusterDirectory):
        session = yield _enter(coordinator, bound, lifecycle)
    else:
        session = yield _connect(coordinator.hosts, settings, reactor, report, lifecycle)
    data = adopted_data(bound, _passwords_of(settings, bound))
    if data is not None:
        yield deferToThread(_run, session, adopt(bound.config.node_id, data), lambda: lifecycle.stopped)
        report(f"the data of this directory is in the cluster of {session.scope}")
    if settings.listener_sasl and not isinstance(coordinator, ClusterDirectory):
        yield deferToThread(_share_secret, session, Path(bound.storage.root), lambda: lifecycle.stopped)
    part = ClusterPart(settings, bound, tls, session, reactor, report, lifecycle)
    yield part.until(lambda: part.member.is_ready, "the settings of the cluster")
    return part


@inlineCallbacks
def _connect(ensemble: str, settings: Settings, reactor: Any, report: Report, lifecycle: Lifecycle) -> Any:
    """Fire with a session with a ZooKeeper once that answers."""
    server = settings.server
    access = replace(
        cluster_access(settings.idgen.ids_zookeeper_access, set_acl=server.zookeeper_set_acl),
        session_timeout_ms=server.zookeeper_session_timeout_ms,
    )
    if not access.set_acl:
        report(
            f"who reaches ZooKeeper at {ensemble} may change every node of the cluster, and read the hashes of "
            "passwords: set zookeeper.set.acl=true"
        )
    session = open_session(zookeeper=ensemble, access=access, wait=False)
    lifecycle.take(Stage.SESSION, session.close)
    timeout_ms = server.start_timeout_ms
    waiting = f"waiting for ZooKeeper at {ensemble}, which does not answer; the start fails after {timeout_ms} ms"
    end = repeat_while_waiting(reactor, lambda: report(waiting))
    yield deferToThread(session.wait_until_connected, timeout_ms).addBoth(end)
    return session


@inlineCallbacks
def _enter(directory: ClusterDirectory, bound: BoundBroker, lifecycle: Lifecycle) -> Any:
    """Fire with a session in a directory.

    The first broker begins the cluster, because its data directory may have topics to bring. The others wait for that.
    """
    is_first = Path(bound.storage.location).absolute() == directory.first_data_dir.absolute()

    def wait() -> None:
        while not (is_first or directory.is_begun() or lifecycle.stopped):
            time.sleep(RETRY_S)

    yield deferToThread(wait)
    session = open_session(directory=directory.path)
    lifecycle.take(Stage.SESSION, session.close)
    if not is_first:
        yield deferToThread(_run, session, await_cluster(), lambda: lifecycle.stopped)
    return session


class ClusterPart:
    """The part in a cluster of a broker that is being started, serves, or is being stopped."""

    def __init__(
        self,
        settings: Settings,
        bound: BoundBroker,
        tls: "TlsListeners | None",
        session: Coordinator,
        reactor: Any,
        report: Report,
        lifecycle: Lifecycle,
    ) -> None:
        self._settings = settings
        self._bound = bound
        self._tls = tls
        self._session = session
        self._reactor = reactor
        self._report = report
        self._lifecycle = lifecycle
        self._waits: list[tuple[Callable[[], object], Deferred[None]]] = []
        self._pause_reason = ""
        broker_id = bound.config.node_id
        self.member = Member(self._membership(), report, uuid.uuid4)
        self.coordination = CoordinatorShell(reactor, session, self.member, bound.network.now, report)
        self.coordination.followed = self._followed
        connect = None if bound.sockets is None else partial(_connect_local, reactor, bound.sockets)
        make_config = partial(security_of_brokers, settings.server) if bound.sockets is None else lambda _: None
        own_tls = None if tls is None else tls.listeners.get(settings.server.inter_broker_listener)
        self.security = PeerSecurity(make_config, settings.properties, report, own_tls)
        self.peers = PeerConnections(
            reactor, broker_id, lambda call, response: None, report, connect, lambda: self.security.now
        )
        self.member.user_of_brokers = lambda: self.security.scram_user
        self._checks = LoopingCall(self._check)
        self._checks.clock = reactor
        lifecycle.take(Stage.LEADERSHIP, self._leave)
        self.coordination.begin()

    def _membership(self) -> Membership:
        server, local = self._settings.server, self._bound.local
        listener = PROCESSES if self._bound.sockets is not None else server.inter_broker_listener
        has_authorizer = bool(self._bound.config.authorizer_class_name)
        danger = server.danger_of_inter_broker(listener, has_authorizer=has_authorizer)
        if danger is not None:
            self._report(danger)
        if has_authorizer and listener in server.unproved(server.broker_listeners, self._settings.listener_tls):
            self._report(_check_anonymous(self._bound.config, listener))
        protocols = {**server.protocols, PROCESSES: PLAINTEXT}
        endpoints = tuple(
            Endpoint(name, protocols[name], *address)
            for name, address in local.broker.endpoints.items()
            if name != CONSOLE
        )
        return Membership(
            self._bound.config.node_id,
            Registration(endpoints, 0, local.broker.rack),
            listener,
            local.image.cluster_id,
            not local.coordinator,
            server.zookeeper_session_timeout_ms,
            boot_id(),
            has_authorizer=has_authorizer,
            more_listeners=tuple(parse_names(server.inter_broker_listeners_more)),
            passwords=_passwords_of(self._settings, self._bound),
            coordinator_name=name_of(self._session.scope),
            directory_name=f"The data directory {self._bound.storage.location}",
        )

    def fields_of_services(self) -> dict[str, Any]:
        """Return the fields of BrokerServices that a broker of a cluster has."""
        trusted = None if self._bound.sockets is None else PROCESSES
        services = {"member": self.member, "spread": _spread, "trusted_listener": trusted}
        return services | {"peer_security": self.security}

    def other_brokers(self, principal: str) -> OtherBrokers:
        """Return how the console, which acts for a principal, reaches the other brokers."""
        own = Address(*self._bound.local.broker.endpoints[self.member.membership.listener])
        return OtherBrokers(own, self._bound.sockets, lambda: self.security.now, principal)

    # --- the start -----------------------------------------------------------------------------------------------

    @inlineCallbacks
    def register(self) -> Any:
        """Register the broker, whose logs are open, and note in its directory which cluster it belongs to."""
        self.member.serve(self._bound.network.now())
        self.coordination.turn()
        yield self.until(lambda: self.member.is_registered, "the registration of this broker")
        self._bound.local.join(self.member.image.cluster_id, self._session.scope)
        self._lifecycle.take(Stage.TIMERS, self._checks.stop)
        self._checks.start(CHECK_S)

    def informed(self, purgatory: Purgatory) -> "Deferred[None]":
        """Fire once the controller has told this broker of the cluster; from then on the broker answers clients."""
        waiting: Delayed[bool] = Delayed(
            (IMAGE_CAME,), None, lambda now: True if self.member.is_informed else None, lambda now: True
        )
        purgatory.watch(waiting, lambda _: self._followed(), self._bound.network.now(), limited=False)
        name = "the first image of the cluster from its controller"
        return self.until(lambda: self.member.is_informed, name, self._why_uninformed)

    def _why_uninformed(self) -> list[str]:
        """Return what may keep the controller from telling this broker of the cluster, as far as this broker knows."""
        controller, own = self.member.controller.controller_id, self._bound.config.node_id
        reasons = [] if self.member.login_problem is None else [self.member.login_problem]
        refusals = {} if self._tls is None else self._tls.last_refusals
        for listener in sorted(self.member.membership.listeners_of_brokers):
            reasons += filter(None, (last.get(listener) for last in (refusals, self._bound.network.close_log.last)))
        reasons += list(self.peers.problems.values())
        if controller < 0:
            reasons.append("no broker is the controller")
        elif controller != own:
            reasons.append(f"broker {controller} is the controller, and {self._way_of_controller()}")
        return reasons

    def _way_of_controller(self) -> str:
        """Return where the controller has to reach this broker, which its settings may say wrongly."""
        listener = self.member.membership.listener
        if self._bound.sockets is not None:
            return "its log says whether it reaches this one"
        address = host_port(*self._bound.local.broker.endpoints[listener])
        where = f"at {address}, the address of listener {listener} in advertised.listeners, if that is set"
        return f"must reach this one {where}; its log says whether it does"

    def until(
        self, condition: Callable[[], object], name: str, why: Callable[[], list[str]] = list
    ) -> "Deferred[None]":
        """Fire once `condition` returns True; fail with StartError if the cluster refuses this broker, or is late.

        `why` returns the reasons that are known for a delay.
        """
        timeout_ms = self._settings.server.start_timeout_ms
        waiting: Deferred[None] = Deferred()
        self._waits.append((condition, waiting))
        reason = f"{name}: not within {timeout_ms} ms"
        late = self._reactor.callLater(timeout_ms / 1000, self._late, waiting, reason, why)

        def end(result: Any) -> Any:
            self._waits = [wait for wait in self._waits if wait[1] is not waiting]
            if late.active():
                late.cancel()
            return result

        waiting.addBoth(end)
        self._followed()
        return waiting

    def _late(self, waiting: "Deferred[None]", reason: str, why: Callable[[], list[str]]) -> None:
        pause = "" if self.member.is_registered else self._pause_reason
        reasons = [reason, *filter(None, [pause]), *why()]
        waiting.errback(StartError("; ".join(reasons)))

    def _followed(self) -> None:
        """Tell the operator what the registration waits for, and let the start go on."""
        waiting_for = self.member.waiting_for
        if waiting_for is not None and waiting_for != self._pause_reason:
            self._pause_reason = waiting_for
            self._report(waiting_for)
        for condition, waiting in list(self._waits):
            if self._lifecycle.stopped:
                waiting.errback(StartError("the server was told to stop"))
            elif self.member.problem is not None:
                waiting.errback(StartError(str(self.member.problem)))
            elif condition():
                waiting.callback(None)

    def _check(self) -> None:
        """Stop the server if the cluster refuses it after a session has ended, as when its id was taken."""
        if self.member.problem is not None:
            self._checks.stop()
            self._report(f"this broker stops, because the cluster refuses it: {self.member.problem}")
            self._lifecycle.stop().addBoth(lambda _: self._reactor.stop())

    # --- the stop ------------------------------------------------------------------------------------------------

    @inlineCallbacks
    def _leave(self) -> Any:
        """Ask the controller to move what this broker leads, then take no more part in the cluster (rule S6)."""
        self._followed()  # a start that waits ends
        server = self._settings.server
        if self.member.is_registered and server.controlled_shutdown_enable:
            self.member.leave()
            network = self._bound.network
            yield ControlledShutdown(self.member, server, network.now, network.turn, self._reactor, self._report).ask()
        self.member.controller.stop(self._bound.network.now())
        self.coordination.stop()
        self.peers.stop()


def _connect_local(
    reactor: Any, sockets: SocketFolder, address: Address, protocol: Protocol, security: ClientSecurity | None
) -> "Deferred[Any]":
    """Connect to the socket of another broker, whose name is the host of its endpoint. It is in plain text."""
    path = sockets.socket_path(address.host)
    endpoint = UNIXClientEndpoint(reactor, path, CONNECT_SECONDS)  # type: ignore[no-untyped-call]
    connecting: Deferred[Any] = connectProtocol(endpoint, protocol)  # type: ignore[no-untyped-call]
    return connecting


def _spread(brokers: int) -> Spread:
    return Spread(random.randrange(brokers), random.randrange(brokers)) if brokers else Spread(0, 0)


def _share_secret(session: Coordinator, directory: Path, is_stopped: Callable[[], bool]) -> None:
    """Take the secret of the cluster into the data directory, or give it the directory's. Raise OSError."""
    secret = _run(session, shared_secret(secret_of(directory)), is_stopped)
    if secret is not None:
        keep_secret(directory, secret)


def _run(session: Coordinator, procedure: Procedure[Any], is_stopped: Callable[[], bool]) -> Any:
    """Carry out a procedure in a thread that may block, and return its result, None if it was stopped. Raise its error.
    """
    step = next(procedure, None)
    while step is not None and not is_stopped():
        outcomes: list[Any] = []
        if isinstance(step, Pause):
            time.sleep(step.ms / 1000)
        else:
            for operation in step:
                try:
                    outcomes.append(session.execute(operation))
                except SessionLost:
                    raise
                except CoordinationError as error:
                    outcomes.append(error)
        if any(isinstance(outcome, ConnectionLost) for outcome in outcomes):
            time.sleep(RETRY_S)
        try:
            step = procedure.send(outcomes)
        except StopIteration as done:
            return done.value
    return None


def _passwords_of(settings: Settings, bound: BoundBroker) -> PasswordEncoder:
    """Return what encodes passwords: ZooKeeper gets none in plain text, and the directory of one machine is its own."""
    if bound.sockets is not None:
        return PlainPasswords()
    server = settings.server
    return EncryptedPasswords(server.password_encoder_secret, os.urandom, server.password_encoder_old_secret)


def _check_anonymous(config: BrokerConfig, listener: str) -> str:
    """Return a line for the log about a listener at which brokers prove nothing to each other.

    Raise StartError unless everyone who proves nothing is a super user.
    """
    anonymous = f"User:{ANONYMOUS}"
    if anonymous not in parse_super_users(config.super_users):
        raise StartError(
            f"authorizer.class.name is set, but brokers prove nothing to each other at listener {listener}, so they "
            "would deny each other everything: name a listener of SASL_SSL, SASL_PLAINTEXT, or SSL with "
            f"ssl.client.auth=required by inter.broker.listener.name, or add {anonymous} to super.users"
        )
    return f"{anonymous} is a super user: every client that proves nothing may do everything, at each listener"


# --- adoption --------------------------------------------------------------------------------------------------------


def adopted_data(bound: BoundBroker, passwords: PasswordEncoder) -> AdoptedData | None:
    """Return what a directory brings into a cluster; None if it belongs to one, or has nothing. Raise InvalidSetting.
    """
    local = bound.local
    document = local.document()
    if document.coordinator:
        return None
    change = Change(
        broker_properties=document.brokers or None,
        quotas=document.quotas or None,
        credentials=document.credentials or None,
    )
    configs = {
        entity: {name: value for name, value in encoded(entity, values, passwords).items() if value is not None}
        for entity, values in altered_entities(Image(), change).items()
    }
    if not (document.topics or configs or document.producer_ids_end or document.acls):
        return None
    foreign = [
        name
        for name, topic in document.topics.items()
        if any(state.replicas != (local.broker.id,) for state in topic.partitions)
    ]
    if foreign:
        raise StartError(
            f"the topics of this directory are those of another broker.id ({', '.join(foreign[:3])}): give this server "
            "the id that it had"
        )
    topics = {
        name: AdoptedTopic(topic.id, _leader_epochs(bound, topic), topic.properties)
        for name, topic in document.topics.items()
    }
    return AdoptedData(
        document.cluster_id,
        topics,
        configs,
        first_unused_producer_id=document.producer_ids_end,
        acls=document.acls,
    )


def _leader_epochs(bound: BoundBroker, topic: Topic) -> tuple[int, ...]:
    """Return the last leader epoch of each partition: a log may be ahead of the metadata."""
    epochs = []
    for directory, state in zip(topic.directories, topic.partitions, strict=True):
        path, last = f"{directory}/{FILE}", state.leader_epoch
        if bound.storage.exists(path):
            file = bound.storage.open(path)
            try:
                last = max([last, *(epoch for epoch, _ in decode(bytes(file.read(0, file.size))))])
            except ValueError:
                pass  # recovery writes it again
        epochs.append(last)
    return tuple(epochs)
