"""Settings that a Consumer and a ConsumerConnector share, under Kafka's names where Kafka has them."""

from dataclasses import dataclass

from broker.wire import fetch
from idgen.settings import at_least, check_settings, one_of, setting

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


@dataclass(frozen=True, kw_only=True)
class FetchConfig:
    """Settings of fetches and of commits by time. Raise InvalidSetting if a value cannot work."""

    isolation_level: str = setting(
        "isolation.level",
        READ_UNCOMMITTED,
        "read_committed leaves out records of aborted transactions, and waits for the end of open ones",
        check=one_of(READ_UNCOMMITTED, READ_COMMITTED),
    )
    auto_commit_interval_ms: int | None = setting(
        "auto.commit.interval.ms",
        5_000,
        "how often a consumer of a group commits the records that the program is done with: it has asked for more; "
        "none: only by `commit()`, or a connector's `commit_offsets()`",
        check=at_least(1),
        unit="ms",
    )
    fetch_min_bytes: int = setting(
        "fetch.min.bytes",
        1,
        "with fewer bytes of records a broker holds a fetch, as long as `fetch.max.wait.ms` allows",
        check=at_least(1),
        unit="bytes",
    )
    fetch_max_wait_ms: int = setting(
        "fetch.max.wait.ms",
        500,
        "how long a broker holds a fetch without records; waiting costs it nothing, and a new record ends the wait",
        check=at_least(1),
        unit="ms",
    )
    max_partition_fetch_bytes: int = setting(
        "max.partition.fetch.bytes",
        1 << 20,
        "most bytes of one partition in a fetch; a larger batch comes alone",
        check=at_least(1),
        unit="bytes",
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        16 << 20,
        "most bytes of all partitions in a fetch; it bounds how much memory one answer takes",
        check=at_least(1),
        unit="bytes",
    )
    consumer_prefetch_bytes: int = setting(
        "flakelog.consumer.prefetch.bytes",
        64 << 20,
        "once so many bytes wait for the program, packed or not, nothing more is fetched; answers under way may add "
        "`fetch.max.bytes` for each broker; each stream of a connector counts for itself",
        check=at_least(1),
        unit="bytes",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def isolation(self) -> int:
        """Return the isolation level as Fetch and ListOffsets have it."""
        return fetch.READ_COMMITTED if self.isolation_level == READ_COMMITTED else fetch.READ_UNCOMMITTED
