"""Settings of brokers that are dynamic in Kafka and have no effect here: altered as in Kafka, kept and told."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker
from tests.broker.handlers.test_configs import (
    APPEND,
    BROKER,
    DEFAULT,
    DELETE,
    DYNAMIC,
    DYNAMIC_DEFAULT,
    SET,
    alter,
    alter_all,
    entry,
    values,
)


@pytest.fixture
def broker():
    return EngineBroker()


@pytest.fixture
def client(broker):
    return broker.connect()


@pytest.mark.parametrize(
    "broker_name, name, value, default",
    [
        ("", "leader.replication.throttled.rate", "1000", None),
        ("1", "follower.replication.throttled.rate", "1000", None),
        ("1", "log.cleaner.threads", "2", "1"),
        ("", "num.io.threads", "16", "8"),
        ("1", "ssl.protocol", "TLSv1.2", "TLSv1.3"),
        ("1", "listener.name.plaintext.ssl.provider", "SunJSSE", None),
    ],
)
def test_what_is_dynamic_in_kafka_and_unused_here_is_kept_and_told(broker, client, broker_name, name, value, default):
    """Scripts and `kafka-reassign-partitions --throttle` alter such settings, and Kafka accepts it."""
    before = entry(client, BROKER, "1", name) if default is not None else None
    assert before is None or (before.read_only, before.value) == (False, default)
    assert alter(client, BROKER, broker_name, (SET, name, value)) == (0, None)
    source = DYNAMIC if broker_name else DYNAMIC_DEFAULT
    for node in (broker, broker.restarted()):
        config = entry(node.connect(), BROKER, "1", name)
        assert (config.value, config.config_source, config.read_only) == (value, source, False)
        assert config.documentation.startswith("Not used here: ")
        sources = [(name, value, source)] + ([(name, default, DEFAULT)] if default is not None else [])
        assert values(node.connect(), BROKER, "1", name) == (value, sources)
    if not broker_name:
        assert values(client, BROKER, "", name) == (value, [(name, value, source)])
    assert alter(client, BROKER, broker_name, (DELETE, name, None)) == (0, None)
    assert entry(client, BROKER, "1", name).value == default if default is not None else True


@pytest.mark.parametrize("reference", ["${file:/etc/passwd:root}", "${dir:/run/secrets:key}", "${env:HOME}"])
@pytest.mark.parametrize("node", ["", "1"])
def test_a_client_reads_no_file_or_variable_of_the_broker_by_a_setting(broker, client, node, reference):
    """Kafka 4.3.1 resolves it where the alteration has `config.providers` too, and DescribeConfigs shows the text."""
    reason = "log.cleanup.policy refers to a file, directory or variable: a value that is altered at run time is not"
    for operation in (SET, APPEND):
        code, message = alter(client, BROKER, node, (operation, "log.cleanup.policy", f"compact,{reference}"))
        assert code == ErrorCode.INVALID_REQUEST and message.startswith(reason)
    code, message = alter_all(client, BROKER, node, log_cleanup_policy=reference)
    assert code == ErrorCode.INVALID_REQUEST and message.startswith(reason)
    provider = {"config.providers": "file", "log.retention.ms": reference}
    code, _ = alter(client, BROKER, node, *((SET, name, value) for name, value in provider.items()))
    assert code and entry(client, BROKER, "1", "log.retention.ms").value is None


def test_a_secret_of_a_listener_is_kept_and_not_told(broker, client):
    name = "listener.name.plaintext.ssl.key.password"
    assert alter(client, BROKER, "1", (SET, name, "secret")) == (0, None)
    config = entry(client, BROKER, "1", name)
    assert (config.value, config.is_sensitive) == (None, True)
    assert all(synonym.value is None for synonym in config.synonyms)


def test_suites_are_appended_to_those_of_tls_and_unknown_ones_refused(client):
    suite, other = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    assert alter(client, BROKER, "1", (SET, "ssl.cipher.suites", suite)) == (0, None)
    assert alter(client, BROKER, "1", (APPEND, "ssl.cipher.suites", other)) == (0, None)
    assert entry(client, BROKER, "1", "ssl.cipher.suites").value == f"{suite},{other}"
    code, message = alter(client, BROKER, "1", (APPEND, "ssl.cipher.suites", "A"))
    assert code == ErrorCode.INVALID_REQUEST and "A is not served" in message
    assert entry(client, BROKER, "1", "ssl.cipher.suites").value == f"{suite},{other}"


def test_a_store_of_a_listener_is_altered_and_told(broker, client):
    name = "listener.name.plaintext.ssl.keystore.location"
    assert alter(client, BROKER, "1", (SET, name, "/k")) == (0, None)
    for node in (broker, broker.restarted()):
        shown = entry(node.connect(), BROKER, "1", name)
        assert (shown.value, shown.config_source, shown.read_only) == ("/k", DYNAMIC, False)
