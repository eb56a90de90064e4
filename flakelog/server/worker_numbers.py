"""The worker numbers of a server process: the session with their registry, and their claims with a time limit."""

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks, succeed
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

from coordination.access import Access, is_same_ensemble
from coordination.deferred import executor
from coordination.port import CoordinationError, Coordinator
from coordination.sessions import open_session
from flakelog.server.lifecycle import Lifecycle, Report, Stage, StartError
from flakelog.server.tls_ports import tls_of_peers
from flakelog.settings import Settings
from idgen.claim import EXHAUSTED_RETRY_MS, WorkerClaim, registry_of, worker_claim
from idgen.clock import IdClock
from idgen.peers import Peers
from idgen.server import ClaimDriver
from idgen.snowflake import IDS_DIRECTORY

SAY_S = 1.0  # a start that waits longer says for what
SAY_AGAIN_S = 4.0  # and repeats it, because a silent start looks dead
RELEASE_S = 5  # a stop waits this long for a registry that does not answer


def repeat_while_waiting(reactor: Any, report_wait: Callable[[], None]) -> Callable[[Any], Any]:
    """Call `report_wait` after SAY_S and every SAY_AGAIN_S, until the returned callback of a Deferred is called."""
    repeated = LoopingCall(report_wait)
    repeated.clock = reactor
    first = reactor.callLater(SAY_S, repeated.start, SAY_AGAIN_S)

    def end(result: Any) -> Any:
        if first.active():
            first.cancel()
        if repeated.running:
            repeated.stop()
        return result

    return end


def registry_access(settings: Settings, ensemble: str | None) -> Access:
    """Return the access to the registry, whose nodes `zookeeper.set.acl` protects too if the cluster's are beside."""
    access, server = settings.idgen.ids_zookeeper_access, settings.server
    if ensemble is None or server.zookeeper_connect is None or not server.zookeeper_set_acl:
        return access
    return replace(access, set_acl=True) if is_same_ensemble(ensemble, server.zookeeper_connect) else access


@inlineCallbacks
def open_registry(
    settings: Settings, data_dir: Path, zookeeper: str | None, reactor: Any, report: Report, lifecycle: Lifecycle
) -> Any:
    """Open a session where worker numbers are kept; fire with the Coordinator.

    A thread waits for a ZooKeeper that does not answer; closing the coordinator ends the wait.
    """
    idgen = settings.idgen
    ensemble = zookeeper or idgen.ids_zookeeper_connect
    session = open_session(
        directory=data_dir / IDS_DIRECTORY if ensemble is None else None,
        zookeeper=ensemble,
        access=registry_access(settings, ensemble),
        allow_network=idgen.ids_directory_network_allow,
        wait=False,
    )
    lifecycle.take(Stage.REGISTRY, session.close)
    if ensemble is None:
        return session  # a directory needs no waiting
    timeout_ms = settings.server.start_timeout_ms
    waiting = f"waiting for ZooKeeper at {ensemble}, which does not answer; the start fails after {timeout_ms} ms"
    end = repeat_while_waiting(reactor, lambda: report(waiting))
    yield deferToThread(session.wait_until_connected, timeout_ms).addBoth(end)
    return session


class WorkerNumbers:
    """The claims of one process, all in one registry."""

    def __init__(
        self,
        settings: Settings,
        session: Coordinator,
        clock: IdClock,
        reactor: Any,
        report: Report,
        lifecycle: Lifecycle,
    ) -> None:
        self._settings = settings
        self._session = session
        self._reactor = reactor
        self._report = report
        self._lifecycle = lifecycle
        self.driver = ClaimDriver(reactor, session, clock, report)
        lifecycle.take(Stage.WORKER_NUMBERS, self._release)

    def _release(self) -> "Deferred[None]":
        released = self.driver.stop().addTimeout(RELEASE_S, self._reactor)
        return released.addErrback(lambda _: self._report("the registry did not answer; the worker numbers rest"))

    def claim(
        self, address: str, role: str, *, number: int | None = None, needed_ms: int = 0, disk_full: bool = False
    ) -> "Deferred[WorkerClaim]":
        """Begin a claim; fire when it holds a number, or at once while the disk is full."""
        claim = worker_claim(
            self._settings.idgen,
            address=address,
            token=uuid.uuid4().hex,
            number=number,
            role=role,
            chance=random.random,
        )
        claim.need(needed_ms)
        held = self.driver.hold(claim)
        if not disk_full:
            return self._wait_for(claim, held)
        # The number's mark cannot be written now. Serve reads until the disk has space.
        held.addErrback(lambda failure: self._report(f"no worker number: {failure.getErrorMessage()}"))
        return succeed(claim)

    def _wait_for(self, claim: WorkerClaim, held: "Deferred[WorkerClaim]") -> "Deferred[WorkerClaim]":
        """Report what the claim waits for; fail with StartError after flakelog.start.timeout.ms.

        While all numbers are taken, a claim that accepts any number waits on: nothing is wrong with it, and a restarted
        process would only ask more often.
        """
        timeout_ms = self._settings.server.start_timeout_ms

        def report_wait() -> None:
            pace = f"; asked for again every {EXHAUSTED_RETRY_MS // 1_000} s or less often" if claim.crowded_out else ""
            self._report(f"waiting for a worker number: {claim.problem}{pace}")
            if not claim.crowded_out:
                timers.append(self._reactor.callLater(SAY_AGAIN_S, report_wait))

        def give_up_unless_crowded_out() -> None:
            if not claim.crowded_out:
                held.cancel()
                return
            report_wait()
            timers.append(self._reactor.callLater(timeout_ms / 1000, give_up_unless_crowded_out))

        def given_up(failure: Failure) -> None:
            failure.trap(CancelledError)  # type: ignore[no-untyped-call]
            raise StartError(f"no worker number within {timeout_ms} ms: {claim.problem}")

        def cancel_timers(result: Any) -> Any:
            for timer in timers:
                if timer.active():
                    timer.cancel()
            return result

        timers = [
            self._reactor.callLater(SAY_S, report_wait),
            self._reactor.callLater(timeout_ms / 1000, give_up_unless_crowded_out),
        ]
        return held.addErrback(given_up).addBoth(cancel_timers)

    @inlineCallbacks
    def check_peers(self, own_address: str) -> Any:
        """Check the other id services of the registry, and keep measuring our clock against theirs; fire with Peers.

        If the registry cannot be read, report that and continue.
        """
        idgen, execute = self._settings.idgen, executor(self._session, self._reactor)
        registry, tls = registry_of(idgen), tls_of_peers(self._settings)
        peers = Peers(self._reactor, execute, registry, idgen, self.driver.numbers, own_address, tls, self._report)
        self._lifecycle.take(Stage.TIMERS, peers.stop)
        try:
            yield peers.check()
        except CoordinationError as error:
            self._report(f"the other id services were not asked for their numbers and clocks: {error}")
        peers.measure_on()
        return peers
