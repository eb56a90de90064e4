"""What our shells use of Twisted, as protocols: mypy reads these without a plugin for zope's interfaces."""

from collections.abc import Callable
from typing import Protocol


class DelayedCall(Protocol):
    """What callLater returns."""

    def active(self) -> bool: ...

    def cancel(self) -> None: ...


class Reactor(Protocol):
    """Timers, and the way in for other threads. twisted.internet.task.Clock has the timers too."""

    def callLater(self, delay: float, callable: Callable[..., object], *args: object) -> DelayedCall:
        """`delay` in seconds."""

    def callFromThread(self, callable: Callable[..., object], *args: object) -> object:
        """Have `callable` called in the reactor's thread."""


class Transport(Protocol):
    """A TCP connection's."""

    def write(self, data: bytes) -> None: ...

    def getPeer(self) -> object: ...

    def setTcpNoDelay(self, enabled: bool) -> object: ...

    def registerProducer(self, producer: object, streaming: bool) -> object: ...

    def unregisterProducer(self) -> object: ...

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...

    def loseConnection(self) -> None: ...

    def abortConnection(self) -> None: ...
