"""The controlled shutdown of a broker that stops: the controller moves what it leads (rule S6).

Nothing can be moved while the coordinator does not answer, so the broker asks nobody then.
"""

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.task import LoopingCall, deferLater

from broker.membership.member import Member
from broker.now import Now
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import ControlledShutdownRequest
from flakelog.config import ServerConfig
from flakelog.server.lifecycle import Report

CONTROLLER_S = 30.0
"""How long a stop waits for the controller in all attempts, because supervisors kill a process that takes a minute."""
RETRY_S = 0.1
ORDERS_S = 2.0
"""How long a controller that stops waits for the answers to its last orders."""


class ControlledShutdown:
    """The questions of one stop. `turn` lets the broker send what its member asks."""

    def __init__(
        self,
        member: Member,
        settings: ServerConfig,
        now: Callable[[], Now],
        turn: Callable[[], object],
        reactor: Any,
        report: Report,
    ) -> None:
        self._member = member
        self._settings = settings
        self._now = now
        self._turn = turn
        self._reactor = reactor
        self._report = report
        self._own_id = member.membership.broker_id
        self._end_s: float = reactor.seconds() + CONTROLLER_S

    @inlineCallbacks
    def ask(self) -> Any:
        """Ask the controller until it has moved all that it can move, or to ask is in vain."""
        for attempt in range(self._settings.controlled_shutdown_max_retries):
            if attempt:
                yield self._back_off()
            if self._is_last or self._is_in_vain() or (yield self._ask_once()):
                break
        yield self._orders_taken()

    @property
    def _left_s(self) -> float:
        return max(self._end_s - float(self._reactor.seconds()), 0.0)

    @property
    def _is_last(self) -> bool:
        """True if no other broker lives."""
        return self._member.image.live_ids <= {self._own_id}

    @property
    def _has_coordinator(self) -> bool:
        return self._member.coordinator_outage.is_connected

    def _is_in_vain(self) -> bool:
        """Return True, and report why, if no controller can elect, or if it has not answered in time."""
        if not self._has_coordinator:
            reason = f"{self._member.membership.coordinator_name} does not answer"
        elif not self._left_s:
            reason = f"the controller did not move all partitions within {CONTROLLER_S:.0f} s"
        else:
            return False
        self._report(
            f"this broker stops without a controlled shutdown, because {reason}: what it still leads has no leader "
            "until its session has ended"
        )
        return True

    @inlineCallbacks
    def _back_off(self) -> Any:
        """Wait before the controller is asked again.

        A controller that stops too is soon replaced: then the wait ends, because the new one can be asked at once.
        """
        seconds = min(self._settings.controlled_shutdown_retry_backoff_ms / 1000, self._left_s)
        image, end_s = self._member.image, self._reactor.seconds() + seconds
        replaced = image.controller_id
        while image.controller_id == replaced and not self._is_last and self._reactor.seconds() < end_s:
            if not self._has_coordinator:
                break
            yield deferLater(self._reactor, RETRY_S)

    def _ask_once(self) -> "Deferred[bool]":
        """Ask the controller; fire with True if it has moved all that it can move, with False if not.

        The wait ends when the coordinator is lost, because no controller can elect then.
        """
        member, answer = self._member, Deferred[bool]()
        request = ControlledShutdownRequest(
            broker_id=self._own_id,  # type: ignore[arg-type]
            broker_epoch=member.broker_epoch,  # type: ignore[arg-type]
        )

        def answered(response: Any, at: Now) -> None:
            is_done = response is not None and response.error_code == ErrorCode.NONE
            end(is_moved=is_done and not response.remaining_partitions)

        def end(*, is_moved: bool) -> None:
            if not answer.called:
                outage_checks.stop()
                answer.callback(is_moved)

        def check_outage() -> None:
            if not self._has_coordinator:
                end(is_moved=False)

        outage_checks = LoopingCall(check_outage)
        outage_checks.clock = self._reactor
        outage_checks.start(RETRY_S, now=False)
        timeout_ms = int(self._left_s * 1000)
        member.peers.ask(member.image.controller_id, request, answered, self._now(), timeout_ms=timeout_ms)
        self._turn()
        return answer

    @inlineCallbacks
    def _orders_taken(self) -> Any:
        """Wait until the others have answered what this broker has ordered, if it is their controller.

        Its last orders say who leads in its place. Without them, the others hear that from the next controller only.
        """
        controller = self._member.controller
        sent, end_s = controller.sent, self._reactor.seconds() + ORDERS_S
        while controller.is_active and not controller.have_answered(sent) and self._reactor.seconds() < end_s:
            yield deferLater(self._reactor, RETRY_S)
