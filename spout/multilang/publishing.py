"""SHELL (Twisted, the clock): publishes the figures of a task inside Storm, as the embedded engine does for a run."""

import time
from collections.abc import Callable

from twisted.internet.base import ReactorBase

from spout.figures.model import Snapshot
from spout.figures.publisher import FiguresPublisher
from spout.multilang.bolt_task import BoltTask
from spout.multilang.context import Place
from spout.multilang.figures import servers_of, task_snapshot
from spout.multilang.spout_task import SpoutTask


class Publishing:
    """The publishers of a task's figures, one for each cluster that the topology's spouts read."""

    def __init__(self, place: Place, task: SpoutTask | BoltTask, reactor: ReactorBase) -> None:
        self._place = place
        self._task = task
        self._started_ms = _now_ms()
        self._state = "running"
        servers = servers_of(place.plan) if place.topology_config.topology_publish else []
        self._publishers = [FiguresPublisher(each, self._take, reactor) for each in servers]
        self._stopping = 0

    @property
    def idle(self) -> bool:
        """Return True if, after `stop`, no tombstone is on its way any longer."""
        return not self._stopping

    def start(self) -> None:
        """Publish now and every two seconds."""
        for each in self._publishers:
            each.start()

    def stop(self, wake: Callable[[], None]) -> None:
        """Take the documents back; `wake` is called whenever that is done at one cluster, or takes too long."""

        def stopped(_: object) -> None:
            self._stopping -= 1
            wake()

        self._state = "finishing"
        self._stopping = len(self._publishers)
        for each in self._publishers:
            each.stop().addBoth(stopped)

    def abandon(self) -> None:
        """Close at once: the last documents expire."""
        for each in self._publishers:
            each.abandon()

    def _take(self) -> Snapshot:
        times = {"started_ms": self._started_ms, "at_ms": _now_ms(), "now_ms": time.monotonic_ns() // 1_000_000}
        return task_snapshot(self._place, self._task, state=self._state, **times)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
