"""SHELL (Twisted, sockets, threads): a client of the broker in the same process, and threads that wait for answers.

Messages and actions go through the broker's listener, as those of every client do, so that validation, quotas and the
log treat them alike. The client connects to the socket that the broker listens on, whatever address it advertises; in a
cluster it connects to other brokers at the addresses that they advertise.

A job that reads for a page ends at the page's deadline, when its browser leaves, and when the server stops: each of
them ends the job's client, and with it the call that the job waits in, or its next one. A job that unpacks a batch at
that moment is left alone, because it changes nothing; the server does not wait for it.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from broker.client.address import Address
from broker.client.blocking import Client
from broker.client.core import Exchange, Steps, carry_out
from broker.client.delegation import act_for
from broker.client.errors import BrokerError, Unreachable
from broker.client.security.client_security import ClientSecurity
from broker.client.socket_connection import SocketConnection
from coordination.socket_folder import SocketFolder
from flakelog.console.own_place import OtherBrokers, OwnPlace
from flakelog.console.security import RequestRefused
from flakelog.console.visit import PageTimeout

T = TypeVar("T")
Explained = Callable[[BrokerError, int], Exception]
"""Returns the error to raise in place of a broker's, by the API that answered it."""

CLIENT_ID = "flakelog-console"
TIMEOUT_MS = 10_000
CHANGE_SECONDS = 60.0  # after which a page says that its change is not done yet
GRACE_SECONDS = 2.0  # in which a job may still return what it has read by its deadline
STOP_SECONDS = 0.5  # that a stop waits for jobs that were ended
CHANGES_MAX = 8  # changes that wait for an earlier one
THREADS_MAX = 2  # pages wait for each other, so that they take at most two cores' worth of decoding
JOBS_MAX = 32  # jobs that run or wait; one more is refused


def as_it_is(error: BrokerError, api_key: int) -> Exception:
    return error


class OwnClient(Client):
    """A client that sends everything to one address, whichever address the broker advertises.

    In a cluster, `advertised` is the broker's address for clients, and requests to other brokers go to theirs. With
    `sockets` an address is the name of a socket in that folder. `explained` returns the error to raise in place of a
    broker's. `others` is how other brokers are reached, if not in the same way.
    """

    def __init__(
        self,
        address: Address,
        advertised: Address | None = None,
        sockets: SocketFolder | None = None,
        explained: Explained = as_it_is,
        others: OtherBrokers | None = None,
    ) -> None:
        self._explained = explained
        security = None if others is None else others.security()
        super().__init__([address], timeout_ms=TIMEOUT_MS, client_id=CLIENT_ID, security=security)
        self._sockets = sockets
        self._others = others
        self._own = address
        self._advertised = advertised
        self._end: Exception | None = None
        self._api_key = -1
        """The API of the last request."""

    def end(self, reason: Exception) -> None:
        """End the call that another thread waits in, and all later ones, with this error. Any thread may call it."""
        self._end = self._end or reason
        self.interrupt()

    def check(self) -> None:
        """Raise the error with which this client was ended."""
        if self._end is not None:
            raise self._end

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise what explains the error of a broker, in its place."""
        try:
            yield
        except BrokerError as error:
            explained = self._explained(error, self._api_key)
            if explained is error:
                raise
            raise explained from error

    def run(self, steps: Steps[T]) -> T:
        with self.explaining():
            return super().run(steps)

    def send(self, exchange: Exchange) -> None:
        self.check()
        self._api_key = exchange.api_key
        with self._ending():
            super().send(exchange._replace(address=self._reached(exchange.address)))

    def receive(self, address: Address) -> memoryview:
        with self._ending():
            return super().receive(self._reached(address))

    def security_at(self, address: Address) -> ClientSecurity | None:
        return None if address == self._own else super().security_at(address)

    def begin(self, address: Address, connection: SocketConnection) -> None:
        """Let a connection to another broker act for the console's principal, and not as this broker."""
        if address == self._own or self._others is None:
            return
        try:
            carry_out(act_for(address, self._others.principal), connection.ask)
        except BaseException:  # a signal too: no call may use the connection as this broker
            self._drop(address)
            raise

    def open_socket(self, address: Address, timeout_s: float) -> socket.socket:
        sockets = self._sockets if address == self._own or self._others is None else self._others.sockets
        if sockets is None:
            return super().open_socket(address, timeout_s)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(timeout_s)
            made.connect(sockets.socket_path(address.host))
        except OSError:
            made.close()
            raise
        return made

    def _reached(self, address: Address) -> Address:
        """Return the address to connect to for a broker that advertises `address`."""
        return self._own if self._advertised in (None, address) else address

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Raise the reason of an ended client in place of the error that its closed connection makes."""
        try:
            yield
        except Unreachable:
            self.check()
            raise

    def give_up(self, address: Address) -> None:
        super().give_up(self._reached(address))


class OwnBroker:
    """The broker of this process, for jobs that wait for its answers. `place` is where it is reached.

    In a cluster, `advertised` is its address for clients. A page is answered `page_seconds` after its request, with
    what its job has read by then or with PageTimeout. `explained` returns the error in place of a broker's, by the API
    of the request.
    """

    def __init__(
        self,
        reactor: Any,
        place: OwnPlace,
        page_seconds: float,
        advertised: Address | None = None,
        explained: Explained = as_it_is,
    ) -> None:
        self._explained = explained
        self._address = Address(place.host, place.port)
        self._sockets = place.sockets
        # In a folder of sockets each broker has the name that it advertises there.
        self._advertised = self._address if advertised is not None and place.sockets is not None else advertised
        self._others = place.others
        if self._others is not None:
            self._advertised = self._others.own
        self._reactor = reactor
        self._page_seconds = page_seconds
        self._threads: _Threads | None = None
        self._changes = DeferredLock()
        self._clients: set[OwnClient] = set()
        self._is_stopped = False
        self._jobs = 0

    def run(self, job: Callable[[Client], T]) -> "Deferred[T]":
        """Run a job in a thread with a client; return a Deferred of its result. Raise RequestRefused if too many wait.

        At the page's deadline the client's calls raise PageTimeout, which a job may turn into a result. A job that does
        not end soon then fails with it. A caller that cancels the Deferred ends its job. The job counts until it has
        ended, so that visitors who come and go cannot make more jobs wait than JOBS_MAX.
        """
        client = self._client()
        running = self._start(client, job)
        wanted: Deferred[T] = Deferred(lambda _: client.end(CancelledError()))
        late = PageTimeout(f"reading took longer than {self._page_seconds:g} s, and was ended")
        timers = [
            self._reactor.callLater(self._page_seconds, client.end, late),
            self._reactor.callLater(self._page_seconds + GRACE_SECONDS, lambda: wanted.errback(late)),
        ]

        def answered(result: Any) -> Any:
            for timer in timers:
                if timer.active():
                    timer.cancel()
            return result

        running.addBoth(lambda result: None if wanted.called else wanted.callback(result))
        return wanted.addBoth(answered)

    def change(self, job: Callable[[Client], Any], ended: Callable[[Any], Any]) -> "Deferred[Any]":
        """Run a job that changes something, after those before it; return a Deferred of what `ended` makes of it.

        Of two equal changes, as after a double click, the second thus sees what the first has done. The job ends, and
        `ended` gets its result or its Failure, also if the caller cancels the Deferred, or gets PageTimeout after
        CHANGE_SECONDS. Raise RequestRefused.
        """
        if len(self._changes.waiting) >= CHANGES_MAX:
            raise RequestRefused(503, "too many changes wait for each other; try again")
        wanted: Deferred[Any] = Deferred(lambda _: None)
        late = PageTimeout("it is not done yet, and goes on; the server's log will say whether it was done")
        timer = self._reactor.callLater(CHANGE_SECONDS, lambda: None if wanted.called else wanted.errback(late))

        def forward(result: Any) -> None:
            if timer.active():
                timer.cancel()
            if not wanted.called:
                wanted.callback(result)

        start = self._changes.run(lambda: self._start(self._client(), job))
        start.addBoth(ended).addBoth(forward)
        return wanted

    def _client(self) -> OwnClient:
        return OwnClient(self._address, self._advertised, self._sockets, self._explained, self._others)

    def _start(self, client: OwnClient, job: Callable[[Client], T]) -> "Deferred[T]":
        """Run a job in a thread; return a Deferred that fires when it has ended. Raise RequestRefused."""
        if self._is_stopped:
            raise RequestRefused(503, "the server stops")
        if self._jobs >= JOBS_MAX:
            raise RequestRefused(503, "too many pages are being read; try again")
        self._jobs += 1
        self._clients.add(client)

        def with_client() -> T:
            client.check()
            with client, client.explaining():
                return job(client)

        def ended(result: Any) -> Any:
            self._jobs -= 1
            self._clients.discard(client)
            return result

        return deferToThreadPool(self._reactor, self._pool(), with_client).addBoth(ended)

    def _pool(self) -> ThreadPool:
        if self._threads is None:
            self._threads = _Threads(0, THREADS_MAX, "console")
            self._threads.start()
            self._reactor.addSystemEventTrigger("during", "shutdown", self.stop)
        return self._threads

    def stop(self) -> None:
        """End all jobs. The broker cannot answer while this waits for their threads, so it ends their calls first."""
        self._is_stopped = True
        for client in list(self._clients):
            client.end(Unreachable(str(self._address), "the server stops"))
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.stop()


class _Daemon(Thread):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named, daemon=True)


class _Threads(ThreadPool):
    """Threads that neither a stop nor the end of the process waits for, beyond STOP_SECONDS."""

    threadFactory = _Daemon

    def stop(self) -> None:
        self.joined, self.started = True, False
        self._team.quit()
        end = monotonic() + STOP_SECONDS
        for thread in self.threads:
            thread.join(max(end - monotonic(), 0.0))
