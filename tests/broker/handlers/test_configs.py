"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs through the wire (KIP-133, KIP-226, KIP-339, KIP-569)."""

import pytest

from broker.log.storage.port import StorageError
from broker.metadata.change import Change
from broker.metadata.staged import Staged
from broker.settings.config_entries import ConfigSource, ConfigType
from broker.wire.errors import ErrorCode
from idgen.config import IdgenConfig
from tests.broker.engine_client import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    EngineBroker,
)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OWN, DYNAMIC, DYNAMIC_DEFAULT, STATIC, DEFAULT = (
    ConfigSource.TOPIC,
    ConfigSource.DYNAMIC_BROKER,
    ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigSource.STATIC_BROKER,
    ConfigSource.DEFAULT,
)


@pytest.fixture
def broker():
    broker = EngineBroker(log_segment_bytes=1 << 20)
    broker.create("flights", retention_ms=60_000)
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def described(client, kind, name, *keys, version=4):
    """Describe one resource and return its result."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    (result,) = client.ask(DESCRIBE_CONFIGS, version, fields).results
    return result


def entry(client, kind, name, key):
    (config,) = described(client, kind, name, key).configs
    return config


def values(client, kind, name, key):
    """Return a setting's value and its synonyms [(name, value, source)], the effective one first."""
    config = entry(client, kind, name, key)
    assert config.config_source == (config.synonyms[0].source if config.synonyms else DEFAULT)
    return config.value, [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def alter(client, kind, name, *operations, version=1, validate_only=False):
    """Send IncrementalAlterConfigs for one resource; return (error code, message)."""
    configs = [{"config_operation": op, "name": key, "value": value} for op, key, value in operations]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    fields = {"resources": [resource], "validate_only": validate_only}
    (answer,) = client.ask(INCREMENTAL_ALTER_CONFIGS, version, fields).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer.error_code, answer.error_message


def alter_all(client, kind, name, version=2, validate_only=False, **configs):
    """Send AlterConfigs for one resource; return (error code, message)."""
    named = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    fields = {"resources": [{"resource_type": kind, "resource_name": name, "configs": named}]}
    (answer,) = client.ask(ALTER_CONFIGS, version, fields | {"validate_only": validate_only}).responses
    return answer.error_code, answer.error_message


# --- DescribeConfigs ---------------------------------------------------------------------------------------------


def test_a_setting_is_told_with_where_it_comes_from(client):
    """The sources are in KIP-226's order: topic, broker, default. A topic's setting and the broker's differ in name."""
    assert values(client, TOPIC, "flights", "retention.bytes") == ("-1", [("log.retention.bytes", "-1", DEFAULT)])
    assert values(client, TOPIC, "flights", "segment.bytes") == (
        "1048576",
        [("log.segment.bytes", "1048576", STATIC), ("log.segment.bytes", "1073741824", DEFAULT)],
    )
    assert values(client, BROKER, "1", "num.partitions") == ("1", [("num.partitions", "1", DEFAULT)])


def test_a_setting_of_several_names_is_told_of_as_by_kafka(broker, client):
    """Each name shows the value that is set under it. Its synonyms begin with the first value of that name, as in
    Kafka. If no value has that name, the list is empty and a topic's retention.ms may seem to have its default."""
    hours, ms = ("log.retention.hours", "168", DEFAULT), "log.retention.ms"
    assert values(client, TOPIC, "flights", "retention.ms") == ("60000", [("retention.ms", "60000", OWN)])
    assert values(client, TOPIC, "flights", "segment.ms") == ("604800000", [])
    assert values(client, BROKER, "1", ms) == values(client, BROKER, "1", "log.retention.minutes") == (None, [])
    assert values(client, BROKER, "1", "log.retention.hours") == ("168", [hours])
    assert values(client, BROKER, "1", "log.flush.scheduler.interval.ms")[0] == str(2**63 - 1)
    broker.services.given = {"log.retention.minutes": "90", "log.roll.hours": "24"}
    minutes = "log.retention.minutes", "90", STATIC
    assert values(client, BROKER, "1", "log.retention.minutes") == ("90", [minutes, hours])
    assert values(client, BROKER, "1", "log.roll.ms") == (None, [])
    assert alter(client, BROKER, "1", (SET, ms, "5000")) == (0, None)
    altered = [(ms, "5000", DYNAMIC), minutes, hours]
    assert values(client, BROKER, "1", ms) == ("5000", altered)
    assert values(client, TOPIC, "flights", "retention.ms") == ("60000", [("retention.ms", "60000", OWN), *altered])
    assert values(client, BROKER, "1", "log.retention.hours") == ("168", [hours])
    assert entry(client, BROKER, "1", "log.retention.hours").read_only and not entry(client, BROKER, "1", ms).read_only


def test_the_newest_version_has_types_and_documentation(client):
    """KIP-569 added types and documentation."""
    configs = {config.name: config for config in described(client, TOPIC, "flights").configs}
    assert all(config.documentation and not config.read_only and not config.is_sensitive for config in configs.values())
    assert configs["index.interval.bytes"].config_type == ConfigType.INT
    assert {name: configs[name].config_type for name in ("segment.bytes", "retention.ms", "cleanup.policy")} == {
        "segment.bytes": ConfigType.INT,
        "retention.ms": ConfigType.LONG,
        "cleanup.policy": ConfigType.LIST,
    }
    assert configs["retention.bytes"].config_type == ConfigType.LONG
    assert configs["min.cleanable.dirty.ratio"].config_type == ConfigType.DOUBLE
    assert (configs["flakelog.durable.acks"].config_type, configs["flakelog.durable.acks"].value) == (1, "false")


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_has_sources_and_synonyms(client, version):
    assert alter(client, TOPIC, "flights", (SET, "segment.bytes", "4096")) == (0, None)
    config = described(client, TOPIC, "flights", "segment.bytes", version=version).configs[0]
    assert (config.value, config.config_source, len(config.synonyms)) == ("4096", OWN, 3)


def test_synonyms_and_documentation_are_sent_only_where_they_are_asked_for(client):
    resource = {"resource_type": TOPIC, "resource_name": "flights", "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (result,) = client.ask(DESCRIBE_CONFIGS, 4, fields).results
    assert all(not config.synonyms and config.documentation is None for config in result.configs)


def test_a_resource_is_answered_once(client):
    """A small request cannot ask for an answer of unbounded size."""
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    fields = {"resources": [resource] * 100, "include_synonyms": True, "include_documentation": True}
    assert len(client.ask(DESCRIBE_CONFIGS, 4, fields).results) == 1


def test_settings_of_a_broker_are_read_only_unless_they_can_be_altered_while_it_runs(client):
    configs = {config.name: config for config in described(client, BROKER, "1").configs}
    assert not configs["log.retention.ms"].read_only and not configs["max.connections"].read_only
    assert configs["node.id"].read_only and configs["group.max.size"].read_only
    assert described(client, BROKER, "").configs == ()


@pytest.mark.parametrize(
    "kind, name, code",
    [
        (TOPIC, "nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "all", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (77, "x", ErrorCode.INVALID_REQUEST),
        (GROUP, "g", ErrorCode.NONE),
    ],
)
def test_a_resource_that_has_no_settings_is_refused_by_name(client, kind, name, code):
    result = described(client, kind, name)
    assert (result.error_code, result.configs) == (code, ())
    assert bool(result.error_message) == bool(code)


def test_settings_of_kafkas_that_change_nothing_here_are_kept_and_shown(broker, client):
    """Tools set and read them; their documentation says that the broker does not use them."""
    name, default = "preallocate", ("log.preallocate", "false", DEFAULT)
    assert values(client, TOPIC, "flights", name) == ("false", [default])
    assert alter(client, TOPIC, "flights", (SET, name, "true")) == (0, None)
    assert values(client, TOPIC, "flights", name) == ("true", [(name, "true", OWN), default])
    assert "Not used here" in entry(client, TOPIC, "flights", name).documentation
    throttled = "leader.replication.throttled.replicas"
    assert alter(client, TOPIC, "flights", (APPEND, throttled, "0:1")) == (0, None)
    assert alter(client, TOPIC, "flights", (APPEND, throttled, "1:1")) == (0, None)
    assert alter(client, TOPIC, "flights", (SUBTRACT, throttled, "0:1")) == (0, None)
    assert entry(client, TOPIC, "flights", throttled).value == "1:1"
    assert values(client, TOPIC, "flights", "follower.replication.throttled.replicas") == ("", [])
    broker.services.given = {"log.preallocate": "true"}
    assert alter(client, TOPIC, "flights", (DELETE, name, None)) == (0, None)
    assert values(client, TOPIC, "flights", name) == ("true", [("log.preallocate", "true", STATIC), default])
    assert described(client, TOPIC, "flights", "message.format.version").configs == ()
    assert alter(client, TOPIC, "flights", (SET, "remote.storage.enable", "true"))[0] == ErrorCode.INVALID_CONFIG


def test_of_kafkas_settings_those_without_a_default_are_shown_and_those_internal_to_it_or_gone_are_not(broker, client):
    shown = {config.name: config for config in described(client, BROKER, "1").configs}
    for name in ("ssl.keystore.location", "process.roles", "sasl.jaas.config", "client.quota.callback.class"):
        assert (shown[name].value, shown[name].config_source, shown[name].synonyms) == (None, DEFAULT, ())
    assert not shown.keys() & {"server.max.startup.time.ms", "zookeeper.connect", "leader.replication.throttled.rate"}
    assert "internal.segment.bytes" not in {config.name for config in described(client, TOPIC, "flights").configs}
    broker.services.given = {"server.max.startup.time.ms": "5"}
    assert values(client, BROKER, "1", "server.max.startup.time.ms")[0] == "5"


def test_kafkas_settings_a_broker_was_given_and_does_not_use_are_shown(broker, client):
    """Tools query the settings of a Kafka file that an operator brought; passwords are never shown."""
    given = {"num.io.threads": "16", "ssl.key.password": "secret", "inter.broker.protocol.version": "3.9"}
    broker.services.given = given
    assert values(client, BROKER, "1", "num.io.threads") == (
        "16",
        [("num.io.threads", "16", STATIC), ("num.io.threads", "8", DEFAULT)],
    )
    assert values(client, BROKER, "1", "default.replication.factor")[0] == "1"
    assert values(client, BROKER, "1", "inter.broker.protocol.version")[0] == "3.9"
    secret = entry(client, BROKER, "1", "ssl.key.password")
    assert (secret.value, secret.is_sensitive, secret.read_only) == (None, True, False)
    assert all(synonym.value is None for synonym in secret.synonyms)
    assert described(client, BROKER, "1", "quota.consumer.default").configs == ()


# --- altering a topic's settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_a_topics_setting_is_altered_immediately_and_for_good(broker, client, version):
    assert alter(client, TOPIC, "flights", (SET, "segment.bytes", "4096"), version=version) == (0, None)
    for now in (broker, broker.restarted(clean=False)):
        assert now.services.logs.get("flights", 0).config.segment_bytes == 4096
        assert now.services.metadata.topic("flights").properties == {"retention.ms": "60000", "segment.bytes": "4096"}
    topic_id = broker.services.metadata.topic("flights").id
    assert alter(client, TOPIC, "flights", (DELETE, "segment.bytes", None), version=version) == (0, None)
    assert broker.services.logs.get("flights", 0).config.segment_bytes == 1 << 20
    assert broker.services.metadata.topic("flights").id == topic_id


def test_values_are_appended_to_lists_and_subtracted(client):
    """A value is appended to the default if the setting has no value (KIP-339)."""

    def policy():
        return entry(client, TOPIC, "flights", "cleanup.policy").value

    assert alter(client, TOPIC, "flights", (APPEND, "cleanup.policy", "compact")) == (0, None)
    assert policy() == "delete,compact"
    assert alter(client, TOPIC, "flights", (APPEND, "cleanup.policy", "compact")) == (0, None)
    assert policy() == "delete,compact"
    assert alter(client, TOPIC, "flights", (SUBTRACT, "cleanup.policy", "delete")) == (0, None)
    assert policy() == "compact"
    assert alter(client, TOPIC, "flights", (SUBTRACT, "cleanup.policy", "compact")) == (0, None)
    assert policy() == "", "everything stays"
    assert alter(client, TOPIC, "flights", (APPEND, "cleanup.policy", "deletes"))[0] == ErrorCode.INVALID_CONFIG
    assert alter(client, TOPIC, "flights", (APPEND, "cleanup.policy", "delete,")) == (0, None)


@pytest.mark.parametrize(
    "operation, code, reason",
    [
        ((SET, "segment.byte", "4096"), ErrorCode.INVALID_CONFIG, "did you mean segment.bytes?"),
        ((SET, "segment.bytes", "4"), ErrorCode.INVALID_CONFIG, "value 4 for configuration segment.bytes: Value must"),
        ((SET, "segment.bytes", "many"), ErrorCode.INVALID_CONFIG, "Not a number of type INT"),
        ((SET, "segment.bytes", None), ErrorCode.INVALID_REQUEST, "Null value not supported for : segment.bytes"),
        ((APPEND, "segment.bytes", "1"), ErrorCode.INVALID_CONFIG, "Can't APPEND to key segment.bytes because"),
        ((9, "segment.bytes", "1"), ErrorCode.INVALID_REQUEST, "no operation 9"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name_and_changes_nothing(broker, client, operation, code, reason):
    error_code, message = alter(client, TOPIC, "flights", operation)
    assert error_code == code and reason in message
    assert broker.services.metadata.topic("flights").properties == {"retention.ms": "60000"}


@pytest.mark.parametrize("name, code", [("", 42), ("a b", 17), ("nowhere", 3)])
def test_settings_of_no_topic_are_refused(client, name, code):
    assert alter(client, TOPIC, name, (SET, "segment.bytes", "4096"))[0] == code
    assert alter_all(client, TOPIC, name, segment_bytes="4096")[0] == code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_altering_all_settings_puts_those_not_named_back_to_their_defaults(broker, client, version):
    """AlterConfigs (KIP-133) resets them; the incremental API was made to end that."""
    assert alter_all(client, TOPIC, "flights", version, segment_bytes="4096") == (0, None)
    assert broker.services.metadata.topic("flights").properties == {"segment.bytes": "4096"}
    assert broker.services.logs.get("flights", 0).config.retention_ms == 604_800_000
    assert alter_all(client, TOPIC, "flights", version, segment_bytes=None)[0] == ErrorCode.INVALID_REQUEST


def test_validating_changes_nothing(broker, client):
    assert alter(client, TOPIC, "flights", (SET, "segment.bytes", "4096"), validate_only=True) == (0, None)
    assert alter(client, TOPIC, "flights", (SET, "segment.bytes", "1"), validate_only=True)[0] == 40
    assert alter_all(client, TOPIC, "flights", validate_only=True) == (0, None)
    assert alter(client, BROKER, "", (SET, "log.retention.ms", "5"), validate_only=True) == (0, None)
    assert broker.services.metadata.topic("flights").properties == {"retention.ms": "60000"}
    assert broker.services.config.log_retention_ms == 604_800_000


def test_a_name_stands_in_a_request_once(broker, client):
    changes = (SET, "segment.bytes", "4096"), (DELETE, "segment.bytes", None)
    error_code, message = alter(client, TOPIC, "flights", *changes)
    assert error_code == ErrorCode.INVALID_REQUEST and "segment.bytes" in message
    resource = {"resource_type": TOPIC, "resource_name": "flights", "configs": ()}
    fields = {"resources": [resource] * 2, "validate_only": False}
    for api, version in ((INCREMENTAL_ALTER_CONFIGS, 1), (ALTER_CONFIGS, 2)):
        answers = client.ask(api, version, fields).responses
        assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2
    assert broker.services.metadata.topic("flights").properties == {"retention.ms": "60000"}


@pytest.mark.parametrize(
    "name, value",
    [
        ("max.message.bytes", "9999999999"),
        ("retention.ms", "99999999999999999999"),
        ("leader.replication.throttled.replicas", "everywhere"),
        ("min.compaction.lag.ms", "11"),
        ("local.retention.ms", "-3"),
        ("segment.index.bytes", "3"),
        ("preallocate", ""),
    ],
)
def test_a_value_that_kafka_has_no_room_for_is_refused(broker, client, name, value):
    """The limits are those of ConfigDef's types, ThrottledReplicaListValidator and LogConfig (the minimum compaction
    lag may not exceed the maximum)."""
    assert alter(client, TOPIC, "flights", (SET, "max.compaction.lag.ms", "10"))[0] == 0
    error_code, message = alter(client, TOPIC, "flights", (SET, name, value))
    assert error_code == ErrorCode.INVALID_CONFIG and name in message
    assert broker.services.metadata.topic("flights").properties.get(name) != value


@pytest.mark.parametrize("value", ["", "*", "0:1", "0:1,1:1"])
def test_replicas_can_be_named_that_nothing_holds_back(client, value):
    assert alter(client, TOPIC, "flights", (SET, "leader.replication.throttled.replicas", value))[0] == 0


def test_a_list_is_shown_without_its_spaces(client):
    """Kafka shows a list as its values, separated by commas."""
    assert alter(client, TOPIC, "flights", (SET, "cleanup.policy", " delete , compact "))[0] == 0
    assert entry(client, TOPIC, "flights", "cleanup.policy").value == "delete,compact"


def test_a_disk_that_takes_no_settings_leaves_those_there_were(broker, client, monkeypatch):
    def full(path, data):
        raise StorageError(path, "No space left on device")

    monkeypatch.setattr(broker.storage, "replace", full)
    assert alter(client, TOPIC, "flights", (SET, "segment.bytes", "4096"))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert alter(client, BROKER, "1", (SET, "log.segment.bytes", "4096"))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert broker.services.logs.get("flights", 0).config.segment_bytes == 1 << 20
    assert broker.services.metadata.topic("flights").properties == {"retention.ms": "60000"}
    assert len(broker.reported) == 2


@pytest.mark.parametrize(
    "kind, code",
    [(GROUP, ErrorCode.INVALID_CONFIG), (BROKER_LOGGER, 42), (CLIENT_METRICS, 42), (0, 42), (77, 42)],
)
def test_only_topics_and_brokers_have_settings_that_can_be_altered(client, kind, code):
    assert alter(client, kind, "1", (SET, "x", "1"))[0] == code


# --- altering a broker's settings --------------------------------------------------------------------------------


def test_a_brokers_setting_is_altered_for_one_node_over_all_over_what_it_was_started_with(broker, client):
    name = "log.segment.bytes"
    assert alter(client, BROKER, "", (SET, name, "8192")) == (0, None)
    assert alter(client, BROKER, "1", (SET, name, "4096")) == (0, None)
    sources = [
        (name, "4096", DYNAMIC),
        (name, "8192", DYNAMIC_DEFAULT),
        (name, "1048576", STATIC),
        (name, "1073741824", DEFAULT),
    ]
    assert values(client, BROKER, "1", name) == ("4096", sources)
    assert values(client, TOPIC, "flights", "segment.bytes") == ("4096", sources)
    assert values(client, BROKER, "", name) == ("8192", [(name, "8192", DYNAMIC_DEFAULT)])
    assert broker.services.logs.get("flights", 0).config.segment_bytes == 4096
    again = broker.restarted()
    assert again.services.logs.get("flights", 0).config.segment_bytes == 4096
    client = again.connect()
    assert alter(client, BROKER, "1", (DELETE, name, None)) == (0, None)
    assert again.services.logs.get("flights", 0).config.segment_bytes == 8192


def test_a_topics_own_setting_goes_before_an_altered_brokers(broker, client):
    assert alter(client, BROKER, "1", (SET, "log.retention.ms", "5")) == (0, None)
    assert broker.services.logs.get("flights", 0).config.retention_ms == 60_000


@pytest.mark.parametrize("value", ["delete,", ",delete", "delete,,compact", ",", "delete, ,compact"])
def test_a_list_with_nothing_between_two_commas_is_refused(client, value):
    """Kafka refuses it too; both accept an empty list."""
    assert alter(client, TOPIC, "flights", (SET, "cleanup.policy", value))[0] == ErrorCode.INVALID_CONFIG
    assert alter(client, TOPIC, "flights", (SET, "cleanup.policy", "")) == (0, None)
    if not value.endswith(","):
        assert alter(client, TOPIC, "flights", (APPEND, "cleanup.policy", value))[0] == ErrorCode.INVALID_CONFIG


def test_values_are_appended_to_a_brokers_lists(client):
    assert alter(client, BROKER, "", (APPEND, "log.cleanup.policy", "compact")) == (0, None)
    assert entry(client, TOPIC, "flights", "cleanup.policy").value == "delete,compact"


def test_altering_all_of_a_brokers_settings_forgets_what_was_altered_before(broker, client):
    assert alter_all(client, BROKER, "1", log_retention_ms="5") == (0, None)
    assert alter_all(client, BROKER, "1", log_segment_bytes="4096") == (0, None)
    assert broker.services.config.log_retention_ms == 604_800_000


@pytest.mark.parametrize(
    "broker_name, operation, code, reason",
    [
        ("1", (SET, "node.id", "2"), 42, "Cannot update these configs dynamically: [node.id]; it is read once"),
        ("1", (SET, "flakelog.groups.max", "9"), 42, "start: set it in the broker's own file, and restart the broker"),
        ("1", (SET, "listeners", "PLAINTEXT://:1"), 42, "Cannot update these configs dynamically: [listeners]"),
        ("1", (SET, "request.timeout.ms", "4"), 42, "dynamically: [request.timeout.ms]; it has no effect here: req"),
        ("1", (SET, "log.retentionms", "2"), ErrorCode.INVALID_CONFIG, "did you mean log.retention.ms?"),
        ("1", (SET, "log.retention.ms", "long"), 42, "Invalid value long for configuration log.retention.ms: Not a nu"),
        ("2", (SET, "log.retention.ms", "5"), 42, "Unexpected broker id, expected 1, but received 2"),
        ("1", (SET, "num.io.threads", "0"), 42, "Invalid value 0 for configuration num.io.threads: Value must be at"),
        ("", (SET, "num.io.threads", "x"), 42, "num.io.threads: Not a number of type INT"),
        ("", (SET, "ssl.protocol", "TLS"), 42, "at default cluster level, broker id must be specified: [ssl.protocol]"),
        ("1", (SET, "ssl.key.password", "x"), 42, "only per-listener using the listener prefix: [ssl.key.password]"),
        ("", (SET, "listener.name.a.ssl.key.password", "x"), 42, "at default cluster level, broker id must be"),
        ("1", (SET, "leader.replication.throttled.rate", "-1"), 42, "Value must be at least 0"),
    ],
)
def test_what_cannot_be_altered_of_a_broker_is_refused_by_name(client, broker_name, operation, code, reason):
    error_code, message = alter(client, BROKER, broker_name, operation)
    assert error_code == code and reason in message


def test_a_setting_of_another_part_of_the_server_is_refused_with_the_place_where_it_can_be_set(broker, client):
    broker.services.fixed_configs = (IdgenConfig(),)
    error_code, message = alter(client, BROKER, "1", (SET, "flakelog.ids.log.max.ahead.ms", "60000"))
    assert error_code == ErrorCode.INVALID_REQUEST
    assert message == (
        "Cannot update these configs dynamically: [flakelog.ids.log.max.ahead.ms]; it is read once, at the start: "
        "set it in the broker's own file, and restart the broker"
    )


def test_max_connections_holds_from_the_next_connection_on(broker, client):
    assert alter(client, BROKER, "1", (SET, "max.connections", "1")) == (0, None)
    assert "max.connections is 1" in broker.connect().closed
    assert alter(client, BROKER, "1", (DELETE, "max.connections", None)) == (0, None)
    assert broker.connect().closed is None


def test_the_limits_of_an_address_and_of_the_rate_hold_from_the_next_connection_on(broker, client):
    assert alter(client, BROKER, "", (SET, "max.connections.per.ip", "1")) == (0, None)
    assert "it has 1 connections already" in broker.connect().closed
    assert alter(client, BROKER, "", (SET, "max.connections.per.ip.overrides", "10.0.0.7:9")) == (0, None)
    assert broker.connect().closed is None
    assert alter(client, BROKER, "", (SET, "max.connection.creation.rate", "1")) == (0, None)
    broker.connect(), broker.connect()
    assert broker.engine.accept_pause_ms("", broker.now) > 0


def test_a_shorter_flush_interval_holds_for_what_is_in_the_log_already(broker, client):
    assert alter(client, TOPIC, "flights", (SET, "flush.ms", "50000")) == (0, None)
    client.produce("flights", b"a")
    log = broker.services.logs.get("flights", 0)
    broker.at(broker.now_ms + 100)
    assert log.unflushed == 1
    assert alter(client, TOPIC, "flights", (SET, "flush.ms", "1000")) == (0, None)
    broker.at(broker.now_ms + 1_000)
    assert log.unflushed == 0


def test_the_cleaner_pauses_as_long_as_it_is_told_now(broker, client):
    assert alter(client, BROKER, "", (SET, "log.cleaner.backoff.ms", "700")) == (0, None)
    broker.at(broker.now_ms + 20_000)
    assert broker.services.logs.next_deadline_ms(broker.now_ms) <= broker.now_ms + 700


def test_what_another_version_kept_and_this_one_does_not_know_stops_nothing(broker, client):
    assert alter(client, BROKER, "", (SET, "log.retention.ms", "5000")) == (0, None)
    altered = {"": {"log.retention.ms": "5000", "a.setting.to.come": "1"}}
    broker.change(Staged(Change(broker_properties=altered)))
    client = broker.restarted().connect()
    assert [config.name for config in described(client, BROKER, "").configs] == ["log.retention.ms"]
    assert entry(client, BROKER, "1", "log.retention.ms").value == "5000"
    refused, message = alter(client, BROKER, "", (SET, "log.retention.ms", "6000"))
    assert refused == ErrorCode.INVALID_CONFIG and "a.setting.to.come" in message
    changes = (SET, "log.retention.ms", "6000"), (DELETE, "a.setting.to.come", None)
    assert alter(client, BROKER, "", *changes) == (0, None)
