"""SHELL (a thread, sockets, ZooKeeper): an address for librdkafka that leads to a living broker.

librdkafka takes `bootstrap.servers` once. From then on it follows the brokers by Metadata answers, as long as one of
the brokers that it knows answers; its Python API has no call that adds others. So a client with a registry gets the
address of a port of this process instead. A connection to that port is forwarded, byte by byte, to a broker that
ZooKeeper names at that moment. librdkafka uses the port for its first Metadata request, and again whenever no broker
that it knows answers (KIP-899); messages travel to the brokers' own addresses.

Only this machine can reach the port, and it gives access to nothing else than what the brokers' own listeners give.
Where librdkafka has to check the names in certificates, the port speaks TLS to both sides (broker.client.registry.
relay_tls).
"""

import asyncio
import logging
import os
import time
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from broker.client.address import Address
from broker.client.errors import ClientError, NotAuthenticated
from broker.client.known_nodes import KnownNodes
from broker.client.registry.living_brokers import PLAINTEXT, LivingBrokers
from broker.client.security.tls_failures import handshake_failure
from broker.client.timed_wait import wait_for_event
from coordination.access import an_ensemble
from coordination.asyncio import carry_out, executor
from coordination.port import CoordinationError, CoordinatorUnavailable
from coordination.zookeeper import ZooKeeperCoordinator

if TYPE_CHECKING:
    from broker.client.registry.relay_tls import RelayTls

CONNECT_TIMEOUT_MS = 15_000  # to ZooKeeper
BROKER_SECONDS = 3.0  # for a connection to one broker; then the next one is tried
LOOK_SECONDS = 1.0  # between two looks at the coordinator's events, because a wake-up may get lost
CHUNK_BYTES = 64 * 1024
CONNECTIONS_MAX = 100  # at once; librdkafka needs one for each of its bootstrap brokers

_log = logging.getLogger(__name__)


class RegistryBootstrap:
    """A port of this process that leads to a broker of the registry "zk1:2181,zk2:2181/chroot".

    It leads to the brokers' first listeners of the `protocol`, over the TLS of `relay_tls` if that is given. The
    constructor waits for ZooKeeper, but not for a
    broker. Raise ValueError for a text that names no ensemble, and ClientError if no ZooKeeper answers. While ZooKeeper
    is away, the port leads to the brokers that were known last.
    """

    def __init__(self, registry: str, protocol: str = PLAINTEXT, relay_tls: "RelayTls | None" = None) -> None:
        if not isinstance(registry, str) or (an_ensemble(registry) is not None):
            raise ValueError(f"registry={registry!r}: give the hosts of a ZooKeeper, as host:port,host:port/chroot")
        self.registry = registry
        self._process = os.getpid()
        self._brokers = LivingBrokers(protocol)
        self._nodes = KnownNodes([])
        self._relay_tls = relay_tls
        self._refusal = ""
        """Why TLS with a broker failed last, as the log has it."""
        try:
            self._coordinator = ZooKeeperCoordinator(
                registry, connect_timeout_ms=CONNECT_TIMEOUT_MS, make_chroot=False
            )
        except CoordinatorUnavailable as error:
            raise ClientError(str(error)) from error
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()
        self._execute = executor(self._coordinator, self._loop)
        self._connections = 0
        self._loop.run_until_complete(self._update())
        self._nodes.learn(self._brokers.addresses)
        context = None if relay_tls is None else relay_tls.port_context
        server = asyncio.start_server(self._forward, "127.0.0.1", 0, limit=CHUNK_BYTES, ssl=context)
        self._server = self._loop.run_until_complete(server)
        self.address = Address(*self._server.sockets[0].getsockname())
        self._coordinator.on_wake(self._wake)
        self._thread = Thread(target=self._run, name="registry", daemon=True)
        self._thread.start()

    @property
    def brokers(self) -> dict[int, Address]:
        """The brokers that the port leads to, by broker id."""
        return dict(self._brokers.addresses)

    @property
    def problem(self) -> str | None:
        """Why the brokers are not those that live now; None while they are."""
        return self._brokers.problem

    def close(self) -> None:
        """Close the port, its connections and the session. Harmless if repeated, and in a forked process."""
        self.release()
        if os.getpid() == self._process:
            self._thread.join()

    def release(self) -> None:
        """Let the thread close all soon. The garbage collector may call this in any thread."""
        if os.getpid() == self._process:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._loop.stop)

    # --- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._watching = self._loop.create_task(self._watch())  # the loop itself keeps no reference to a task
        try:
            self._loop.run_forever()
        finally:
            self._server.close()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._coordinator.close()
            self._loop.close()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def _watch(self) -> None:
        while True:
            await wait_for_event(self._woken, LOOK_SECONDS)
            self._woken.clear()
            await self._update()
            self._nodes.learn(self._brokers.addresses)

    async def _update(self) -> None:
        """Take the events of the session, and read the brokers if they may have changed."""
        for event in self._coordinator.take_events():
            self._brokers.notified(event)
        now_ms = int(time.monotonic() * 1_000)
        if not self._brokers.is_due(now_ms):
            return
        before = self._brokers.problem
        try:
            await carry_out(self._brokers.read(now_ms), self._execute)
        except CoordinationError as error:
            self._brokers.failed(error, now_ms)
        if self._brokers.problem not in (None, before):
            _log.warning("the brokers in ZooKeeper at %s: %s", self.registry, self._brokers.problem)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection of librdkafka to the first broker that accepts one; close it if none does."""
        self._connections += 1
        try:
            broker = await self._connected() if self._connections <= CONNECTIONS_MAX else None
            if broker is None:
                return
            there, to_broker = broker
            try:
                ways = [asyncio.ensure_future(_copy(reader, to_broker)), asyncio.ensure_future(_copy(there, writer))]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
            finally:
                to_broker.close()
        finally:
            self._connections -= 1
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for address in self._nodes.in_order():
            try:
                async with asyncio.timeout(BROKER_SECONDS):  # wait_for drops a cancellation that comes with the answer
                    streams = await self._open(address)
            except (OSError, ValueError) as error:  # TimeoutError is one; ValueError for a name that cannot be a host's
                self._nodes.avoid(address)
                self._note_refusal(address, error)
            else:
                self._nodes.answered(address)
                return streams
        return None

    async def _open(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = None if self._relay_tls is None else self._relay_tls.broker_context()
        if context is None:
            return await asyncio.open_connection(*address)
        return await asyncio.open_connection(*address, ssl=context, server_hostname=address.host)

    def _note_refusal(self, address: Address, error: OSError | ValueError) -> None:
        """Log a failure of TLS that a retry meets again, because librdkafka only sees that the port closes."""
        if self._relay_tls is None:
            return
        failure = handshake_failure(address, error)
        if isinstance(failure, NotAuthenticated) and str(failure) != self._refusal:
            self._refusal = str(failure)
            _log.warning("a broker in ZooKeeper at %s: %s", self.registry, failure)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side ends."""
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
