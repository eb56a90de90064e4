"""A topic to create at the start, in the command line's form: `name`, `name:3`, `name:3:cleanup.policy=compact`."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from broker.now import Now
from broker.services.context import BrokerServices
from broker.services.lower_replication import lowered_properties
from broker.services.topic_changes import create_topic
from broker.settings.config import TopicConfig


class NewTopic(NamedTuple):
    """A topic to create; if `partitions` is None, it gets the broker's `num.partitions`."""

    name: str
    partitions: int | None
    properties: Mapping[str, str]


def parse_topic(text: str) -> NewTopic:
    """Parse a topic; raise ValueError with the correct form.

    A comma before a `name=` begins the next setting; any other comma is part of a value.
    """
    name, _, rest = text.partition(":")
    count, _, settings = rest.partition(":")
    if not name or (count and (not count.isdigit() or int(count) < 1)):
        raise ValueError(f"{text!r} is no topic; give NAME, NAME:PARTITIONS or NAME:PARTITIONS:SETTING=VALUE,...")
    properties = {}
    for setting in filter(None, re.split(r",(?=[a-z.]+=)", settings)):
        key, sign, value = setting.partition("=")
        if not sign:
            raise ValueError(f"{text!r}: {setting!r} is no setting; give SETTING=VALUE")
        properties[key.strip()] = value.strip()
    TopicConfig.check_names(properties)
    return NewTopic(name, int(count) if count else None, properties)


def make(services: BrokerServices, topic: NewTopic, now: Now) -> None:
    """Create the topic unless it exists; raise ApiError or InvalidSetting."""
    existing = services.metadata.topic(topic.name)
    partitions = topic.partitions or services.config.num_partitions
    if existing is None:
        properties = lowered_properties(services, topic.name, topic.properties)
        create_topic(services, topic.name, partitions, properties, now)
    elif topic.partitions not in (None, len(existing.partitions)):
        services.report(f"topic {topic.name} is there, and keeps its {len(existing.partitions)} partitions")
