"""What the controller asks of the broker that it runs in: settings of topics, and where its lines for people go.

The settings of a topic may reach the controller and the topic's leader at different times. So a leader names the
min.insync.replicas that it reads when it asks for another ISR, and the controller's own reading counts in its own
decisions only (rule R3).
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rebalance:
    """The automatic election of preferred leaders: how often, and from which share of a broker's partitions on."""

    interval_ms: int = 300_000
    percentage: int = 10


@dataclass(frozen=True)
class Policy:
    """The ports of a controller. The defaults are those of Kafka, without automatic elections of preferred leaders.

    `min_isr` returns a topic's min.insync.replicas, `allows_unclean` its unclean.leader.election.enable. `report` takes
    a line for the operator.
    """

    min_isr: Callable[[str], int] = lambda topic: 1
    allows_unclean: Callable[[str], bool] = lambda topic: False
    report: Callable[[str], None] = lambda line: None
    rebalance: Rebalance | None = None
