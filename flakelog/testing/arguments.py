"""The arguments of `flakelog.testing.Broker`, checked before a process begins. Errors name what would be right."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from broker.client.checked_arguments import check_number

Topics: TypeAlias = Mapping[str, int | Mapping[str, Any]]
"""The partitions of each topic, or {"partitions": 3, "config": {"cleanup.policy": "compact"}}."""

NODES_MAX = 16
_PARTITIONS_MAX = 100_000
_SECONDS_MAX = 86_400


def check_broker(nodes: object, start_seconds: object) -> None:
    """Raise ValueError unless there are 1 to NODES_MAX nodes, and more than 0 seconds for a start."""
    check_number("nodes", nodes, 1, NODES_MAX)
    is_number = isinstance(start_seconds, (int, float)) and not isinstance(start_seconds, bool)
    if not is_number or not 0 < start_seconds <= _SECONDS_MAX:  # type: ignore[operator]
        raise ValueError(f"start_seconds={start_seconds!r}: give a number above 0, at most {_SECONDS_MAX}")


def parsed_topics(topics: object) -> dict[str, tuple[int | None, dict[str, str]]]:
    """Return each topic's partitions, None for the broker's default, and its settings. Raise ValueError."""
    if topics is None:
        return {}
    if not isinstance(topics, Mapping):
        raise ValueError(f"topics={topics!r}: give the partitions of each topic, such as {{'orders': 3}}")
    return {name: _parsed_topic(name, wanted) for name, wanted in topics.items()}


def _parsed_topic(name: object, wanted: object) -> tuple[int | None, dict[str, str]]:
    if not isinstance(name, str):
        raise ValueError(f"topics: {name!r} is no name of a topic: give text")
    if not isinstance(wanted, Mapping):
        return check_number(f"topics: partitions of {name}", wanted, 1, _PARTITIONS_MAX), {}
    unknown = wanted.keys() - {"partitions", "config"}
    if unknown:
        raise ValueError(f"topic {name}: no {', '.join(sorted(map(str, unknown)))}; give partitions and config")
    partitions = wanted.get("partitions")
    if partitions is not None:
        partitions = check_number(f"topics: partitions of {name}", partitions, 1, _PARTITIONS_MAX)
    return partitions, parsed_settings(f"topics: config of {name}", wanted.get("config"))


def parsed_settings(argument: str, settings: object) -> dict[str, str]:
    """Return settings with their values as a properties file has them. Raise ValueError if they are no mapping."""
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise ValueError(f"{argument}={settings!r}: give values by name, such as {{'log.retention.ms': 1000}}")
    return {name: _text(value) for name, value in settings.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
