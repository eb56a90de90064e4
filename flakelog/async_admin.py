"""SHELL (asyncio, threads): administration of a cluster for programs under asyncio."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from broker.client.blocking import TIMEOUT_MS
from broker.client.errors import ClientError
from broker.client.security.client_security import ClientSecurity, Security
from flakelog.admin import Admin

CALLS_MAX = 4
"""The most calls at the same time; each has its own connections."""
CLOSE_SECONDS = 0.1
"""How often `close` closes the connections of calls that have not ended."""
P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[Admin, P], T],
) -> Callable[Concatenate["AsyncAdmin", P], Coroutine[Any, Any, T]]:
    """Return the coroutine function that calls a method of `Admin` in a thread, with its arguments and docstring."""

    @wraps(method)
    async def call(self: "AsyncAdmin", /, *args: P.args, **named: P.kwargs) -> T:
        return await self._run(lambda admin: method(admin, *args, **named))

    return call


class AsyncAdmin:
    """The asyncio version of `Admin`, with the same arguments and methods, which are coroutines here.

        async with AsyncAdmin("127.0.0.1:9092") as admin:
            await admin.create_topic("orders", 4, {"retention.ms": "86400000"})

    Up to four threads carry out calls, one at a time each; further calls wait for a thread. The event loop goes on
    meanwhile. A call that is cancelled after it began goes on in its thread. `close` ends the calls that have not
    returned, with a ClientError.
    """

    def __init__(self, servers: str, *, timeout_ms: int = TIMEOUT_MS, security: Security = None) -> None:
        self._make = partial(Admin, servers, timeout_ms=timeout_ms, security=ClientSecurity.of(security))
        self._admins = [self._make()]
        """The most that calls have needed at the same time, up to CALLS_MAX."""
        self._idle = [*self._admins]
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(CALLS_MAX, "admin")
        self._calls: set[Future[Any]] = set()
        self._is_closed = False
        self._closing: Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Harmless if repeated, and carried out even if it is cancelled."""
        if self._closing is None:
            with self._lock:
                self._is_closed = True
            self._closing = Future()
            Thread(target=self._end, args=(self._closing,), name="admin end", daemon=True).start()
        await asyncio.shield(asyncio.wrap_future(self._closing))

    def _end(self, ended: Future[None]) -> None:
        """Close the connections, which ends the calls that wait for answers, until no call is left.

        A call that connects meanwhile does not notice that at first.
        """
        while True:
            is_last = not wait(self._calls, timeout=0).not_done
            for admin in self._admins:
                admin.close()
            if is_last:
                break
            wait(self._calls, timeout=CLOSE_SECONDS)
        self._threads.shutdown()
        ended.set_result(None)

    async def _run(self, call: Callable[[Admin], T]) -> T:
        if self._is_closed:
            raise ClientError("the admin was closed")
        submitted = self._threads.submit(self._carry_out, call)
        self._calls.add(submitted)
        submitted.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(submitted)

    def _carry_out(self, call: Callable[[Admin], T]) -> T:
        """Carry out a call in one of the threads, perhaps long after the program has asked for it."""
        with self._lock:
            if self._is_closed:
                raise ClientError("the admin was closed")
            if not self._idle:
                self._admins.append(self._make())
                self._idle.append(self._admins[-1])
            admin = self._idle.pop()
        try:
            return call(admin)
        finally:
            with self._lock:
                self._idle.append(admin)

    topics = _in_thread(Admin.topics)
    topic = _in_thread(Admin.topic)
    create_topic = _in_thread(Admin.create_topic)
    delete_topic = _in_thread(Admin.delete_topic)
    add_partitions = _in_thread(Admin.add_partitions)
    delete_records = _in_thread(Admin.delete_records)

    topic_configs = _in_thread(Admin.topic_configs)
    alter_topic_configs = _in_thread(Admin.alter_topic_configs)
    broker_configs = _in_thread(Admin.broker_configs)
    alter_broker_configs = _in_thread(Admin.alter_broker_configs)

    first_offsets = _in_thread(Admin.first_offsets)
    end_offsets = _in_thread(Admin.end_offsets)
    offsets_at = _in_thread(Admin.offsets_at)
    offsets_of_id = _in_thread(Admin.offsets_of_id)

    groups = _in_thread(Admin.groups)
    group = _in_thread(Admin.group)
    committed = _in_thread(Admin.committed)
    lag = _in_thread(Admin.lag)
    reset_offsets = _in_thread(Admin.reset_offsets)
    delete_group = _in_thread(Admin.delete_group)

    cluster = _in_thread(Admin.cluster)
    placement = _in_thread(Admin.placement)
    elect_leaders = _in_thread(Admin.elect_leaders)
    log_dirs = _in_thread(Admin.log_dirs)
    replicas = _in_thread(Admin.replicas)
    quotas = _in_thread(Admin.quotas)
    alter_quotas = _in_thread(Admin.alter_quotas)

    describe_acls = _in_thread(Admin.describe_acls)
    create_acls = _in_thread(Admin.create_acls)
    delete_acls = _in_thread(Admin.delete_acls)
    describe_user_scram_credentials = _in_thread(Admin.describe_user_scram_credentials)
    alter_user_scram_credentials = _in_thread(Admin.alter_user_scram_credentials)

    transactions = _in_thread(Admin.transactions)
    transaction = _in_thread(Admin.transaction)
    producers = _in_thread(Admin.producers)
    abort_transaction = _in_thread(Admin.abort_transaction)
