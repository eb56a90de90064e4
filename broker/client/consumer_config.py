"""Settings of a Consumer, under Kafka's names (ConsumerConfig) where Kafka has them."""

from dataclasses import dataclass

from broker.client.fetch_config import FetchConfig
from broker.client.group_config import GroupMemberConfig
from idgen.settings import at_least, setting


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(GroupMemberConfig, FetchConfig):
    """Settings of a Consumer, and of its membership in a group. Raise InvalidSetting if a value cannot work."""

    max_poll_records: int = setting(
        "max.poll.records",
        500,
        "most records that one `poll` returns; so a program asks again soon, and a rebalance waits only so long",
        check=at_least(1),
    )
