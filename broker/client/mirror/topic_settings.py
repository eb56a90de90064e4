"""The settings of a source's topic that its copy gets: those that MirrorMaker 2 copies.

MirrorMaker 2 copies what was set for the topic itself, without the properties that `DefaultConfigPropertyFilter`
excludes, because they belong to a cluster (connect/mirror in Kafka's sources). The defaults are the target's own.
"""

from collections.abc import Iterable

from broker.client.config_admin import ConfigValue

TOPIC_SETTING = 1  # DYNAMIC_TOPIC_CONFIG of DescribeConfigs: set for this topic

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
        if setting.source == TOPIC_SETTING and setting.value is not None and setting.name not in EXCLUDED
    }
