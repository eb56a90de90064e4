"""Tells the controller that logs of this broker went offline: by a node, as Kafka's brokers do for a failed disk.

The controller then orders all replicas of this broker anew. The answers name those that are offline, and others take
over. The logs that go offline while a node is written share the next one.
"""

from broker.cluster.documents import LOG_DIR_EVENTS, encode_log_dir_event
from broker.cluster.driver import Driver
from broker.cluster.procedure import Outcome, Procedure
from broker.now import Now
from broker.waiting.pending import Pending
from coordination.port import ConnectionLost, Create, Operation


class DiskNotices:
    """See the module. A notice ends with its session, because the controller orders all replicas of the next life."""

    def __init__(self, broker_id: int, pending: Pending) -> None:
        self._broker_id = broker_id
        self._driver = Driver(pending)
        self._is_due = False

    def notify(self, now: Now) -> None:
        """Write a node, because a log went offline."""
        self._is_due = True
        self._begin(now)

    def cancel(self) -> None:
        """Write no node any more, because the session has ended."""
        self._is_due = False
        self._driver.cancel()

    def _begin(self, now: Now) -> None:
        if self._is_due and not self._driver.is_running:
            self._is_due = False
            self._driver.begin(_write(self._broker_id), lambda value, error, at: self._begin(at), now)

    def take_operations(self) -> list[Operation]:
        return self._driver.take_operations()

    def completed(self, operation: Operation, outcome: Outcome, now: Now) -> None:
        self._driver.completed(operation, outcome, now)

    def tick(self, now: Now) -> None:
        self._driver.tick(now)

    def next_deadline_ms(self) -> int | None:
        return self._driver.next_deadline_ms()


def _write(broker_id: int) -> Procedure[None]:
    """Create the node, and create another one if the answer was lost: the controller may look twice."""
    create = Create(f"{LOG_DIR_EVENTS}/log_dir_event_", encode_log_dir_event(broker_id), sequential=True)
    outcomes = yield (create,)
    while isinstance(outcomes[0], ConnectionLost):
        outcomes = yield (create,)
