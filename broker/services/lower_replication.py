"""`flakelog.lower.replication`: lowers a request for more copies than there are nodes to the number of nodes.

A program written for a cluster makes its topics with three replicas, two of which must have a message. On a developer's
one node that is refused, as by Kafka, unless this setting is on. Each lowered value is reported in the broker's log.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from broker.services.context import BrokerServices
from broker.settings.config import BrokerConfig

_MIN_ISR = "min.insync.replicas"


def lowered_default(config: BrokerConfig, report: Callable[[str], None]) -> BrokerConfig:
    """Return the configuration for the start, with a default of `min.insync.replicas` that one node can keep."""
    if not config.lower_replication or config.min_insync_replicas == 1:
        return config
    report(f"{_MIN_ISR} {config.min_insync_replicas} lowered to 1")
    return replace(config, min_insync_replicas=1)


def lowered_factor(services: BrokerServices, topic: str, replication_factor: int) -> int:
    """Return the replication factor to make a topic with."""
    nodes = len(services.metadata.brokers)
    if not services.config.lower_replication or replication_factor <= nodes:
        return replication_factor
    services.report(f"topic {topic}: replication factor {replication_factor} lowered to {nodes}")
    return nodes


def lowered_properties(services: BrokerServices, topic: str, properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties to make a topic with. A value that is not a number is left for its check to refuse."""
    nodes = len(services.metadata.brokers)
    min_isr = properties.get(_MIN_ISR, "").strip()
    if not services.config.lower_replication or not min_isr.isdigit() or int(min_isr) <= nodes:
        return properties
    services.report(f"topic {topic}: {_MIN_ISR} {min_isr} lowered to {nodes}")
    return {**properties, _MIN_ISR: str(nodes)}
