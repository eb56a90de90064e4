"""The services of the broker that the request channel uses; `BrokerServices` (broker.services.context) has them."""

from collections.abc import Mapping
from typing import Protocol

from broker.channel.partition_budget import PartitionBudget
from broker.metrics import Metrics
from broker.settings.config import BrokerConfig, ListenerLimits
from broker.waiting.purgatory import Purgatory


class ChannelServices(Protocol):
    """The broker's services, as far as the request channel uses them."""

    config: BrokerConfig
    listener_limits: Mapping[str, ListenerLimits]
    protected_listeners: frozenset[str]
    """The listeners of other brokers, if clients have others: no limit of connections holds there (KIP-402)."""
    metrics: Metrics
    partition_budget: PartitionBudget
    purgatory: Purgatory

    def report(self, line: str, /) -> None: ...
