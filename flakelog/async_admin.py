"""SHELL (asyncio, a thread): administration of a cluster for programs under asyncio."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from broker.client.blocking import TIMEOUT_MS
from broker.client.errors import ClientError
from broker.client.security.client_security import Security
from flakelog.admin import Admin

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[Admin, P], T],
) -> Callable[Concatenate["AsyncAdmin", P], Coroutine[Any, Any, T]]:
    """Return the coroutine function that calls a method of `Admin` in the thread, with its arguments and docstring."""

    @wraps(method)
    async def call(self: "AsyncAdmin", /, *args: P.args, **named: P.kwargs) -> T:
        return await self._run(partial(method, self._admin, *args, **named))

    return call


class AsyncAdmin:
    """The asyncio version of `Admin`, with the same arguments and methods, which are coroutines here.

        async with AsyncAdmin("127.0.0.1:9092") as admin:
            await admin.create_topic("orders", 4, {"retention.ms": "86400000"})

    A thread carries out the calls one after the other, so the event loop goes on meanwhile. A call that is cancelled
    after it began goes on in the thread. `close` ends the calls that have not returned, with a ClientError.
    """

    def __init__(self, servers: str, *, timeout_ms: int = TIMEOUT_MS, security: Security = None) -> None:
        self._admin = Admin(servers, timeout_ms=timeout_ms, security=security)
        self._thread = ThreadPoolExecutor(1, "admin")
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
        self._is_closed = True
        if self._closing is None:
            self._admin.close()  # ends the call that the thread waits in
            self._closing = self._thread.submit(self._admin.close)  # that call may have connected again since
            self._thread.shutdown(wait=False)  # the thread ends after its last call
        await asyncio.shield(asyncio.wrap_future(self._closing))

    async def _run(self, call: Callable[[], T]) -> T:
        if self._is_closed:
            raise ClientError("the admin was closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._unless_closed, call)

    def _unless_closed(self, call: Callable[[], T]) -> T:
        """Carry out a call. It runs in the thread, perhaps long after the program has asked for it."""
        if self._is_closed:
            raise ClientError("the admin was closed")
        return call()

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
