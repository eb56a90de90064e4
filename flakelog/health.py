"""The answers of /health and /health/ready: whether all is well, and which parts are not."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from broker.metadata.image import NO_CONTROLLER
from broker.metadata.topic import NO_LEADER
from broker.services.replica_states import ReplicaStates, offline_partitions, replica_states
from flakelog.figures import MeasuredServer
from flakelog.settings import Settings


class WatchedServer(MeasuredServer, Protocol):
    """The parts of a server process that its health depends on."""

    settings: Settings
    addresses: dict[str, str]

    @property
    def serving(self) -> bool: ...

    @property
    def stopped(self) -> bool: ...


def health(server: WatchedServer) -> tuple[bool, Mapping[str, Any]]:
    """Return whether all is well, and the details for people."""
    offline = _offline(server)
    waits = _clock_waits(server)
    problem = next((claim.problem for claim in server.claims if claim.problem is not None), None)
    full = _full_disk(server)
    tls_refused = server.tls.refusals()
    replicas = None if server.engine is None else replica_states(server.engine.services)
    member = None if server.engine is None else server.engine.services.member
    fine = not offline and problem is None and not waits and full is None
    fine = fine and (member is None or not (member.own_problems or member.controller.unreached))
    healthy = fine and not tls_refused and (replicas is None or replicas.are_well)
    return healthy, {
        "healthy": healthy,
        "addresses": server.addresses,
        "ids_unique_in": server.scope,
        "ids_problem": problem,
        "clock_skew_ms": server.clock.skew_ms,
        "clock_offset_ms": server.peers.offset_ms if server.peers is not None else None,
        "partitions_offline": offline,
        "partitions_waiting_for_clock": waits,
        "disk_full": full,
        "tls_refused": tls_refused,
        "cluster": _cluster(server, replicas),
    }


def _cluster(server: WatchedServer, replicas: ReplicaStates | None) -> Mapping[str, Any] | None:
    """Return the cluster as this broker knows it, None on a server alone.

    Offline partitions of other brokers do not make this server unhealthy, because their own brokers report them.
    """
    if server.engine is None or server.engine.services.member is None:
        return None
    services, member = server.engine.services, server.engine.services.member
    image, listener = services.metadata, services.inter_broker_listener
    leaders = Counter(partition.leader for topic in image.topics() for partition in topic.partitions)
    danger = None
    if listener is not None:
        has_authorizer = services.authorizer is not None
        danger = server.settings.server.danger_of_inter_broker(listener, has_authorizer=has_authorizer)
    cluster = {
        "id": image.cluster_id,
        "controller": image.controller_id if image.controller_id != NO_CONTROLLER else None,
        "live_brokers": sorted(image.live_ids),
        "partitions_led": leaders[services.node.id],
        "partitions_offline": leaders[NO_LEADER],
        "problems": member.problems,
        "danger": danger,
    }
    return cluster if replicas is None else cluster | {"replication": _replication(replicas)}


def _replication(replicas: ReplicaStates) -> Mapping[str, Any]:
    """Return the names of partitions with several copies. The last two are notes, and no failures."""
    return {
        "under_min_isr": replicas.under_min_isr,
        "offline": replicas.offline,
        "failed": replicas.failed,
        "stalled": replicas.stalled,
        "under_replicated": replicas.under_replicated,
        "coordinators_with_one_copy": replicas.one_copy,
    }


def ready(server: WatchedServer) -> tuple[bool, Mapping[str, Any]]:
    """Return whether this server should receive work, and the details.

    It should not once it was asked to stop, while it can issue no ids, while partitions refuse messages because their
    last ids are ahead of its clock, or while its disk is full or read-only. An offline partition is listed but does not
    count, because the server serves the others and no other server could serve it. An unreachable registry does not
    count while ids can be issued without it, because otherwise all servers would stop being ready together.
    """
    now_ms = server.clock.now_ms()
    problem = next((why for claim in server.claims if (why := claim.why_no_ids(now_ms)) is not None), None)
    waits = _clock_waits(server)
    full = _full_disk(server)
    is_read_only = server.engine is not None and server.engine.services.logs.disk.read_only is not None
    fine = server.serving and problem is None and not waits and full is None and not is_read_only
    return fine, {
        "ready": fine,
        "stopping": server.stopped,
        "ids_problem": problem,
        "partitions_offline": _offline(server),
        "partitions_waiting_for_clock": waits,
        "disk_full": full,
    }


def _full_disk(server: WatchedServer) -> Mapping[str, int] | None:
    """Return since when the disk is full (Unix ms) and the bytes that are usable, or None while it has space."""
    disk = None if server.engine is None else server.engine.services.logs.disk
    if disk is None or disk.full_since_ms is None:
        return None
    return {"since_ms": disk.full_since_ms, "usable_bytes": disk.usable_bytes or 0}


def _offline(server: WatchedServer) -> Mapping[str, str]:
    return offline_partitions(server.engine.services) if server.engine is not None else {}


def _clock_waits(server: WatchedServer) -> Mapping[str, Mapping[str, int]]:
    """Return the waits of partitions for the clock, in ms, by partition name."""
    if server.engine is None:
        return {}
    waits = server.engine.services.clock_waits.waiting(server.clock.now_ms())
    return {name: wait._asdict() for name, wait in waits.items()}
