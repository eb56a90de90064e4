"""Procedures of a cluster, carried out on a coordinator in memory, with faults at any operation."""

from broker.cluster.driver import Driver
from broker.now import Now
from coordination.memory import MemoryCoordinator
from coordination.port import CoordinationError


class Procedure:
    """A procedure in progress with a coordinator in memory."""

    def __init__(self, coordinator, procedure, now_ms=0):
        self.coordinator, self.driver = coordinator, Driver()
        self.value = self.error = None
        self.now_ms = now_ms
        self.driver.begin(procedure, self._ended, Now(now_ms, 0))

    def _ended(self, value, error, now):
        self.value, self.error = value, error

    def run(self, now_ms=0):
        """Carry out operations until the procedure ends or pauses."""
        self.driver.tick(Now(now_ms, 0))
        while operations := self.driver.take_operations():
            for operation in operations:
                try:
                    outcome = self.coordinator.execute(operation)
                except CoordinationError as error:
                    outcome = error
                self.driver.completed(operation, outcome, Now(now_ms, 0))
        return self.value


class FaultyCoordinator(MemoryCoordinator):
    """A session in which one operation, counted from 1, meets a fault: a loss, or the death of the process.

    `before` is called before each operation with its number.
    """

    def __init__(self, ensemble, number=0, fault="lose_answers", before=lambda number: None):
        super().__init__(ensemble)
        self.number, self.fault, self.before = number, fault, before
        self.count = 0

    def execute(self, operation):
        self.count += 1
        self.before(self.count)
        if self.count != self.number:
            return super().execute(operation)
        if self.fault == "crash_before":
            raise Crashed
        if self.fault == "crash_after":
            super().execute(operation)
            raise Crashed
        setattr(self, self.fault, 1)
        return super().execute(operation)


class Crashed(Exception):
    """The process is killed at this operation."""


def run(coordinator, procedure):
    """Carry out a procedure to its end, pauses included; return its value, or raise its error."""
    progress = Procedure(coordinator, procedure)
    now_ms = 0
    while progress.driver.is_running:
        progress.run(now_ms)
        now_ms = progress.driver.next_deadline_ms() or now_ms
    if progress.error is not None:
        raise progress.error
    return progress.value
