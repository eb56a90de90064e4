"""Settings of topics and brokers: describe and alter them."""

from collections.abc import Iterable, Mapping, Sequence

from broker.client import config_admin
from broker.client.api_versions import DESCRIBE_CONFIGS
from broker.client.blocking import Client
from broker.client.config_admin import BROKER, TOPIC, ConfigValue, Resource

SOURCES = {
    1: "topic",
    2: "broker, altered",
    3: "all brokers, altered",
    4: "broker, at its start",
    5: "default",
}
TOPIC_SOURCE, DEFAULT_SOURCE = 1, 5
TOPICS_AT_ONCE = 500  # in a request, so that thousands of topics take a few


def topic_resource(name: str) -> Resource:
    return Resource(TOPIC, name)


def broker_resource(node_id: int | None) -> Resource:
    """Return a broker by its node id, or all brokers."""
    return Resource(BROKER, "" if node_id is None else str(node_id))


def describe_configs(client: Client, resource: Resource, names: Iterable[str] = ()) -> list[ConfigValue]:
    """Return the settings in effect, sorted by name: those with these names, or all."""
    return client.run(config_admin.describe_configs(client.core, resource, names))


def values_of_topics(client: Client, topics: Sequence[str], name: str) -> dict[str, str]:
    """Return one setting of topics, by their names, without topics that do not answer."""
    values: dict[str, str] = {}
    for begin in range(0, len(topics), TOPICS_AT_ONCE):
        resources = [
            {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": (name,)}
            for topic in topics[begin : begin + TOPICS_AT_ONCE]
        ]
        fields = {"resources": resources, "include_synonyms": False, "include_documentation": False}
        answer = client.run(client.core.ask_any(DESCRIBE_CONFIGS, fields))
        for topic in answer.results:
            values.update((str(topic.resource_name), str(config.value)) for config in topic.configs)
    return values


def alter_configs(
    client: Client, resource: Resource, values: Mapping[str, str | None], *, validate_only: bool = False
) -> None:
    """Change settings, or only ask the broker whether it would. The value None restores a setting's default.

    If one is refused, none is changed.
    """
    client.run(config_admin.alter_configs(client.core, resource, values, validate_only=validate_only))
