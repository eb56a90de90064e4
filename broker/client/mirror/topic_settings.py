"""The settings of a source's topic that its copy gets: those that MirrorMaker 2 copies.

MirrorMaker 2 copies what was set for the topic, or for brokers by a request (KIP-226), without the properties that
`DefaultConfigPropertyFilter` excludes, because they belong to a cluster (connect/mirror in Kafka's sources). It copies
them again every ten minutes: a setting that is the default at the source has the target's default then.
"""

from collections.abc import Iterable

from broker.client.config_admin import ConfigValue

OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, DEFAULT = 1, 2, 3, 5  # KIP-226's sources in DescribeConfigs
COPIED = (OF_TOPIC, OF_BROKER, OF_ALL_BROKERS)

EXCLUDED = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "unclean.leader.election.enable",
        "min.insync.replicas",
    }
)


def settings_to_copy(settings: Iterable[ConfigValue]) -> dict[str, str]:
    """Return the settings with which the copy of a topic is made."""
    return {
        setting.name: setting.value
        for setting in settings
        if setting.source in COPIED
        and setting.value is not None
        and not setting.read_only
        and setting.name not in EXCLUDED
    }


def settings_to_change(source: Iterable[ConfigValue], target: Iterable[ConfigValue]) -> dict[str, str | None]:
    """Return the settings of a copy that differ from its source's; the value None restores the target's default."""
    at_source = list(source)
    own = {setting.name: setting.value for setting in target if setting.source == OF_TOPIC}
    changes: dict[str, str | None] = {
        name: value for name, value in settings_to_copy(at_source).items() if own.get(name) != value
    }
    defaults = {setting.name for setting in at_source if setting.source == DEFAULT} - EXCLUDED
    return changes | dict.fromkeys(sorted(own.keys() & defaults))
