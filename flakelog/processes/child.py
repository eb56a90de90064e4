"""SHELL (the reactor, inherited descriptors): the child's side of a parent of brokers.

The reactor's timer sends the beats, so that a child whose reactor hangs sends none. The pipe from the parent ends when
the parent does, also by SIGKILL and on every system; then the child stops.
"""

import os
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any

from twisted.internet.task import LoopingCall

from flakelog.processes.messages import BEAT, BEAT_MS, Inherited, Ready, ready_message, take_inherited


def inherited_from(environment: MutableMapping[str, str]) -> Inherited | None:
    """Return what this process inherits from a parent; None if it has no such parent.

    The descriptors are taken out of the environment, and programs that this process starts do not inherit them.
    """
    inherited = take_inherited(environment)
    if inherited is not None:
        for descriptor in (inherited.report, inherited.parent, *inherited.sockets.values()):
            os.set_inheritable(descriptor, False)
    return inherited


class Child:
    """The pipes between a child and its parent. `parent_ended` is called once, in the reactor."""

    def __init__(self, inherited: Inherited, reactor: Any, parent_ended: Callable[[], None]) -> None:
        self._inherited = inherited
        self._reactor = reactor
        self._parent_ended = parent_ended
        self._beats = LoopingCall(self._send, BEAT)
        self._beats.clock = reactor
        self._watched = False
        os.set_blocking(inherited.report, False)
        os.set_blocking(inherited.parent, False)

    def begin(self) -> None:
        """Send beats from now on, and watch the parent."""
        self._watched = True
        self._reactor.addReader(self)
        self._beats.start(BEAT_MS / 1_000)

    def ready(self, ready: Ready) -> None:
        """Tell the parent that this child serves."""
        self._send(ready_message(ready))

    def end(self) -> None:
        """Send no more beats, and watch the parent no more."""
        if self._beats.running:
            self._beats.stop()
        if self._watched:
            self._watched = False
            self._reactor.removeReader(self)

    def _send(self, message: bytes) -> None:
        # A stopped parent does not read, until the pipe is full: it needs no more beats. An ended one is noticed below.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._inherited.report, message)

    # --- Twisted's reader ----------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._inherited.parent

    def logPrefix(self) -> str:
        return "the parent"

    def doRead(self) -> None:
        with suppress(BlockingIOError):
            if not os.read(self._inherited.parent, 1):
                self.connectionLost(None)

    def connectionLost(self, reason: object) -> None:
        """Called by the reactor at the end of the pipe, or by doRead."""
        if self._watched:
            self.end()
            self._parent_ended()
