"""The HTTP site of the mirrors of a process: health and metrics."""

from collections.abc import Mapping
from typing import Any

from broker.client.mirror.figures import RUNNING, MirrorFigures
from flakelog import figures_site
from flakelog.config import ServerConfig
from flakelog.mirror_figures import Take, registry_of
from idgen.http import SmallSite
from idgen.http_hosts import OwnHosts


def health(mirrors: Mapping[str, MirrorFigures]) -> tuple[bool, Mapping[str, Any]]:
    """Return whether all is well, and the details. It is not while a topic is stopped."""
    problems = [
        f"{source}: topic {topic} is stopped: {reason}"
        for source, figures in mirrors.items()
        for topic, reason in sorted(figures.stopped.items())
    ]
    lags = [figures.lag for figures in mirrors.values() if figures.lag is not None]
    return not problems, {
        "healthy": not problems,
        "states": _states(mirrors),
        "problems": problems,
        "lag_messages": sum(lags) if lags else None,
    }


def ready(mirrors: Mapping[str, MirrorFigures]) -> tuple[bool, Mapping[str, Any]]:
    """Return whether all mirrors run, and the state of each."""
    fine = all(figures.state == RUNNING for figures in mirrors.values())
    return fine, {"ready": fine, "states": _states(mirrors)}


def _states(mirrors: Mapping[str, MirrorFigures]) -> dict[str, str]:
    return {source: figures.state for source, figures in mirrors.items()}


def make_site(take: Take, hosts: OwnHosts, config: ServerConfig) -> SmallSite:
    """Return the HTTP site of the mirrors; `take` returns their figures."""
    return figures_site.make_site(lambda: health(take()), lambda: ready(take()), registry_of(take), hosts, config)
