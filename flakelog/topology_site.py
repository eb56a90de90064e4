"""The HTTP site of a topology: health and metrics."""

from collections.abc import Callable, Mapping
from typing import Any

from flakelog import figures_site
from flakelog.config import ServerConfig
from flakelog.topology_figures import registry_of
from idgen.http import SmallSite
from idgen.http_hosts import OwnHosts
from spout.figures.model import Snapshot

PHASES_READ = ("running", "closing")


def health(snapshot: Snapshot) -> tuple[bool, Mapping[str, Any]]:
    """Return whether all is well, and the details.

    It is not while a partition has an error, stands still or is not read, or in an outage.
    """
    problems = snapshot.problems
    return not problems, {
        "healthy": not problems,
        "topology": snapshot.topology,
        "state": snapshot.state,
        "problems": problems,
        "lag_messages": snapshot.lag("lag"),
        "lag_bytes": snapshot.lag("lag_bytes"),
        "lag_ms": snapshot.lag("lag_ms"),
    }


def ready(snapshot: Snapshot) -> tuple[bool, Mapping[str, Any]]:
    """Return whether the topology runs and reads all its partitions, and which ones it does not read yet."""
    not_read = [
        f"{partition.topic}-{partition.partition}"
        for partition in snapshot.partitions
        if partition.phase not in PHASES_READ
    ]
    fine = snapshot.state == "running" and not not_read
    return fine, {"ready": fine, "state": snapshot.state, "partitions_not_read": not_read}


def make_site(take: Callable[[], Snapshot], hosts: OwnHosts, config: ServerConfig) -> SmallSite:
    """Return the HTTP site of a topology; `take` returns its figures."""
    return figures_site.make_site(lambda: health(take()), lambda: ready(take()), registry_of(take), hosts, config)
