"""The settings of a topic or a broker: requests over a `ClientCore`, for a shell to run (KIP-133, KIP-339).

They lie here, and not in flakelog/operations/ with the other requests of administrators, because spouts and mirrors use
them too.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.client.api_versions import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from broker.client.checked_arguments import check_names, check_settings
from broker.client.core import Address, ClientCore, Steps
from broker.client.errors import BrokerError

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


class Resource(NamedTuple):
    """A resource with settings: a topic by name, a broker by its node id, or all brokers by the empty name."""

    type: int
    name: str

    @property
    def called(self) -> str:
        if self.type == TOPIC:
            return f"topic {self.name}"
        return f"broker {self.name}" if self.name else "all brokers"


class ConfigValue(NamedTuple):
    """A setting as reported by the broker. `source` is a key of `flakelog.operations.configs.SOURCES`."""

    name: str
    value: str | None
    source: int
    read_only: bool
    documentation: str | None


def describe_configs(core: ClientCore, resource: Resource, names: Iterable[str] = ()) -> Steps[list[ConfigValue]]:
    """Return the settings in effect, sorted by name: those with these names, or all. Raise BrokerError."""
    keys = check_names("names", names) or None
    address = yield from node_of(core, resource)
    named = {"resource_type": resource.type, "resource_name": resource.name, "configuration_keys": keys}
    fields = {"resources": [named], "include_synonyms": False, "include_documentation": True}
    response = yield from core.ask(address, DESCRIBE_CONFIGS, fields)
    result = response.results[0]
    if result.error_code:
        raise BrokerError(int(result.error_code), resource.called, result.error_message)
    return sorted(
        ConfigValue(config.name, config.value, config.config_source, config.read_only, config.documentation)
        for config in result.configs
    )


def alter_configs(
    core: ClientCore, resource: Resource, values: Mapping[str, str | None], *, validate_only: bool = False
) -> Steps[None]:
    """Change settings, or only ask the broker whether it would. The value None restores a setting's default.

    If one is refused, none is changed. Raise BrokerError, and TypeError for a value that is not text.
    """
    check_settings(values)
    address = yield from node_of(core, resource)
    configs = [
        {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
        for name, value in values.items()
    ]
    changed = {"resource_type": resource.type, "resource_name": resource.name, "configs": configs}
    fields = {"resources": [changed], "validate_only": validate_only}
    response = yield from core.ask(address, INCREMENTAL_ALTER_CONFIGS, fields)
    result = response.responses[0]
    if result.error_code:
        raise BrokerError(int(result.error_code), resource.called, result.error_message)


def node_of(core: ClientCore, resource: Resource) -> Steps[Address]:
    """Return the node to ask: a broker for its settings, the controller for all others."""
    controller = yield from core.controller()
    if resource.type != BROKER or not resource.name.isdecimal():
        return controller
    nodes = yield from core.nodes()
    return nodes.get(int(resource.name), controller)
