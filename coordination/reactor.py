"""Protocols for the parts of Twisted that our shells use, so that mypy needs no plugin for zope's interfaces."""

from collections.abc import Callable
from typing import Protocol


class DelayedCall(Protocol):
    """A scheduled call, as callLater returns it."""

    def active(self) -> bool: ...

    def cancel(self) -> None: ...


class Reactor(Protocol):
    """Timers, and calls from other threads. twisted.internet.task.Clock has the timers too."""

    def callLater(self, delay: float, callable: Callable[..., object], *args: object) -> DelayedCall:
        """Call `callable` after `delay` seconds."""

    def callFromThread(self, callable: Callable[..., object], *args: object) -> object:
        """Call `callable` in the reactor thread."""


class Transport(Protocol):
    """The transport of a TCP connection."""

    def write(self, data: bytes) -> None: ...

    def getPeer(self) -> object: ...

    def setTcpNoDelay(self, enabled: bool) -> object: ...

    def registerProducer(self, producer: object, streaming: bool) -> object: ...

    def unregisterProducer(self) -> object: ...

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...

    def loseConnection(self) -> None: ...

    def abortConnection(self) -> None: ...
