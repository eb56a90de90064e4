"""The services of the broker that Produce uses; `BrokerServices` (broker.services.context) has them."""

from typing import Protocol
from uuid import UUID

from broker.log.partition_log import PartitionLog
from broker.log.validation.opening import Limits
from broker.metrics import Metrics
from broker.produce.turn import ProduceTurn
from broker.record.batch import BatchHeader
from broker.settings.config import BrokerConfig
from broker.stamping.id_stamper import IdStamper


class Transactions(Protocol):
    """The transactions that a batch may belong to (broker.services.transaction_coordination)."""

    def verify(
        self, transactional_id: str | None, header: BatchHeader, log: PartitionLog, produce_version: int
    ) -> None: ...


class ProduceServices(Protocol):
    """The broker's services, as far as Produce uses them."""

    config: BrokerConfig
    id_stamper: IdStamper
    metrics: Metrics
    record_limits: Limits
    turn: ProduceTurn

    @property
    def transactions(self) -> Transactions: ...

    def log_of(self, topic: str | UUID, partition: int) -> PartitionLog: ...
