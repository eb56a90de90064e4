"""What /health and /health/ready answer: whether all is well, and which parts are not."""

from collections.abc import Mapping
from typing import Any, Protocol

from flakelog.figures import MeasuredServer


class WatchedServer(MeasuredServer, Protocol):
    """The parts of a server process whose health is told."""

    addresses: dict[str, str]

    @property
    def serving(self) -> bool: ...

    @property
    def stopped(self) -> bool: ...


def health(server: WatchedServer) -> tuple[bool, Mapping[str, Any]]:
    """Return whether all is well, and the details for people."""
    offline = _offline(server)
    waits = _clock_waits(server)
    problem = next((each.problem for each in server.claims if each.problem is not None), None)
    healthy = not offline and problem is None and not waits
    return healthy, {
        "healthy": healthy,
        "addresses": server.addresses,
        "ids_unique_in": server.scope,
        "ids_problem": problem,
        "clock_skew_ms": server.clock.skew_ms,
        "clock_offset_ms": server.peers.offset_ms if server.peers is not None else None,
        "partitions_offline": offline,
        "partitions_waiting_for_clock": waits,
    }


def ready(server: WatchedServer) -> tuple[bool, Mapping[str, Any]]:
    """Return whether this server should receive work, and the details.

    It should not once it was asked to stop, while it can issue no ids, or while partitions refuse messages because
    their last ids are ahead of its clock. An offline partition is listed but does not count, because the server serves
    the others and no other server could serve it. An unreachable registry does not count while ids can be issued
    without it, because otherwise all servers would stop being ready together.
    """
    now_ms = server.clock.now_ms()
    problem = next((why for each in server.claims if (why := each.why_no_ids(now_ms)) is not None), None)
    waits = _clock_waits(server)
    fine = server.serving and problem is None and not waits
    return fine, {
        "ready": fine,
        "stopping": server.stopped,
        "ids_problem": problem,
        "partitions_offline": _offline(server),
        "partitions_waiting_for_clock": waits,
    }


def _offline(server: WatchedServer) -> Mapping[str, str]:
    return server.engine.services.logs.offline if server.engine is not None else {}


def _clock_waits(server: WatchedServer) -> Mapping[str, Mapping[str, int]]:
    """Return the waits of partitions for the clock, in ms, by partition name."""
    if server.engine is None:
        return {}
    waits = server.engine.services.clock_waits.waiting(server.clock.now_ms())
    return {name: wait._asdict() for name, wait in waits.items()}
