"""How brokers of a cluster connect to each other, as their settings say."""

import pytest

from broker.client.security.token_request import JWT_BEARER
from flakelog.inter_broker import security_of_brokers
from flakelog.settings import Settings
from idgen.settings import InvalidSetting

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
BASE = {
    "zookeeper.connect": "localhost:2181",
    "listeners": "CLIENTS://127.0.0.1:9092,BROKERS://127.0.0.1:9093",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SASL_SSL,SSL:SSL",
    "inter.broker.listener.name": "BROKERS",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/etc/flakelog/broker.pem",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    JAAS: f'{MODULE} required username="broker" password="secret";',
}


def with_properties(**more):
    properties = BASE | {name.replace("_", "."): value for name, value in more.items()}
    return {name: value for name, value in properties.items() if value is not None}


def security(**more):
    properties = with_properties(**more)
    return security_of_brokers(Settings(properties).server, properties)


def test_a_broker_logs_in_as_the_user_of_its_listeners_jaas_text_and_shows_its_listeners_certificate():
    inter_broker = security()
    assert (inter_broker.protocol, inter_broker.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (inter_broker.credentials.user, inter_broker.credentials.password) == ("broker", "secret")
    assert inter_broker.tls.ssl_keystore_location == "/etc/flakelog/broker.pem" and inter_broker.checks_name


def test_the_listeners_own_settings_go_before_those_of_all():
    own = {"listener_name_brokers_ssl_endpoint_identification_algorithm": ""}
    assert not security(**own).checks_name
    assert security(listener_name_clients_ssl_endpoint_identification_algorithm="").checks_name


def test_brokers_of_a_plain_listener_have_no_security():
    assert security(inter_broker_listener_name="CLIENTS", sasl_mechanism_inter_broker_protocol=None) is None


def test_the_older_setting_names_a_protocol_whose_listener_has_its_name():
    listeners = {"listeners": "CLIENTS://127.0.0.1:9092,SSL://127.0.0.1:9093", JAAS: None}
    inter_broker = security(inter_broker_listener_name=None, security_inter_broker_protocol="SSL", **listeners)
    assert inter_broker.protocol == "SSL" and not inter_broker.asks_login


@pytest.mark.parametrize(
    "more, wrong",
    [
        (
            {"security_inter_broker_protocol": "SASL_SSL"},
            "inter.broker.listener.name=BROKERS: security.inter.broker.protocol=SASL_SSL is given too; give one of",
        ),
        (
            {"inter_broker_listener_name": None, "security_inter_broker_protocol": "SASL_SSL"},
            "security.inter.broker.protocol=SASL_SSL: its listener must be of listeners, which are CLIENTS, BROKERS",
        ),
        (
            {"sasl_mechanism_inter_broker_protocol": None},
            "sasl.mechanism.inter.broker.protocol=GSSAPI: must be one of sasl.enabled.mechanisms of the listener of",
        ),
        (
            {"sasl_mechanism_inter_broker_protocol": "PLAIN"},
            "sasl.mechanism.inter.broker.protocol=PLAIN: must be one of sasl.enabled.mechanisms of the listener of",
        ),
        (
            {JAAS: None},
            f'{JAAS}=: SCRAM-SHA-512 needs {MODULE} required username="..." password="...";',
        ),
        (
            {JAAS: f'{MODULE} required username="broker";'},
            f'{JAAS}=(hidden): it has no password: add password="..."',
        ),
    ],
)
def test_settings_with_which_brokers_could_not_reach_each_other_are_refused(more, wrong):
    with pytest.raises(InvalidSetting) as refused:
        Settings(with_properties(**more))
    assert str(refused.value).startswith(wrong)


OAUTH = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://id.example/keys",
}


def test_tokens_for_other_brokers_come_by_the_settings_of_the_mechanism_then_the_listener_then_all():
    """The names are those of a client; Kafka looks for them in this order."""
    name = "sasl.oauthbearer.token.endpoint.url"
    of_all, of_listener = {name: "file:///of/all"}, {f"listener.name.brokers.{name}": "file:///of/listener"}
    of_mechanism = {f"listener.name.brokers.oauthbearer.{name}": "file:///of/mechanism"}
    of_others = {f"listener.name.clients.{name}": "file:///other"}
    tokens = BASE | of_others | OAUTH
    files = []
    for properties in (of_all, of_all | of_listener, of_all | of_listener | of_mechanism):
        inter_broker = security_of_brokers(Settings(tokens | properties).server, tokens | properties)
        files.append(inter_broker.credentials.token_file)
    assert files == ["/of/all", "/of/listener", "/of/mechanism"]
    with pytest.raises(InvalidSetting, match="^sasl.mechanism.inter.broker.protocol=OAUTHBEARER: give one of "):
        Settings(tokens)
    secret = {f"listener.name.brokers.oauthbearer.{name}": "https://id.example/token"}
    with pytest.raises(InvalidSetting, match="^sasl.oauthbearer.client.credentials.client.id=: .* needs the id"):
        Settings(tokens | secret)


def test_tokens_for_other_brokers_come_by_an_assertion_too():
    """KIP-1139, with the settings of the mechanism."""
    prefix = "listener.name.brokers.oauthbearer.sasl.oauthbearer"
    properties = BASE | OAUTH | {
        f"{prefix}.token.endpoint.url": "https://id.example/token",
        f"{prefix}.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
    }
    with pytest.raises(InvalidSetting, match="^sasl.oauthbearer.assertion.private.key.file=: an assertion needs the"):
        Settings(properties)
    properties |= {f"{prefix}.assertion.private.key.file": "key.pem"}
    request = security_of_brokers(Settings(properties).server, properties).credentials.token_request
    assert request.grant == JWT_BEARER and request.assertion.sasl_oauthbearer_assertion_private_key_file == "key.pem"
    with pytest.raises(InvalidSetting, match=f"^{prefix}.assertion.algorithm=none: must be one of RS256, ES256"):
        Settings(properties | {f"{prefix}.assertion.algorithm": "none"})


def test_a_server_alone_needs_no_login_of_brokers():
    properties = with_properties(zookeeper_connect=None, sasl_mechanism_inter_broker_protocol=None)
    assert Settings(properties).server.inter_broker_listener == "BROKERS"
