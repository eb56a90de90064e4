"""The settings that decide about leaders, as the controller in this broker reads them.

A setting that is altered at run time counts from the next decision on. Kafka alters `auto.leader.rebalance.enable` and
what belongs to it at a start only.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from broker.cluster.policy import Policy, Rebalance
from broker.settings.config import BrokerConfig, TopicConfig


class ConfiguredBroker(Protocol):
    """The broker's settings as they are now, and its way to the operator."""

    config: BrokerConfig

    @property
    def report(self) -> Callable[[str], None]: ...


def policy_of(broker: ConfiguredBroker, settings_of: Callable[[str], Mapping[str, str]]) -> Policy:
    """Return the policy of the controller in a broker. `settings_of` returns a topic's own settings."""

    def config_of(topic: str) -> TopicConfig:
        return broker.config.topic_defaults.with_properties(settings_of(topic))

    started_with = broker.config
    rebalance = Rebalance(
        started_with.leader_imbalance_check_interval_seconds * 1_000,
        started_with.leader_imbalance_per_broker_percentage,
    )
    return Policy(
        min_isr=lambda topic: config_of(topic).min_insync_replicas,
        allows_unclean=lambda topic: config_of(topic).unclean_leader_election_enable,
        report=broker.report,
        rebalance=rebalance if started_with.auto_leader_rebalance_enable else None,
    )
