"""Settings of a ConsumerConnector, under the names of early Kafka's consumer where it has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from broker.client.connector.early_settings import ARGUMENT, EARLY_SETTINGS, TAKEN, EarlySetting
from broker.client.fetch_config import FetchConfig
from broker.client.offset_spec import Earliest, Latest
from idgen.settings import InvalidSetting, at_least, one_of, parse_bool, parse_setting, setting, settings_of

SMALLEST, LARGEST = "smallest", "largest"


@dataclass(frozen=True, kw_only=True)
class ConnectorConfig(FetchConfig):
    """Settings of a ConsumerConnector. Raise InvalidSetting if a value cannot work."""

    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        6_000,
        "ZooKeeper takes a consumer that it has not heard of for so long for dead; the consumer itself delivers "
        "nothing more by then",
        check=at_least(100),
        unit="ms",
    )
    zookeeper_connection_timeout_ms: int = setting(
        "zookeeper.connection.timeout.ms",
        15_000,
        "how long a connector waits for ZooKeeper when it is made",
        check=at_least(1),
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
    client_id: str | None = setting(
        "client.id", None, "the name that a connector gives itself in requests to brokers; none: that of the group"
    )
    socket_timeout_ms: int = setting(
        "socket.timeout.ms",
        30_000,
        "how long a connector waits for a broker's answer, beside `fetch.max.wait.ms`",
        check=at_least(1),
        unit="ms",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        patience_ms = self.rebalance_retries_max * self.rebalance_backoff_ms
        if patience_ms < self.zookeeper_session_timeout_ms and not self.rebalance_goes_on:
            raise InvalidSetting(
                "rebalance.retries.max",
                self.rebalance_retries_max,
                f"times rebalance.backoff.ms must be at least zookeeper.session.timeout.ms "
                f"({self.zookeeper_session_timeout_ms}), because a dead consumer's partitions are free only then",
            )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Return the settings of a consumer.properties of Kafka 0.8. It may have settings under today's names too.

        Raise InvalidSetting for a setting that is refused or unknown; the error says what to do instead.
        """
        ours = {setting.name: setting for setting in settings_of(cls)}
        fields: dict[str, Any] = {}
        commits = True
        for name, text in properties.items():
            early = _EARLY.get(name)
            if name == "auto.commit.enable":
                commits = parse_bool(name, text.strip())
            elif early is not None and early.standing != TAKEN:
                _refuse(early, text.strip())
            elif early is None and name not in ours:
                raise InvalidSetting(name, text, "neither early Kafka's consumer nor a ConsumerConnector has it")
            else:
                taken = ours[name if early is None else early.ours]
                is_never = name == "consumer.timeout.ms" and text.strip() == "-1"
                fields[taken.field] = None if is_never else parse_setting(taken, text)
        if not commits:
            fields["auto_commit_interval_ms"] = None
        return cls(**fields)

    @property
    def start(self) -> Earliest | Latest:
        """Return where a partition without an offset begins."""
        return Earliest() if self.auto_offset_reset == SMALLEST else Latest()


_EARLY = {early.name: early for early in EARLY_SETTINGS}


def _refuse(early: EarlySetting, value: str) -> None:
    if early.standing == ARGUMENT:
        raise InvalidSetting(early.name, value, f"give it as ConsumerConnector's argument `{early.ours}`")
    if value.lower() not in early.harmless:
        raise InvalidSetting(early.name, value, early.reason)
