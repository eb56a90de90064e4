"""The settings of replication: names, defaults and bounds are those of Kafka 3.9."""

import pytest

from broker.settings.config import BrokerConfig, TopicConfig, with_properties
from broker.settings.kafka_settings import HONOURED, broker_setting
from idgen.settings import InvalidSetting, settings_of

DEFAULTS = {
    "auto.leader.rebalance.enable": True,
    "leader.imbalance.check.interval.seconds": 300,
    "leader.imbalance.per.broker.percentage": 10,
    "replica.fetch.backoff.ms": 1_000,
    "replica.fetch.max.bytes": 1_048_576,
    "replica.fetch.min.bytes": 1,
    "replica.fetch.response.max.bytes": 10_485_760,
    "replica.fetch.wait.max.ms": 500,
    "replica.high.watermark.checkpoint.interval.ms": 5_000,
    "replica.lag.time.max.ms": 30_000,
    "unclean.leader.election.enable": False,
}


@pytest.mark.parametrize("name, default", DEFAULTS.items())
def test_a_setting_of_replication_has_kafkas_default(name, default):
    defaults = {setting.name: setting.default for setting in settings_of(BrokerConfig)}
    row = broker_setting(name)
    assert (defaults[name], row.standing, row.default) == (default, HONOURED, str(default).lower())


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("leader.imbalance.check.interval.seconds", "0", "must be at least 1"),
        ("leader.imbalance.per.broker.percentage", "-1", "must be at least 0"),
        ("replica.fetch.backoff.ms", "-1", "must be between 0 and 2147483647"),
        ("replica.fetch.max.bytes", "-1", "must be between 0 and 2147483647"),
        ("replica.fetch.response.max.bytes", "2147483648", "must be between 0 and 2147483647"),
        ("replica.lag.time.max.ms", "0", "must be at least 1"),
        ("unclean.leader.election.enable", "maybe", "must be true or false"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_what_would(name, value, wanted):
    with pytest.raises(InvalidSetting, match=f"^{name}={value}: {wanted}"):
        with_properties(BrokerConfig(), {name: value})


def test_a_leader_holds_an_idle_follower_no_longer_than_the_isr_waits_for_it():
    """Kafka checks the same, because a follower would leave the ISR between two of its requests."""
    at_once = {"replica.lag.time.max.ms": "400", "replica.fetch.wait.max.ms": "400"}
    assert with_properties(BrokerConfig(), at_once).replica_lag_time_max_ms == 400
    with pytest.raises(InvalidSetting, match="500: must not be above replica.lag.time.max.ms, which is 400"):
        with_properties(BrokerConfig(), {"replica.lag.time.max.ms": "400"})


def test_a_topic_may_have_another_unclean_leader_election_enable_than_the_broker():
    defaults = BrokerConfig(unclean_leader_election_enable=True).topic_defaults
    assert defaults.unclean_leader_election_enable
    assert not defaults.with_properties({"unclean.leader.election.enable": "false"}).unclean_leader_election_enable
    TopicConfig.check_names({"unclean.leader.election.enable": "true"})
