"""Settings of a consumer that agrees with others through ZooKeeper, under the names of Kafka 0.7 and 0.8."""

from dataclasses import dataclass

from idgen.settings import InvalidSetting, at_least, check_settings, setting


@dataclass(frozen=True, kw_only=True)
class RegistryGroupConfig:
    """Settings of a consumer in a group of the registry. Raise InvalidSetting if a value cannot work."""

    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        6_000,
        "ZooKeeper takes a consumer that it has not heard of for so long for dead; the consumer itself delivers "
        "nothing more by then",
        check=at_least(100),
        unit="ms",
    )
    rebalance_retries_max: int = setting(
        "rebalance.retries.max",
        4,
        "how often a consumer tries again to get its partitions while another consumer still owns one",
        check=at_least(0),
    )
    rebalance_backoff_ms: int = setting(
        "rebalance.backoff.ms",
        2_000,
        "the pause before it tries again, unless the other consumer lets go earlier",
        check=at_least(1),
        unit="ms",
    )
    rebalance_goes_on: bool = setting(
        "flakelog.rebalance.goes.on",
        False,
        "after the last try, go on in the background with the same pause, instead of leaving the group with an error",
    )
    auto_commit_interval_ms: int | None = setting(
        "auto.commit.interval.ms",
        5_000,
        "how often the consumer commits what its program is done with; none: only by commit_offsets, and when a "
        "partition goes to another consumer",
        check=at_least(1),
        unit="ms",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        patience_ms = self.rebalance_retries_max * self.rebalance_backoff_ms
        if patience_ms < self.zookeeper_session_timeout_ms and not self.rebalance_goes_on:
            raise InvalidSetting(
                "rebalance.retries.max",
                self.rebalance_retries_max,
                f"times rebalance.backoff.ms must be at least zookeeper.session.timeout.ms "
                f"({self.zookeeper_session_timeout_ms}), because a dead consumer's partitions are free only then",
            )
