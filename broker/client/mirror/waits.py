"""SHELL (asyncio): the waits of a mirror's tasks: for an answer, for a broker that is away, and for the end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from broker.client.consumer_offsets import passes
from broker.client.errors import BrokerError, CommitFailed, Unreachable
from broker.client.timed_wait import wait_for_event

STEP_SECONDS = 0.5
RETRY_SECONDS = 0.5

T = TypeVar("T")

_log = logging.getLogger("broker.client.mirror")


class Waits:
    """The waits of one mirror. All calls are made on the loop."""

    def __init__(self) -> None:
        self._change = asyncio.Event()
        self._stop = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """True once `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End the waits, for good."""
        self._stop.set()
        self._change.set()

    async def for_stop(self) -> None:
        """Wait until `stop` is called."""
        await self._stop.wait()

    def notify(self) -> None:
        """End a wait for an answer: an answer of the target has come."""
        self._change.set()

    async def for_answer(self) -> None:
        """Wait for an answer of the target, at most STEP_SECONDS."""
        self._change.clear()
        await wait_for_event(self._change, STEP_SECONDS)

    async def repeat(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat work until no broker is away. Raise an error that does not pass, and any error once it stops."""
        last = ""
        while True:
            try:
                return await work()
            except (BrokerError, Unreachable, CommitFailed) as error:
                if self.is_stopping or (isinstance(error, (BrokerError, Unreachable)) and not passes(error)):
                    raise
                if str(error) != last:
                    last = str(error)
                    _log.warning("%s; it is asked again", error)
            await asyncio.sleep(RETRY_SECONDS)
