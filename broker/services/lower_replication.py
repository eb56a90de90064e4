"""`flakelog.lower.replication`: lowers a request for more copies of a partition than there can be.

A program written for a cluster makes its topics with three replicas, two of which must have a message. A server alone
refuses that, as a Kafka of one node, unless this setting is on. Each lowered value is reported in the broker's log.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from broker.metadata.topic import NewTopic
from broker.services.context import BrokerServices
from broker.settings.config import BrokerConfig

_MIN_ISR = "min.insync.replicas"


def lowered_default(config: BrokerConfig, report: Callable[[str], None]) -> BrokerConfig:
    """Return the configuration for the start, with a default of `min.insync.replicas` that one node can keep."""
    if not config.lower_replication or config.min_insync_replicas == 1:
        return config
    report(f"{_MIN_ISR} {config.min_insync_replicas} lowered to 1")
    return replace(config, min_insync_replicas=1)


def copies_max(services: BrokerServices) -> int:
    """Return the number of copies that a partition can have."""
    return len(services.metadata.brokers) if services.replicates else 1


def lowered_factor(services: BrokerServices, topic: str, replication_factor: int) -> int:
    """Return the replication factor to make a topic with."""
    most = copies_max(services)
    if not services.config.lower_replication or replication_factor <= most:
        return replication_factor
    services.report(f"topic {topic}: replication factor {replication_factor} lowered to {most}")
    return most


def lowered_properties(services: BrokerServices, topic: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties to make a topic with. A value that is not a number is left for its check to refuse."""
    min_isr, most = properties.get(_MIN_ISR, "").strip(), copies_max(services)
    if not services.config.lower_replication or not min_isr.isdigit() or int(min_isr) <= most:
        return properties
    services.report(f"topic {topic}: {_MIN_ISR} {min_isr} lowered to {most}")
    return {**properties, _MIN_ISR: str(most)}


def lowered_topic(services: BrokerServices, new: NewTopic) -> NewTopic:
    """Return a topic that a broker makes of its own accord, with as many copies as there can be."""
    return new._replace(
        replication_factor=lowered_factor(services, new.name, new.replication_factor),
        properties=lowered_properties(services, new.name, new.properties),
    )
