"""An outage of the coordinator of a cluster, in words for people."""

from collections.abc import Callable
from datetime import UTC, datetime

from broker.now import Now
from coordination.port import Event, SessionEnded, SessionEstablished, SessionSuspended

LOOK_AGAIN_MS = 1_000
"""The pause between two looks at the ids of a broker whose ids have ended: it may have others by then."""


class CoordinatorOutage:
    """Follows the events of a session. `name` names the coordinator in messages, as `ZooKeeper at a:2181`.

    Messages need ids, and a broker issues only ids that the registry of worker numbers has confirmed to it. If the
    coordinator keeps that registry too, an outage that lasts longer than the confirmed ids stops writes and commits.
    """

    def __init__(self, name: str, report: Callable[[str], None]) -> None:
        self._name = name
        self._report = report
        self.ids_end_ms: Callable[[], int | None] = lambda: None
        """Returns when the confirmed ids end, in Unix milliseconds; None if the coordinator does not bound them."""
        self.disconnects = 0
        """How often the connection was lost."""
        self.expirations = 0
        """How often a session has ended."""
        self._since_ms: int | None = None
        """When the connection was lost, in Unix milliseconds; None while it is there."""
        self._ids_ended_ms: int | None = None
        """When the ids ended, once they have."""
        self._deadline_ms: int | None = None

    @property
    def problem(self) -> str | None:
        """Return since when an outage lasts, and what does not work until its end; None without an outage."""
        if self._since_ms is None:
            return None
        outage = f"{self._name} does not answer since {_utc(self._since_ms)}, or refuses this broker's session"
        frozen = "topics and settings cannot be changed, and partitions get no other leaders"
        if self._ids_ended_ms is not None:
            return (
                f"{outage}: writes and commits are refused since {_utc(self._ids_ended_ms)}, because the ids of this "
                f"broker have ended (flakelog.ids.lead.ms); {frozen}. Reads go on"
            )
        ids_end_ms = self.ids_end_ms()
        if ids_end_ms is None:
            return f"{outage}: reads and writes go on, but {frozen}"
        return (
            f"{outage}: reads go on, and writes and commits until {_utc(ids_end_ms)}, when the ids of this broker end "
            f"(flakelog.ids.lead.ms), but {frozen}"
        )

    @property
    def is_connected(self) -> bool:
        """Return False while an outage lasts."""
        return self._since_ms is None

    def notified(self, event: Event, now: Now) -> None:
        """Take an event of the session."""
        match event:
            case SessionSuspended() | SessionEnded() if self._since_ms is None:
                self._since_ms = now.wall_ms
                self.disconnects += 1
            case SessionEstablished() if self._since_ms is not None:
                self._since_ms = self._ids_ended_ms = None
                self._report(f"{self._name} answers again")
        if isinstance(event, SessionEnded):
            self.expirations += 1
        self.tick(now)

    def tick(self, now: Now) -> None:
        """Look whether the ids have ended."""
        ids_end_ms = None if self._since_ms is None else self.ids_end_ms()
        has_ended = ids_end_ms is not None and ids_end_ms <= now.wall_ms
        self._ids_ended_ms = ids_end_ms if has_ended else None
        if ids_end_ms is None:
            self._deadline_ms = None
        else:
            self._deadline_ms = now.ms + (LOOK_AGAIN_MS if has_ended else ids_end_ms - now.wall_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None without a deadline."""
        return self._deadline_ms


def _utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
