"""Settings of topologies, their spouts and sinks: given by a file, the environment and the command line.

    --set  over  FLAKELOG_NAME  over  the file  over  the topology's code

An unknown setting is refused by name.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from flakelog.settings import Given, errors_with_origin, read_assignments, read_file, server_settings, variable_of
from idgen.settings import InvalidSetting, Setting, from_properties, parse_setting, settings_of
from partition_manager.config import SpoutConfig
from spout.config import TopologyConfig
from spout.multilang.config import StormConfig
from spout.sink_config import SinkConfig

TOPOLOGY_CONFIGS = (TopologyConfig, SpoutConfig, SinkConfig, StormConfig)


@lru_cache
def topology_settings() -> dict[str, Setting]:
    """Return all settings of topologies, their spouts and sinks, and their processes inside Storm, by name."""
    return {setting.name: setting for config in TOPOLOGY_CONFIGS for setting in settings_of(config)}


def collect_topology(
    file: Path | None, assignments: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the given settings of a topology and its spouts, as texts by name, which are valid alone and together.

    Raise InvalidSetting, which says where the setting was given, InvalidFile or OSError.
    """
    variables = {variable_of(name): name for name in topology_settings()}
    in_environment = [Given(variables[v], text.strip(), v) for v, text in (environment or {}).items() if v in variables]
    given: dict[str, Given] = {}
    for layer in (read_file(file), in_environment, read_assignments(assignments)):
        for setting in layer:
            with errors_with_origin({setting.name: setting}):
                _check(setting)
            given[setting.name] = setting
    texts = {name: setting.text for name, setting in given.items()}
    with errors_with_origin(given):
        for config in TOPOLOGY_CONFIGS:
            from_properties(config, texts)
    return texts


def _check(given: Given) -> None:
    """Raise InvalidSetting unless this is a setting of topologies whose value is valid on its own."""
    setting = topology_settings().get(given.name)
    if setting is None:
        raise InvalidSetting(given.name, given.text, _no_such_setting(given.name))
    value = parse_setting(setting, given.text)
    wanted = setting.check(value) if setting.check and value is not None else None
    if wanted:
        raise InvalidSetting(given.name, given.text, wanted)


def _no_such_setting(name: str) -> str:
    if name in server_settings():
        return "it is a setting of `flakelog server`, not of a topology"
    near = get_close_matches(name, topology_settings(), 1)
    wanted = f"did you mean {near[0]}?" if near else "`flakelog settings topology spout` lists those of topologies"
    return f"there is no such setting; {wanted}"
