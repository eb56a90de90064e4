"""How a bolt's work runs: in the engine's step, as a coroutine, or in a thread; and which methods a component may have.

A bolt's work is `execute`, or `process_batch` for a BatchBolt. The engine starts work on some tuples, and settles those
tuples when it has ended: acked if it returned, failed if it raised. The shell runs coroutines and threads through the
port Background, so that this core stays without I/O.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from enum import Enum
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Protocol

from spout.api import Bolt, Component, Spout, Tuple
from spout.engine_spout import ENGINE_METHODS, EngineSpout

Done = Callable[[BaseException | None], None]

EXITS = (SystemExit, KeyboardInterrupt)
"""The exceptions by which user code ends the program: the engine stops, and the messages on hand stay unsettled."""


FENCED_CODE = 9
"""The exit code of a process whose instance another one has taken over: do not start it again."""


class InstanceFenced(SystemExit):
    """Another process has taken the place of this one, under the same name of an instance. It ends the topology."""

    def __init__(self, reason: str) -> None:
        super().__init__(FENCED_CODE)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Interruption(BaseException):
    """An exception that the engine raises through a method of a component. The component has not failed."""


# Methods of spouts and bolts that the engine calls.
CALLED_METHODS = (
    "declare_output_fields", "prepare", "execute", "process_batch", "tick", "cleanup", "open", "next_tuple", "ack",
    "fail", "activate", "deactivate", "close", *ENGINE_METHODS,
)  # fmt: skip


class Mode(Enum):
    """Where a bolt's work runs."""

    STEP = "step"
    COROUTINE = "coroutine"
    THREAD = "thread"


class Background(Protocol):
    """The shell's port for work outside the engine's step. It calls `done` once, in the engine's thread."""

    def run_coroutine(self, name: str, coroutine: Coroutine[Any, Any, object], done: Done) -> Callable[[], None]:
        """Drive a coroutine of the component `name`; `done` may be called at once. Return a function that cancels."""

    def run_in_thread(self, pool: str, threads: int, call: Callable[[], object], done: Done) -> None:
        """Make a call in the pool of that name, which has `threads` threads. At most `threads` calls run at once."""

    def close(self) -> None:
        """Cancel the coroutines and abandon the threads that still run."""


class NoBackground:
    """A Background for engines whose bolts all work in the step."""

    def run_coroutine(self, name: str, coroutine: Coroutine[Any, Any, object], done: Done) -> Callable[[], None]:
        coroutine.close()
        raise LookupError(f"{name!r} is asynchronous: give the executor a background that drives coroutines")

    def run_in_thread(self, pool: str, threads: int, call: Callable[[], object], done: Done) -> None:
        raise LookupError(f"{pool!r} works in threads: give the executor a background that has threads")

    def close(self) -> None:
        pass


class Execution:
    """Work on some tuples that outlasts a step.

    `calls` are the emits, acks and fails made in a thread, for the engine's thread to apply when the work has ended.
    """

    __slots__ = ("tuples", "began_ms", "in_thread", "calls", "cancel", "ended", "warned")

    def __init__(self, tuples: Sequence[Tuple], began_ms: int, in_thread: bool) -> None:
        self.tuples = tuples
        self.began_ms = began_ms
        self.in_thread = in_thread
        self.calls: list[Callable[[], object]] = []
        self.cancel: Callable[[], None] | None = None
        self.ended = False
        self.warned = False


# The execution of the running code. Each coroutine and each call in a thread has its own context.
EXECUTION: ContextVar[Execution | None] = ContextVar("execution", default=None)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a program that ends with SystemExit, KeyboardInterrupt or any other exception."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = error.code if isinstance(error, SystemExit) else 1
    return code if isinstance(code, int) else 0 if code is None else 1


def mode_of(bolt: Bolt) -> Mode:
    """Return where a bolt's work runs."""
    if bolt.threads:
        return Mode.THREAD
    return Mode.COROUTINE if iscoroutinefunction(getattr(bolt, bolt.work_method)) else Mode.STEP


def method_fault(component: Component) -> str | None:
    """Return the fault of a component's methods and the correction, or None if the engine can call them all."""
    work = component.work_method if isinstance(component, Bolt) else None
    if isinstance(component, Bolt) and type(component).execute is Bolt.execute and hasattr(component, "process"):
        return "it has a method process, as in storm.py and streamparse, and no execute: call the method execute"
    if isinstance(component, Spout) and not isinstance(component, EngineSpout):
        for name in ENGINE_METHODS:
            if hasattr(type(component), name):
                return f"the engine calls {name} only on a spout.engine_spout.EngineSpout: derive it from that class"
    for name in CALLED_METHODS:
        method = getattr(component, name, None)
        if isgeneratorfunction(method) or isasyncgenfunction(method):
            return f"{name} is a generator function, which the engine would never run: call self.emit instead of yield"
        if iscoroutinefunction(method):
            if work is None:
                return f"{name} is async, and spouts are not: start requests in poll, and process answers there"
            if name != work:
                return f"{name} is async: of this bolt's methods, only {work} may be"
            if isinstance(component, Bolt) and component.threads:
                return f"{name} is async and `threads` is {component.threads}: choose one of the two"
    return _limit_fault(component) if isinstance(component, Bolt) else None


def _limit_fault(bolt: Bolt) -> str | None:
    if bolt.threads < 0:
        return f"threads is {bolt.threads}: give the number of executes at once, or 0 for none in threads"
    if bolt.max_concurrent is not None and bolt.max_concurrent < 1:
        return f"max_concurrent is {bolt.max_concurrent}: give at least 1, or None for the setting's value"
    return None


def result_fault(work: Callable[[Any], object], result: object) -> TypeError | None:
    """Return an error if a bolt's method returned work that nothing would run, such as a generator; otherwise None."""
    method = getattr(work, "__name__", "execute")
    if hasattr(result, "__await__") or hasattr(result, "addCallback"):
        return TypeError(
            f"{method} returned a {type(result).__name__}, which the engine does not wait for: make it `async def`"
        )
    if hasattr(result, "__next__") or hasattr(result, "__anext__"):
        return TypeError(
            f"{method} returned a {type(result).__name__}, which the engine would never run: call self.emit instead"
        )
    return None
