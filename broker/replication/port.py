"""What the handlers of requests know of replication."""

from typing import Protocol

from broker.log.partition_log import PartitionLog
from broker.replication.partition import Partition


class Replication(Protocol):
    """The partitions of several copies that this broker leads."""

    def partition_of(self, log: PartitionLog) -> Partition | None:
        """Return the leader's view of a log's partition; None if the log has one copy, or another broker leads it."""
