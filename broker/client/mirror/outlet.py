"""SHELL (asyncio): sends the batches of a Sender to the leaders of their partitions, several requests at a time."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from broker.client.address import Address
from broker.client.asyncio import AsyncClient
from broker.client.errors import ClientError
from broker.client.leaders import Partition
from broker.client.mirror.sender import OnAcknowledged, Request, Sender, Stopped
from broker.client.mirror.source_batch import OutgoingBatch

REQUESTS_MAX = 5  # requests in flight to one broker
REQUEST_BYTES_MAX = 4 << 20  # batches of one request, except for a single larger one
RETRY_SECONDS = 0.2

_log = logging.getLogger("broker.client.mirror")


class Outlet:
    """The idempotent producer of a mirror. All calls are made on the loop."""

    def __init__(self, client: AsyncClient, on_change: Callable[[], None]) -> None:
        """Send by `client`. `on_change` is called after each answer."""
        self.client = client
        self.sender = Sender()
        self._on_change = on_change
        self._requests: dict[Address, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_call: asyncio.Handle | None = None
        self._retry_call: asyncio.Handle | None = None
        self._is_working = False  # a producer id, or leaders, are looked up
        self._is_closed = False

    def send(self, key: Partition, batch: OutgoingBatch, acknowledge: OnAcknowledged) -> None:
        """Queue a batch. It is sent after this turn of the loop, with the others of the turn."""
        self.sender.add(key, batch, acknowledge)
        self._pump_soon()

    def drop(self, keys: Iterable[Partition]) -> None:
        """Forget the batches of these partitions of the target."""
        self.sender.drop(keys)
        self._pump_soon()

    def take_stopped(self) -> list[Stopped]:
        """Return and clear the partitions that were stopped."""
        return self.sender.take_stopped()

    async def close(self) -> None:
        """Send nothing more, and drop the batches in flight."""
        self._is_closed = True
        for call in (self._pump_call, self._retry_call):
            if call is not None:
                call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pump_soon(self) -> None:
        if self._pump_call is None and not self._is_closed:
            self._pump_call = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_call = None
        if self._is_closed or self._is_working:
            return
        if self.sender.needs_id:
            self._work(self._identify)
            return
        leaders: dict[Address, list[Partition]] = {}
        unknown: list[Partition] = []
        for key in self.sender.ready(_now_ms()):
            leader = self.client.core.known_leader(*key)
            if leader is None:
                unknown.append(key)
            else:
                leaders.setdefault(leader.address, []).append(key)
        for address, keys in leaders.items():
            self._fill(address, keys)
        if unknown:
            self._work(lambda: self._look_up(unknown))
        self._retry_later()

    def _fill(self, address: Address, keys: list[Partition]) -> None:
        """Send to one broker until enough requests are in flight."""
        while self._requests.get(address, 0) < REQUESTS_MAX:
            requests = self.sender.take(keys, REQUEST_BYTES_MAX)
            if not requests:
                return
            self._requests[address] = self._requests.get(address, 0) + 1
            self._begin(self._exchange(address, requests))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Look something up, one at a time, and then go on."""
        self._is_working = True

        async def run() -> None:
            try:
                await work()
            except ClientError as error:
                _log.warning("target: %s; it is asked again", error)
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._is_working = False
            self._pump_soon()

        self._begin(run())

    async def _identify(self) -> None:
        self.sender.identify(*await self.client.run(self.client.core.init_producer_id()))

    async def _look_up(self, keys: list[Partition]) -> None:
        failures: dict[Partition, ClientError] = {}
        await self.client.run(self.client.core.leaders_of(keys, failures))
        for error in failures.values():
            raise error

    async def _exchange(self, address: Address, requests: list[Request]) -> None:
        batches = [(*request.key, memoryview(request.data)) for request in requests]
        try:
            results = await self.client.run(self.client.core.produce_in_transaction(address, None, batches))
        except ClientError as error:
            for request in requests:
                self.sender.unanswered(request, error, _now_ms())
        else:
            answers = {(str(result.topic), result.partition): result for result in results}
            for request in requests:
                result = answers.get(request.key)
                if result is None:
                    missing = ClientError(f"the broker at {address} gave no answer for {request.key}")
                    self.sender.unanswered(request, missing, _now_ms())
                else:
                    answer = result.error_code, result.base_offset, result.message
                    self.sender.answered(request, *answer, _now_ms())
        self._requests[address] -= 1
        for note in self.sender.take_notes():
            _log.warning("%s", note)
        self._on_change()
        self._pump_soon()

    def _retry_later(self) -> None:
        """Go on when the pause after a failure is over."""
        retry_ms = self.sender.next_retry_ms()
        if retry_ms is not None and (self._retry_call is None or self._retry_call.cancelled()):
            delay = max(0.0, (retry_ms - _now_ms()) / 1000)
            self._retry_call = asyncio.get_running_loop().call_later(delay, self._retry)

    def _retry(self) -> None:
        self._retry_call = None
        self._pump_soon()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
