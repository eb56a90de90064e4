"""The figures of a consumer, early Kafka's (ConsumerStats, SimpleConsumerStats), as values."""

from dataclasses import dataclass, field

from broker.client.group_protocol import Partition


@dataclass(slots=True)
class PartitionFigures:
    """The figures of an owned partition. Offsets are None while they are not known."""

    position: int | None = None
    """The consumed offset: that after the last record handed to the program."""
    committed: int | None = None
    end: int | None = None
    """The latest offset: the log's end, for read_committed the last stable offset, as the last fetch told."""
    records: int = 0
    """Records of the batches that were unpacked for the program since the assignment."""
    bytes: int = 0
    """Bytes of these batches as they were fetched."""

    @property
    def lag(self) -> int | None:
        """Number of offsets between the position and the end of the log."""
        return None if self.position is None or self.end is None else max(0, self.end - self.position)

    @property
    def lag_bytes(self) -> int | None:
        """The lag in bytes, estimated: the lag times the mean size of the records fetched so far."""
        if self.lag is None or (self.lag and not self.records):
            return None
        return round(self.lag * self.bytes / self.records) if self.lag else 0

    def fetched(self, records: int, size: int) -> None:
        """Count the records of an answer."""
        self.records += records
        self.bytes += size


@dataclass(slots=True)
class FetchFigures:
    """All fetches of a consumer since it was made."""

    requests: int = 0
    failed_requests: int = 0
    request_ms: float = 0.0
    """Sum of the times from request to answer, which includes the broker's wait for records."""
    request_ms_max: float = 0.0
    records: int = 0
    bytes: int = 0
    commits: int = 0
    rebalances: int = 0
    poison_batches: int = 0
    resets: int = 0
    """How often a position was gone, so that the partition began again by `start`, or its log was cut."""

    def answered(self, ms: float) -> None:
        """Count a request that was answered after `ms`."""
        self.requests += 1
        self.request_ms += ms
        self.request_ms_max = max(self.request_ms_max, ms)

    def fetched(self, records: int, size: int) -> None:
        """Count the records of one partition in an answer."""
        self.records += records
        self.bytes += size


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """The figures of a consumer at one moment. Counts and sums began `seconds` ago, when it was made."""

    seconds: float
    fetches: FetchFigures
    partitions: dict[Partition, PartitionFigures] = field(default_factory=dict)
    group_wait_ms: int = 0
    """How long the consumer has waited for its group to rebalance; 0 if it does not wait."""

    @property
    def lag(self) -> int:
        """The lag of all partitions, in records."""
        return sum(partition.lag or 0 for partition in self.partitions.values())

    @property
    def lag_bytes(self) -> int:
        """The lag of all partitions in bytes, estimated."""
        return sum(partition.lag_bytes or 0 for partition in self.partitions.values())

    @property
    def requests_per_second(self) -> float:
        """Mean rate of fetch requests since the start."""
        return self.fetches.requests / self.seconds if self.seconds else 0.0

    @property
    def request_ms_avg(self) -> float:
        """Mean time of a fetch request in ms, the broker's wait for records included."""
        return self.fetches.request_ms / self.fetches.requests if self.fetches.requests else 0.0
