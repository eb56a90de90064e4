"""SHELL (Twisted, threads, sockets): asks the other id services of a registry for their numbers and their time."""

import random
import socket
import time
from collections.abc import Callable, Generator
from ssl import SSLError
from typing import Any

from twisted.internet.defer import Deferred, gatherResults, inlineCallbacks
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

from coordination.deferred import Execute, carry_out
from coordination.port import CoordinationError
from coordination.reactor import DelayedCall, Reactor
from idgen.client.core import Address
from idgen.client.tls import ClientTls, TlsFailure
from idgen.config import IdgenConfig
from idgen.registry import Registry, Worker
from idgen.sanity import Answer, Peer, check, mean_offset_ms, peers_of
from idgen.wire import Call, FrameDecoder, ThriftError, decode_reply, encode_call

QUESTIONS = ("get_datacenter_id", "get_worker_id", "get_timestamp")
SPREAD = 0.2  # of the interval, at random, so that processes synchronised by an outage drift apart


class Peers:
    """The peers of one process, which has the numbers that `own` returns, and the address `own_address`.

    `offset_ms` is our clock less the mean of theirs.
    """

    def __init__(
        self,
        reactor: Reactor,
        execute: Execute,
        registry: Registry,
        config: IdgenConfig,
        own: Callable[[], set[int]],
        own_address: str,
        tls: ClientTls | None = None,
        report: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._tls = tls
        self._report = report
        self._distrusted: set[Peer] = set()
        """Peers with which TLS failed when they were last asked."""
        self.offset_ms: int | None = None
        self.answering = 0
        self._reactor = reactor
        self._execute = execute
        self._registry = registry
        self._config = config
        self._own = own
        self._own_address = own_address
        self._timer: DelayedCall | None = None
        self._stopped = False

    @inlineCallbacks
    def check(self) -> Generator["Deferred[Any]", Any, None]:
        """Ask the peers and check their answers. Fails with SanityCheckFailed, or with the registry's error."""
        answers = yield self._ask()
        check(answers, self._config.layout, self._config.ids_sanity_max_offset_ms)

    def measure_on(self) -> None:
        """Ask the peers periodically. The results are shown, and stop nothing."""
        if not self._stopped:
            pause_ms = self._config.ids_sanity_interval_ms * (1 - SPREAD * random.random())
            self._timer = self._reactor.callLater(pause_ms / 1000, self._again)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _again(self) -> None:
        measured: Deferred[Any] = self._ask()
        measured.addErrback(self._unanswered).addBoth(lambda _: self.measure_on())

    def _unanswered(self, failure: Failure) -> None:
        """Clear the results while the registry does not answer, so that old results are not shown as new ones."""
        failure.trap(CoordinationError)  # type: ignore[no-untyped-call]
        self.offset_ms, self.answering = None, 0

    @inlineCallbacks
    def _ask(self) -> Generator["Deferred[Any]", Any, list[Answer]]:
        neighbours = self._registry.neighbours(self._own(), self._config.ids_sanity_max_peers)
        workers: list[Worker] = yield carry_out(neighbours, self._execute)
        timeout_s = self._config.ids_sanity_timeout_ms / 1_000
        peers = peers_of(workers, self._own_address)
        outcomes = yield gatherResults([self._ask_one(peer, timeout_s) for peer in peers])
        self._distrusted.intersection_update(peers)
        answers = [answer for answer in outcomes if answer is not None]
        self.offset_ms, self.answering = mean_offset_ms(answers), len(answers)
        return answers

    def _ask_one(self, peer: Peer, timeout_s: float) -> "Deferred[Answer | None]":
        answer = deferToThread(ask, peer, timeout_s, self._tls)
        return answer.addCallbacks(lambda answer: self._answered(peer, answer), lambda error: self._failed(peer, error))

    def _answered(self, peer: Peer, answer: Answer | None) -> Answer | None:
        self._distrusted.discard(peer)
        return answer

    def _failed(self, peer: Peer, failure: Failure) -> None:
        """Report a failure of TLS once, because each later question would meet it again."""
        failure.trap(TlsFailure)  # type: ignore[no-untyped-call]
        if peer not in self._distrusted:
            self._distrusted.add(peer)
            reason = failure.getErrorMessage()
            self._report(f"{Address(peer.host, peer.port)} is not asked for its number and clock: {reason}")


def ask(peer: Peer, timeout_s: float, tls: ClientTls | None = None) -> Answer | None:
    """Return a peer's answer about itself, or None without a valid answer. Blocks for a few `timeout_s` at most.

    Raise TlsFailure if the peer cannot be trusted, or does not trust us.
    """
    try:
        with _connected(peer, timeout_s, tls) as connection:
            sent_ms = time.time_ns() // 1_000_000
            connection.sendall(b"".join(encode_call(Call(method, n)) for n, method in enumerate(QUESTIONS)))
            datacenter, worker, timestamp_ms = _replies(connection, timeout_s)
            ours_ms = (sent_ms + time.time_ns() // 1_000_000) // 2
    except SSLError as error:
        if tls is None:
            return None
        raise tls.failure(Address(peer.host, peer.port), error, in_handshake=False) from None
    except TlsFailure:
        raise
    except (OSError, ThriftError, ValueError):
        return None
    return Answer(peer, datacenter, worker, ours_ms - timestamp_ms)


def _connected(peer: Peer, timeout_s: float, tls: ClientTls | None) -> socket.socket:
    connection = socket.create_connection((peer.host, peer.port), timeout=timeout_s)
    if tls is None:
        return connection
    try:
        return tls.context().wrap_socket(connection, server_hostname=peer.host)
    except (OSError, ValueError) as error:
        connection.close()
        raise tls.failure(Address(peer.host, peer.port), error, in_handshake=True) from None


def _replies(connection: socket.socket, timeout_s: float) -> list[int]:
    """Return the numbers answered. ValueError for any other answer."""
    frames, values = FrameDecoder(), list[int]()
    deadline = time.monotonic() + 2 * timeout_s
    while len(values) < len(QUESTIONS):
        data = connection.recv(4_096)
        if not data or time.monotonic() > deadline:
            raise ValueError("it closed, or takes too long")
        for frame in frames.frames(data):
            value = decode_reply(frame).value
            if not isinstance(value, int):
                raise ValueError("it refuses")
            values.append(value)
    return values
