"""SHELL (Twisted, sockets, threads): a client of the broker in the same process, and threads that wait for answers.

Messages and actions go through the broker's listener, as those of every client do, so that validation, quotas and the
log treat them alike. The client connects to the socket that the broker listens on, whatever address it advertises.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from broker.client.address import Address, parse_addresses
from broker.client.blocking import Client
from broker.client.core import Exchange
from broker.client.errors import Unreachable
from flakelog.console.security import Refused
from flakelog.listeners import EVERYWHERE

T = TypeVar("T")

CLIENT_ID = "flakelog-console"
TIMEOUT_SECONDS = 10.0
CHANGES_MAX = 8  # changes that wait for an earlier one
THREADS_MAX = 2  # pages wait for each other, so that they take at most two cores' worth of decoding
JOBS_MAX = 32  # jobs that run or wait; one more is refused


class OwnClient(Client):
    """A client that sends everything to one address, whichever address the broker advertises."""

    def __init__(self, address: Address) -> None:
        super().__init__([address], TIMEOUT_SECONDS, client_id=CLIENT_ID)
        self._own = address
        self._is_stopped = False

    def interrupt(self) -> None:
        """End the call that another thread waits in, and all later ones, with Unreachable."""
        self._is_stopped = True
        super().interrupt()

    def send(self, exchange: Exchange) -> None:
        if self._is_stopped:
            raise Unreachable(str(self._own), "the server stops")
        super().send(exchange._replace(address=self._own))

    def receive(self, address: Address) -> memoryview:
        return super().receive(self._own)

    def give_up(self, address: Address) -> None:
        super().give_up(self._own)


class OwnBroker:
    """The broker of this process, for jobs that wait for its answers. `listens` is "host:port"."""

    def __init__(self, reactor: Any, listens: str) -> None:
        (bound,) = parse_addresses(listens)
        loopback = "::1" if ":" in bound.host else "127.0.0.1"
        self._address = Address(loopback if bound.host in EVERYWHERE else bound.host, bound.port)
        self._reactor = reactor
        self._threads: ThreadPool | None = None
        self._changes = DeferredLock()
        self._clients: set[OwnClient] = set()
        self._is_stopped = False
        self._jobs = 0

    def run(self, job: Callable[[Client], T]) -> "Deferred[T]":
        """Run a job in a thread with a client; return a Deferred of its result. Raise Refused if too many wait.

        A caller that cancels the Deferred waits no more. Its job is skipped if it has not begun, and otherwise counts
        until it has ended, so that visitors who come and go cannot make more jobs wait than JOBS_MAX.
        """
        if self._is_stopped:
            raise Refused(503, "the server stops")
        if self._jobs >= JOBS_MAX:
            raise Refused(503, "too many pages are being read; try again")
        self._jobs += 1
        wanted: Deferred[T] = Deferred(lambda _: None)

        def ended(result: Any) -> None:
            self._jobs -= 1
            if not wanted.called:
                wanted.callback(result)

        deferToThreadPool(self._reactor, self._pool(), self._with_client, job, wanted).addBoth(ended)
        return wanted

    def change(self, job: Callable[[Client], Any], ended: Callable[[Any], Any]) -> "Deferred[Any]":
        """Run a job that changes something, after those before it; return a Deferred of what `ended` makes of it.

        Of two equal changes, as after a double click, the second thus sees what the first has done. The job ends, and
        `ended` gets its result or its Failure, also if the caller cancels the Deferred. Raise Refused.
        """
        if len(self._changes.waiting) >= CHANGES_MAX:
            raise Refused(503, "too many changes wait for each other; try again")
        wanted: Deferred[Any] = Deferred(lambda _: None)

        def forward(result: Any) -> None:
            if not wanted.called:
                wanted.callback(result)

        self._changes.run(self.run, job).addBoth(ended).addBoth(forward)
        return wanted

    def _with_client(self, job: Callable[[Client], T], wanted: "Deferred[T]") -> T:
        if wanted.called or self._is_stopped:
            raise CancelledError
        with OwnClient(self._address) as client:
            self._clients.add(client)
            try:
                return job(client)
            finally:
                self._clients.discard(client)

    def _pool(self) -> ThreadPool:
        if self._threads is None:
            self._threads = ThreadPool(0, THREADS_MAX, "console")
            self._threads.start()
            self._reactor.addSystemEventTrigger("during", "shutdown", self.stop)
        return self._threads

    def stop(self) -> None:
        """End all jobs, and wait for their threads. The broker cannot answer meanwhile, so end their calls first."""
        self._is_stopped = True
        for client in list(self._clients):
            client.interrupt()
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.stop()
