"""SHELL (Twisted, sockets, threads): a client of the broker in the same process, and threads that wait for answers.

Messages and actions go through the broker's listener, as those of every client do, so that validation, quotas and the
log treat them alike. The client connects to the socket that the broker listens on, whatever address it advertises.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from broker.client.address import Address, parse_addresses
from broker.client.blocking import BlockingClient
from broker.client.core import Exchange
from flakelog.console.security import Refused
from flakelog.listeners import EVERYWHERE

T = TypeVar("T")

CLIENT_ID = "flakelog-console"
TIMEOUT_SECONDS = 10.0
THREADS_MAX = 2  # pages wait for each other, so that they take at most two cores' worth of decoding
JOBS_MAX = 32  # that run or wait; one more is refused


class OwnClient(BlockingClient):
    """A client that sends everything to one address, whichever address the broker advertises."""

    def __init__(self, address: Address) -> None:
        super().__init__([address], TIMEOUT_SECONDS, client_id=CLIENT_ID)
        self._own = address

    def send(self, exchange: Exchange) -> None:
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
        self._jobs = 0

    def run(self, job: Callable[[BlockingClient], T]) -> "Deferred[T]":
        """Run a job in a thread with a client; return a Deferred of its result. Raise Refused if too many wait."""
        if self._jobs >= JOBS_MAX:
            raise Refused(503, "too many pages are being read; try again")
        self._jobs += 1

        def done(result: Any) -> Any:
            self._jobs -= 1
            return result

        found: Deferred[T] = deferToThreadPool(self._reactor, self._pool(), self._with_client, job)
        return found.addBoth(done)

    def _with_client(self, job: Callable[[BlockingClient], T]) -> T:
        with OwnClient(self._address) as client:
            return job(client)

    def _pool(self) -> ThreadPool:
        if self._threads is None:
            self._threads = ThreadPool(0, THREADS_MAX, "console")
            self._threads.start()
            self._reactor.addSystemEventTrigger("during", "shutdown", self._threads.stop)
        return self._threads
