"""The settings of a ConsumerConnector: those that cannot work together, and those of early Kafka's consumer."""

import pytest

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.early_settings import ARGUMENT, EARLY_SETTINGS, REFUSED, TAKEN
from broker.client.consumer_config import ConsumerConfig
from idgen.settings import InvalidSetting, settings_of

OURS = {setting.name: setting for setting in settings_of(ConnectorConfig)}
KAFKA_082 = """
    auto.commit.enable auto.commit.interval.ms auto.offset.reset client.id consumer.id consumer.timeout.ms
    dual.commit.enabled exclude.internal.topics fetch.message.max.bytes fetch.min.bytes fetch.wait.max.ms group.id
    num.consumer.fetchers offsets.channel.backoff.ms offsets.channel.socket.timeout.ms offsets.commit.max.retries
    offsets.storage partition.assignment.strategy queued.max.message.chunks rebalance.backoff.ms rebalance.max.retries
    refresh.leader.backoff.ms socket.receive.buffer.bytes socket.timeout.ms zookeeper.connect
    zookeeper.connection.timeout.ms zookeeper.session.timeout.ms zookeeper.sync.time.ms
"""  # ConsumerConfig.scala


def test_a_consumer_waits_for_a_dead_one_as_long_as_its_session_lasts():
    """Kafka 0.8: "zookeeper.session.timeout.ms < rebalance.max.retries * rebalance.backoff.ms"."""
    with pytest.raises(InvalidSetting, match=r"rebalance.retries.max=2: times rebalance.backoff.ms must be at least"):
        ConnectorConfig(rebalance_retries_max=2)
    ConnectorConfig(rebalance_retries_max=3)
    ConnectorConfig(rebalance_retries_max=0, rebalance_goes_on=True)


def test_a_setting_that_a_consumer_has_too_is_the_same_one():
    of_consumers = {setting.name: setting for setting in settings_of(ConsumerConfig)}
    shared = OURS.keys() & of_consumers.keys()
    assert {"isolation.level", "auto.commit.interval.ms", "fetch.max.wait.ms"} <= shared
    assert all(OURS[name] is not None and OURS[name] == of_consumers[name] for name in shared)


def test_every_setting_of_early_kafkas_consumer_has_its_treatment():
    assert sorted(early.name for early in EARLY_SETTINGS) == sorted(KAFKA_082.split())
    for early in EARLY_SETTINGS:
        assert early.standing in (TAKEN, ARGUMENT, REFUSED)
        assert early.ours in OURS if early.standing == TAKEN else early.ours not in OURS
        assert early.reason or early.standing != REFUSED, f"{early.name} needs a reason"


def test_the_settings_of_early_kafka_are_taken_under_their_names():
    config = ConnectorConfig.from_properties(
        {
            "socket.timeout.ms": "10000",
            "fetch.message.max.bytes": "2048",
            "fetch.min.bytes": "100",
            "fetch.wait.max.ms": " 200 ",
            "auto.commit.interval.ms": "60000",
            "rebalance.max.retries": "9",
            "auto.offset.reset": "largest",
            "consumer.timeout.ms": "-1",
            "client.id": "billing-1",
            "zookeeper.connection.timeout.ms": "7000",
            "isolation.level": "read_committed",
        }
    )
    assert config == ConnectorConfig(
        socket_timeout_ms=10_000,
        max_partition_fetch_bytes=2_048,
        fetch_min_bytes=100,
        fetch_max_wait_ms=200,
        auto_commit_interval_ms=60_000,
        rebalance_retries_max=9,
        auto_offset_reset="largest",
        client_id="billing-1",
        zookeeper_connection_timeout_ms=7_000,
        isolation_level="read_committed",
    )


@pytest.mark.parametrize("order", [("false", "1000"), ("true", "1000")])
def test_commits_by_time_may_be_turned_off(order):
    enabled, interval = order
    properties = {"auto.commit.enable": enabled, "auto.commit.interval.ms": interval}
    expected = 1_000 if enabled == "true" else None
    assert ConnectorConfig.from_properties(properties).auto_commit_interval_ms == expected


@pytest.mark.parametrize("early", [early for early in EARLY_SETTINGS if early.harmless], ids=lambda early: early.name)
def test_a_refused_setting_may_ask_for_what_is_done_anyway(early):
    for value in early.harmless:
        assert ConnectorConfig.from_properties({early.name: value}) == ConnectorConfig()
    with pytest.raises(InvalidSetting, match=early.reason.split(";")[0]):
        ConnectorConfig.from_properties({early.name: "17"})


@pytest.mark.parametrize(
    "name, value, right",
    [
        ("group.id", "billing", "give it as ConsumerConnector's argument `group`"),
        ("zookeeper.connect", "zk1:2181", "give it as ConsumerConnector's argument `zookeeper`"),
        ("consumer.id", "one", "leave it out"),
        ("queued.max.message.chunks", "10", "set flakelog.consumer.prefetch.bytes"),
        ("fetch.wait.max.ms", "soon", "fetch.max.wait.ms=soon: must be a whole number"),
        ("auto.offset.reset", "earliest", "must be one of smallest, largest"),
        ("auto.commit.enable", "yes", "must be true or false"),
        ("bootstrap.servers", "b:9092", "neither early Kafka's consumer nor a ConsumerConnector has it"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_what_would_be_right(name, value, right):
    with pytest.raises(InvalidSetting, match=right):
        ConnectorConfig.from_properties({name: value})
