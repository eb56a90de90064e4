"""The services of a broker that its replicas use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.membership.peer_calls import PeerCalls
from broker.metadata.image import Image
from broker.metrics import Metrics
from broker.now import Now
from broker.settings.config import BrokerConfig
from broker.waiting.purgatory import Purgatory


class Touch(Protocol):
    """Answers the requests that wait for a log. `upto` is its high watermark if nothing else has changed."""

    def __call__(self, log: PartitionLog, now: Now, *, upto: int | None = None) -> None: ...


@dataclass(frozen=True)
class ReplicaPorts:
    """See the module."""

    broker_id: int
    boot_id: str
    """The id of this boot of the kernel, "" if it is not known."""
    broker_epoch: Callable[[], int]
    """Returns the epoch of this life of the broker, -1 before its registration."""
    image: Image
    """The decisions of the controller about all partitions."""
    hosted: Image
    """The partitions that this broker's directory hosts."""
    logs: LogManager
    purgatory: Purgatory
    peer_calls: PeerCalls
    metrics: Metrics
    config: Callable[[], BrokerConfig]
    """Returns the present settings of the broker."""
    log_went_offline: Callable[[Now], None]
    """Tells the controller that a log with copies went offline."""
    touch: Touch
    report: Callable[[str], None]
    """Writes a line for the operator."""
