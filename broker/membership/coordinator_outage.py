"""An outage of the coordinator of a cluster, in words for people."""

from collections.abc import Callable
from datetime import UTC, datetime

from broker.now import Now
from coordination.port import Event, SessionEnded, SessionEstablished, SessionSuspended


class CoordinatorOutage:
    """Follows the events of a session. `name` names the coordinator in messages, as `ZooKeeper at a:2181`."""

    def __init__(self, name: str, report: Callable[[str], None]) -> None:
        self._name = name
        self._report = report
        self._since_ms: int | None = None
        """When the connection was lost, in Unix milliseconds; None while it is there."""

    @property
    def problem(self) -> str | None:
        """Return since when an outage lasts, and what does not change until its end; None without an outage."""
        if self._since_ms is None:
            return None
        since = datetime.fromtimestamp(self._since_ms / 1000, UTC)
        return (
            f"{self._name} does not answer since {since:%Y-%m-%d %H:%M:%S} UTC: reads and writes go on, but topics and "
            "settings cannot be changed, and partitions get no other leaders"
        )

    def notified(self, event: Event, now: Now) -> None:
        """Take an event of the session."""
        match event:
            case SessionSuspended() | SessionEnded() if self._since_ms is None:
                self._since_ms = now.wall_ms
            case SessionEstablished() if self._since_ms is not None:
                self._since_ms = None
                self._report(f"{self._name} answers again")
