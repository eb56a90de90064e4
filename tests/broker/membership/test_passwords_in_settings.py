"""Passwords in settings that are altered at run time are encrypted in the coordinator, as by Kafka 3.9."""

import json

from broker.membership.entity_settings import BROKER_TYPE
from broker.security.password_encoder import EncryptedPasswords
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import INCREMENTAL_ALTER_CONFIGS
from tests.broker.engine_cluster import EngineCluster

NAME, PASSWORD = "listener.name.brokers.ssl.key.password", "marked-secret"


def alter(cluster, broker_id, name=NAME, value=PASSWORD):
    configs = [{"name": name, "config_operation": 0, "value": value}]
    resource = {"resource_type": 4, "resource_name": str(broker_id), "configs": configs}
    request = {"resources": [resource], "validate_only": False}
    return cluster.client(broker_id).ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0]


def stored(cluster, broker_id):
    """Return the settings of a broker in the coordinator."""
    return json.loads(cluster.ensemble.node(f"/config/{BROKER_TYPE}/{broker_id}").data)["config"]


def known_settings(cluster, broker_id):
    return cluster.nodes[broker_id].member.image.broker_properties.get(str(broker_id), {})


def encrypted(secret="encoder-secret", old_secret=None):
    return EncryptedPasswords(secret, bytes, old_secret)


def test_the_broker_has_the_password_and_the_coordinator_its_encrypted_text():
    cluster = EngineCluster(2, encrypted())
    assert alter(cluster, 2).error_code == 0
    text = stored(cluster, 2)[NAME]
    assert PASSWORD not in text and encrypted().decode(text) == PASSWORD
    assert known_settings(cluster, 2) == {NAME: PASSWORD}
    assert alter(cluster, 2, "log.retention.ms", "88888").error_code == 0
    assert stored(cluster, 2) == {NAME: text, "log.retention.ms": "88888"}, "what another setting has is kept as it is"


def test_the_password_is_read_again_after_a_restart_and_with_the_secret_of_before():
    cluster = EngineCluster(2, encrypted())
    alter(cluster, 2)
    cluster.stop(2)
    cluster.passwords = encrypted("new-secret", "encoder-secret")
    cluster.restart(2)
    assert known_settings(cluster, 2) == {NAME: PASSWORD}


def test_a_password_that_does_not_decode_is_ignored_and_named():
    cluster = EngineCluster(2, encrypted())
    alter(cluster, 2)
    cluster.stop(2)
    cluster.passwords = encrypted("guessed")
    cluster.restart(2)
    assert known_settings(cluster, 2) == {}
    (line,) = [line for line in cluster.nodes[2].reported if NAME in line]
    assert f"/config/brokers/2: {NAME}: it does not decode" in line and line.endswith("the setting is ignored")


def test_without_a_secret_no_password_is_taken():
    cluster = EngineCluster(2, encrypted(None))
    answer = alter(cluster, 2)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "Password encoder secret not configured" in answer.error_message and PASSWORD not in answer.error_message
    assert cluster.ensemble.node("/config/brokers/2") is None
    assert alter(cluster, 2, "log.retention.ms", "88888").error_code == 0


def test_a_directory_of_one_machine_keeps_passwords_as_a_server_alone_does():
    cluster = EngineCluster(2)
    assert alter(cluster, 2).error_code == 0
    assert stored(cluster, 2) == {NAME: PASSWORD}
