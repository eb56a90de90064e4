"""SHELL (Twisted, threads): the session of one connection: its login, and its renewal before it ends (KIP-368)."""

from collections.abc import Callable
from threading import Thread
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.failure import Failure

from broker.client.errors import Unreachable
from broker.client.exchange import Exchange, Steps, advance
from broker.client.security.client_security import ClientSecurity

Send = Callable[[Exchange], "Deferred[memoryview]"]


class TwistedSession:
    """The session of a connection. `log_in` makes the operation, and `send` sends one of its requests.

    `security` returns that of a login that begins now.

    No other request may be sent from `renew` on, until its Deferred has fired. Answers to earlier requests may come.
    """

    def __init__(
        self, reactor: Any, security: Callable[[], ClientSecurity], log_in: Callable[[], Steps[int]], send: Send
    ) -> None:
        self._reactor = reactor
        self._security = security
        self._log_in = log_in
        self._send = send
        self._renew_at_s: float | None = None
        self._is_renewing = False
        self._waiting: list[Deferred[None]] = []

    @property
    def has_to_wait(self) -> bool:
        """Return True if no request may be sent now: `renew` returns the Deferred to wait for."""
        is_due = self._renew_at_s is not None and self._reactor.seconds() >= self._renew_at_s
        return is_due or self._is_renewing

    def renew(self) -> "Deferred[None]":
        """Log in, unless a login is under way. Return a Deferred that fires when requests may be sent.

        It fails with NotAuthenticated or Unreachable; then the connection is of no use.
        """
        waiting: Deferred[None] = Deferred()
        self._waiting.append(waiting)
        if not self._is_renewing:
            self._is_renewing = True
            self._carry_out().addBoth(self._end)
        return waiting

    def _end(self, result: Any) -> None:
        self._is_renewing = False
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            deferred.callback(result if isinstance(result, Failure) else None)

    @inlineCallbacks
    def _carry_out(self) -> Any:
        security = self._security()
        if security.must_fetch_token:
            yield self._in_thread(security.fetch_token)
        steps = self._log_in()
        outcome: memoryview | Unreachable | None = None
        while True:
            try:
                exchange = advance(steps, outcome)
            except StopIteration as done:
                renewal_ms = security.renewal_ms(done.value)
                self._renew_at_s = None if renewal_ms is None else self._reactor.seconds() + renewal_ms / 1_000
                return
            try:
                outcome = yield self._send(exchange)
            except Unreachable as error:
                outcome = error

    def _in_thread(self, work: Callable[[], None]) -> "Deferred[None]":
        """Do blocking work in a thread of its own; return a Deferred that fires at its end."""
        done: Deferred[None] = Deferred()

        def run() -> None:
            try:
                work()
            finally:
                self._reactor.callFromThread(done.callback, None)

        Thread(target=run, name="token", daemon=True).start()
        return done
