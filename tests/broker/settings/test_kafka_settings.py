"""Kafka's settings: each is honoured, ignored with a reason, or refused (Kafka 4.3's ConfigDef)."""

import pytest

from broker.security.sasl.assertion_config import AssertionConfig
from broker.security.sasl.config import SaslConfig
from broker.security.tls_config import TlsConfig
from broker.settings.config import BrokerConfig, TopicConfig
from broker.settings.group_config import GroupConfig
from broker.settings.kafka_settings import (
    HONOURED,
    IGNORED,
    REFUSED,
    SYNONYMS,
    broker_setting,
    broker_settings,
    nearest,
    topic_setting,
    topic_settings,
)
from broker.settings.transaction_config import TransactionConfig
from flakelog.config import ServerConfig
from idgen.settings import InvalidSetting, settings_of

CONFIGS = ServerConfig, BrokerConfig, TlsConfig, SaslConfig, AssertionConfig, GroupConfig, TransactionConfig
SERVER_NAMES = {setting.name for config in CONFIGS for setting in settings_of(config)}
TOPIC_NAMES = {setting.name for setting in settings_of(TopicConfig)}
OTHER_NAMES = {other for others in SYNONYMS.values() for other, _ in others}


def kafkas(names):
    return {name for name in names if not name.startswith("flakelog.")}


def test_what_is_honoured_is_what_the_dataclasses_have():
    """A setting that is added to a dataclass must move to the honoured rows of broker/settings/kafka_settings.py."""
    assert {row.name for row in broker_settings() if row.standing == HONOURED} == kafkas(SERVER_NAMES) | OTHER_NAMES
    assert {row.name for row in topic_settings() if row.standing == HONOURED} == kafkas(TOPIC_NAMES)


def test_every_other_row_has_its_reason():
    for row in broker_settings() + topic_settings():
        assert row.standing == HONOURED or len(row.reason.split()) > 3, row.name


def test_a_refused_row_says_what_to_do():
    """The reason names a way out: a setting to leave out, or one to set in its place."""
    for row in broker_settings() + topic_settings():
        if row.standing == REFUSED:
            assert "; " in row.reason, f"{row.name}: {row.reason}"


def test_a_name_is_in_the_table_once():
    from broker.settings.kafka_settings import _BROKER_ROWS, _TOPIC_ROWS

    for rows in (_BROKER_ROWS, _TOPIC_ROWS):
        names = [row.name for row in rows]
        assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    "name, standing",
    [
        ("num.io.threads", IGNORED),
        ("zookeeper.connect", HONOURED),
        ("zookeeper.ssl.client.enable", REFUSED),
        ("ssl.keystore.location", HONOURED),
        ("listener.name.internal.ssl.keystore.location", HONOURED),
        ("ssl.protocol", IGNORED),
        ("listener.name.internal.plain.sasl.jaas.config", HONOURED),
        ("sasl.mechanism.inter.broker.protocol", HONOURED),
        ("delegation.token.secret.key", REFUSED),
        ("confluent.license.topic", IGNORED),
        ("authorizer.class.name", HONOURED),
        ("host.name", REFUSED),
        ("log.retention.hours", HONOURED),
    ],
)
def test_a_brokers_setting_has_a_standing(name, standing):
    assert broker_setting(name).standing == standing


@pytest.mark.parametrize("name", ["num.io.thread", "listener.name.internal", "listener.name.x.nothing"])
def test_a_name_kafka_does_not_know_has_none(name):
    assert broker_setting(name) is None


def test_a_refused_setting_may_have_a_value_that_asks_for_nothing():
    row = broker_setting("remote.log.storage.system.enable")
    assert row.refusal("false") is None and row.standing_of("false") == IGNORED
    assert "no tiered storage" in row.refusal("true") and row.standing_of("true") == REFUSED


def test_an_unused_setting_must_still_have_a_value_of_its_type():
    assert topic_setting("segment.jitter.ms").refusal("5") is None
    assert topic_setting("segment.jitter.ms").refusal("-5") == "must be at least 0"
    assert topic_setting("segment.jitter.ms").refusal(" ") == "must have a value"
    assert topic_setting("segment.jitter.ms").refusal("soon") == "must be a whole number"
    assert topic_setting("preallocate").refusal("yes") == "must be true or false"


def test_the_nearest_name_is_found_among_kafkas_and_ours():
    assert nearest("num.network.thread", []) == "num.network.threads"
    assert nearest("flakelog.ids.listner", ["flakelog.ids.listener"]) == "flakelog.ids.listener"
    assert nearest("xyzzy", []) is None


def test_a_topic_may_have_what_changes_nothing_here():
    TopicConfig.check_names({"segment.jitter.ms": "1000", "preallocate": "true"})


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("retention.m", "1", r"^retention\.m=1: topics have no such setting; did you mean retention\.ms"),
        ("remote.storage.enable", "true", r"^remote\.storage\.enable=true: there is no tiered storage"),
        ("message.format.version", "2.8", r"leave it out"),
        ("preallocate", "maybe", r"^preallocate=maybe: must be true or false"),
        ("num.partitions", "3", r"topics have no such setting"),
    ],
)
def test_a_topic_may_not_have_what_would_mean_something_else(name, value, wanted):
    with pytest.raises(InvalidSetting, match=wanted):
        TopicConfig.check_names({name: value})
