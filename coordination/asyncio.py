"""SHELL (asyncio): non-blocking operations on a coordinator that answers by callback, as ZooKeeper's does."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

from coordination.port import Asynchronous, ConnectionLost, CoordinationError, Operation, Result

T = TypeVar("T")
Execute = Callable[[Operation], Awaitable[Result]]


def executor(coordinator: Asynchronous, loop: asyncio.AbstractEventLoop) -> Execute:
    """Return a function that carries out an operation on the loop, and returns its result or raises its error."""

    async def execute(operation: Operation) -> Result:
        answer: asyncio.Future[Result | CoordinationError] = loop.create_future()

        def done(outcome: Result | CoordinationError) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, answer, outcome)

        coordinator.begin(operation, done)
        try:
            async with asyncio.timeout(coordinator.request_timeout_ms / 1_000):
                outcome = await answer
        except TimeoutError:
            raise ConnectionLost(f"no answer from {coordinator.scope} in {coordinator.request_timeout_ms} ms") from None
        if isinstance(outcome, CoordinationError):
            raise outcome
        return outcome

    return execute


async def carry_out(procedure: Generator[Operation, Any, T], execute: Execute) -> T:
    """Carry out a procedure as coordination.port.run does, but non-blocking; return its return value."""
    try:
        operation = next(procedure)
        while True:
            try:
                result = await execute(operation)
            except CoordinationError as error:
                operation = procedure.throw(error)
            else:
                operation = procedure.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _settle(answer: "asyncio.Future[Result | CoordinationError]", outcome: Result | CoordinationError) -> None:
    if not answer.done():  # it may have come too late
        answer.set_result(outcome)
