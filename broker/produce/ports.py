"""The services of the broker that Produce uses; `BrokerServices` (broker.services.context) has them."""

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from broker.log.partition_log import PartitionLog
from broker.log.validation.opening import Limits
from broker.log.verification import Verification
from broker.metadata.image import Image
from broker.metrics import Metrics
from broker.now import Now
from broker.produce.turn import ProduceTurn
from broker.record.batch import BatchHeader
from broker.replication.partition import Partition
from broker.settings.config import BrokerConfig
from broker.stamping.clock_waits import ClockWaits
from broker.stamping.id_stamper import IdStamper
from broker.waiting.purgatory import Purgatory


class Transactions(Protocol):
    """The transactions that a batch may belong to (broker.services.transaction_verification)."""

    def verify(
        self, transactional_id: str | None, header: BatchHeader, log: PartitionLog, produce_version: int
    ) -> None:
        """Raise ApiError for a batch that its transaction does not allow, or Unverified."""

    def ask(self, verifications: Iterable[Verification], now: Now) -> None:
        """Send the questions to other brokers, unless they were sent. See `PeerVerification.ask`."""


class Coordinators(Protocol):
    """The coordinators of the broker."""

    @property
    def transactions(self) -> Transactions: ...


class ProduceServices(Protocol):
    """The broker's services, as far as Produce uses them."""

    config: BrokerConfig
    metadata: Image
    clock_waits: ClockWaits
    id_stamper: IdStamper
    metrics: Metrics
    purgatory: Purgatory
    record_limits: Limits
    turn: ProduceTurn

    @property
    def is_alone(self) -> bool: ...

    @property
    def replication(self) -> object | None:
        """Return None if every partition has one copy."""

    @property
    def coordinators(self) -> Coordinators: ...

    def report(self, line: str, /) -> None: ...

    def log_of(self, topic: str | UUID, partition: int) -> PartitionLog: ...

    def partition_of(self, log: PartitionLog) -> Partition | None: ...

    def appended(self, log: PartitionLog, now: Now) -> None: ...
