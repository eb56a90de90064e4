"""Storm's configuration of a topology, from Flakelog's settings of topologies."""

from collections.abc import Mapping
from typing import Any

from idgen.settings import from_properties, parse_setting, settings_of
from spout.config import TopologyConfig


def storm_config(texts: Mapping[str, str], workers: int) -> dict[str, Any]:
    """Return the configuration for given settings, which are texts by name.

    Storm has no limit on tuples in flight, so ours is always in it, and the message timeout with it. The processes of
    the components get the configuration at their start: they find the settings of spouts and sinks there.
    """
    ours = from_properties(TopologyConfig, texts)
    config: dict[str, Any] = {
        "topology.workers": workers,
        "topology.max.spout.pending": ours.topology_max_spout_pending,
        "topology.message.timeout.secs": ours.topology_message_timeout_secs,
    }
    settings = {setting.name: setting for setting in settings_of(TopologyConfig)}
    for name, text in texts.items():
        config[name] = parse_setting(settings[name], text) if name in settings else text
    return config
