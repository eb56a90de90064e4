"""Settings of a ConsumerConnector, under the names of Kafka 0.8's consumer where it has them."""

from dataclasses import dataclass

from broker.client.connector.config import RegistryGroupConfig
from broker.client.consumer_config import READ_COMMITTED, READ_UNCOMMITTED, ConsumerConfig
from broker.client.offset_spec import Earliest, Latest
from idgen.settings import at_least, one_of, setting

SMALLEST, LARGEST = "smallest", "largest"


@dataclass(frozen=True, kw_only=True)
class ConnectorConfig(RegistryGroupConfig):
    """Settings of a ConsumerConnector. Raise InvalidSetting if a value cannot work."""

    auto_offset_reset: str = setting(
        "auto.offset.reset",
        SMALLEST,
        "where a partition begins of which the group has no offset, or one that its log no longer has: smallest is the "
        "oldest message, and largest the end of the log",
        check=one_of(SMALLEST, LARGEST),
    )
    consumer_timeout_ms: int | None = setting(
        "consumer.timeout.ms",
        None,
        "a stream's iterator ends after this time without a message; none: it waits for ever",
        check=at_least(1),
        unit="ms",
    )
    isolation_level: str = setting(
        "isolation.level",
        READ_UNCOMMITTED,
        "read_committed leaves out records of aborted transactions, and waits for the end of open ones",
        check=one_of(READ_UNCOMMITTED, READ_COMMITTED),
    )
    fetch_wait_max_ms: int = setting(
        "fetch.wait.max.ms",
        500,
        "how long a broker holds a fetch without records; a new record ends the wait",
        check=at_least(1),
        unit="ms",
    )
    fetch_message_max_bytes: int = setting(
        "fetch.message.max.bytes",
        1 << 20,
        "most bytes of one partition in a fetch; a larger batch comes alone",
        check=at_least(1),
        unit="bytes",
    )
    queued_max_bytes: int = setting(
        "flakelog.queued.max.bytes",
        16 << 20,
        "once so many bytes wait in the queue of a stream, that stream fetches nothing more",
        check=at_least(1),
        unit="bytes",
    )

    @property
    def fetching(self) -> ConsumerConfig:
        """Return the settings of the fetches of a stream."""
        return ConsumerConfig(
            isolation_level=self.isolation_level,
            fetch_max_wait_ms=self.fetch_wait_max_ms,
            max_partition_fetch_bytes=self.fetch_message_max_bytes,
            consumer_prefetch_bytes=self.queued_max_bytes,
        )

    @property
    def start(self) -> Earliest | Latest:
        """Return where a partition without an offset begins."""
        return Earliest() if self.auto_offset_reset == SMALLEST else Latest()
