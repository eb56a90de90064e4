"""OAUTHBEARER at a real server: stock clients with tokens of an identity provider, and tokens that prove nothing."""

import asyncio
import json
import time
from urllib.parse import parse_qsl
from urllib.request import urlopen

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaTokenProvider

from broker.client.blocking import Client
from broker.engine.api_table import APIS
from broker.security.sasl.web_keys import decoded
from broker.wire.errors import ErrorCode
from tests.broker.web_tokens import SigningKey, key_set
from tests.compat import stock_java
from tests.compat.clients import stock_go, stock_node
from tests.compat.identity_provider import (
    AUDIENCE,
    BY_JWT_BEARER,
    CLIENT_ID,
    CLIENT_SECRET,
    ISSUER,
    LOGIN_HANDLER,
    OAUTH_MODULE,
    IdentityProvider,
    assertion_settings,
    rules_of_tokens,
)
from tests.compat.sasl_connection import SaslConnection
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.compat.stock_process import ClientError
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS, until

VALUES = [f"value {number}" for number in range(20)]
LIST_GROUPS = 16
TOOLS = "org.apache.kafka.tools"
ALLOWED_FILES = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.files"
PREFIX = "listener.name.sasl_plaintext.oauthbearer.sasl"
INVALID = b'{"status":"invalid_token"}'


@pytest.fixture(scope="module")
def provider():
    made = IdentityProvider()
    yield made
    made.close()


def settings(url):
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "group.initial.rebalance.delay.ms": "0",
        **rules_of_tokens(url, "listener.name.sasl_plaintext"),
    }


def over_tls(files, url):
    """Return the settings that add a listener of SASL_SSL."""
    return rules_of_tokens(url, "listener.name.sasl_ssl") | {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.broker,
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(provider, files, tmp_path_factory):
    own = settings(provider.url) | over_tls(files, provider.url)
    with ServerProcess(tmp_path_factory.mktemp("data"), own) as server:
        yield server


@pytest.fixture
def address(server):
    return server.addresses["broker.SASL_PLAINTEXT"]


CONFIG = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "log_level": 0}


def test_librdkafka(provider, address, name):
    config = CONFIG | {"bootstrap.servers": address}
    producer = confluent_kafka.Producer(config | {"oauth_cb": lambda _: (provider.token(), time.time() + 600)})
    producer.produce(name, "value")
    assert producer.flush(SECONDS) == 0
    errors = []
    expired = provider.token(exp=int(time.time()) - 60)
    wrong = {"oauth_cb": lambda _: (expired, time.time() + 600), "error_cb": errors.append}
    wrong_producer = confluent_kafka.Producer(config | wrong)
    until(lambda: [wrong_producer.poll(0.05)] and errors)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION and "invalid_token" in errors[0].str()


def test_kafka_python(provider, address, name):
    class Tokens(KafkaTokenProvider):
        def token(self):
            return provider.token()

    config = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    producer = kafka.KafkaProducer(bootstrap_servers=address, sasl_oauth_token_provider=Tokens(), **config)
    assert producer.send(name, b"value").get(SECONDS).offset == 0
    producer.close()


def test_aiokafka(provider, address, name):
    class Tokens(AbstractTokenProvider):
        async def token(self):
            return provider.token()

    async def produce():
        config = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
        made = aiokafka.AIOKafkaProducer(bootstrap_servers=address, sasl_oauth_token_provider=Tokens(), **config)
        async with made as producer:
            return await producer.send_and_wait(name, b"value")

    assert asyncio.run(produce()).offset == 0


# --- peers in other languages: a token of each is good, and another has expired ----------------------------------

PROTOCOLS = "SASL_PLAINTEXT", pytest.param("SASL_SSL", marks=pytest.mark.soak)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def expired(provider):
    return provider.token(exp=int(time.time()) - 60)


def failures(server):
    """Return the number of logins that failed."""
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    name = 'flakelog_sasl_authentications_total{outcome="failed"} '
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def address_and_topic(server, files, protocol, topic):
    """Return the address of a listener by a name that its certificate has, and the topic, for a peer."""
    return {"address": f"localhost:{server.addresses[f'broker.{protocol}'].rpartition(':')[2]}", "topic": topic}


@pytest.mark.skipif(bool(stock_go.missing()), reason=stock_go.missing() or "")
@each_protocol
def test_franz_go(provider, server, files, protocol, name):
    with Client(server.address) as client:
        client.create_topic(name)
    call = address_and_topic(server, files, protocol, name) | {"mechanism": "OAUTHBEARER"}
    call |= {"versions": {key: api.newest for key, api in APIS.items()}}
    call |= {"ca": files.ca.read_text()} if protocol == "SASL_SSL" else {}
    with stock_go.stock_go() as go:
        go.ask("produce", values=VALUES, token=provider.token(), **call)
        read = go.ask("read", group=name, count=len(VALUES), heartbeat=100, token=provider.token(), **call)
        assert sorted(read) == sorted(VALUES)
        before = failures(server)
        with pytest.raises(ClientError, match="unexpected data in oauth response"):  # and it acknowledges nothing
            go.ask("ask", key=LIST_GROUPS, fields={}, token=expired(provider), **call)
        until(lambda: failures(server) > before, "the failure in the metrics")


@pytest.mark.skipif(bool(stock_node.missing()), reason=stock_node.missing() or "")
@each_protocol
def test_kafkajs(provider, server, files, protocol, name):
    call = address_and_topic(server, files, protocol, name)
    call |= {"tls": {"ca": [files.ca.read_text()]}} if protocol == "SASL_SSL" else {}
    with stock_node.stock_node() as node:
        right = {"token": provider.token()}
        node.ask("kafkajs.createTopic", partitions=1, sasl=right, **call)
        node.ask("kafkajs.produce", values=VALUES, sasl=right, **call)
        records = node.ask("kafkajs.read", group=name, count=len(VALUES), sasl=right, **call)
        assert [record[3] for record in records] == VALUES


@pytest.mark.skipif(bool(stock_node.missing()), reason=stock_node.missing() or "")
@pytest.mark.soak
def test_kafkajs_with_an_expired_token(provider, server, files, name):
    """It takes each answer without an error code for a yes, sends its next request, and tries again for 10 s."""
    before = failures(server)
    call = address_and_topic(server, files, "SASL_PLAINTEXT", name) | {"sasl": {"token": expired(provider)}}
    with stock_node.stock_node() as node, pytest.raises(ClientError, match="Closed connection"):
        node.ask("kafkajs.produce", values=VALUES, **call)
    until(lambda: failures(server) > before, "the failure in the metrics")


@pytest.mark.skipif(bool(stock_java.missing()), reason=stock_java.missing() or "")
@each_protocol
@pytest.mark.parametrize("source", ["file", pytest.param("endpoint", marks=pytest.mark.soak)])
def test_console_tools_of_kafka(provider, server, files, protocol, source, name, tmp_path):
    """Kafka's own callback handler gets the token; a property of the JVM names the URLs that it may use."""
    token = tmp_path / "token"
    token.write_text(provider.token())
    url = token.as_uri().replace("file:///", "file:/") if source == "file" else provider.token_url
    options = f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}"' if source == "endpoint" else ""
    properties = tmp_path / "client.properties"
    given = {
        "security.protocol": protocol,
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTH_MODULE} required {options};",
        "sasl.login.callback.handler.class": LOGIN_HANDLER,
        "sasl.oauthbearer.token.endpoint.url": url,
    }
    if protocol == "SASL_SSL":
        given |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": files.ca}
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    address = address_and_topic(server, files, protocol, name)["address"]
    common = "--bootstrap-server", address, "--topic", name, "--command-config", properties
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}", f"{ALLOWED_FILES}={token}"
    with stock_java.StockJava(*allowed) as java:
        produced = java.tool(f"{TOOLS}.ConsoleProducer", *common, stdin="".join(f"{value}\n" for value in VALUES))
        assert produced.exit == 0, produced
        reading = *common, "--from-beginning", "--max-messages", len(VALUES)
        consumed = java.tool(f"{TOOLS}.consumer.ConsoleConsumer", *reading)
        assert consumed.stdout.splitlines() == VALUES, consumed
        if source == "file":
            token.write_text(expired(provider))
            refused = java.tool(f"{TOOLS}.consumer.ConsoleConsumer", *reading)
            assert "SaslAuthenticationException" in refused.stdout + refused.stderr


@pytest.mark.skipif(bool(stock_java.missing()), reason=stock_java.missing() or "")
@pytest.mark.soak
@pytest.mark.parametrize("more", [{}, BY_JWT_BEARER], ids=["client credentials", "jwt bearer"])
def test_kafkas_assertions_are_those_of_our_clients(provider, server, files, more, name, tmp_path):
    """Both send the same fields to the identity provider, and an assertion of the same header and claims."""
    key = tmp_path / "key.pem"
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    given = login | assertion_settings(provider, key) | more | {"sasl.oauthbearer.scope": "read"}
    address = address_and_topic(server, files, "SASL_PLAINTEXT", name)["address"]
    provider.forms.clear()
    with Client(address, security=given) as client:
        client.create_topic(name, 1)
    kafkas = given | {
        "sasl.jaas.config": f"{OAUTH_MODULE} required;",
        "sasl.login.callback.handler.class": LOGIN_HANDLER,
    }
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in kafkas.items()))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.token_url}", f"{ALLOWED_FILES}={key}"
    with stock_java.StockJava(*allowed) as java:
        arguments = "--bootstrap-server", address, "--topic", name, "--command-config", properties
        produced = java.tool(f"{TOOLS}.ConsoleProducer", *arguments, stdin="value\n")
        assert produced.exit == 0, produced
    own, of_kafka = map(asserted, (provider.forms[0], provider.forms[-1]))
    assert len(provider.forms) >= 2 and own == of_kafka


def asserted(form):
    """Return the fields of a request for a token, with the header and the claims of its assertion; times are left out.
    """
    fields = dict(parse_qsl(form))
    header, claims, _ = fields.pop("client_assertion" if "client_assertion" in fields else "assertion").split(".")
    shown = json.loads(decoded(claims))
    spans = shown.pop("exp") - shown["iat"], shown.pop("iat") - shown.pop("nbf")
    return fields, json.loads(decoded(header)), shown | {"jti": len(shown["jti"])}, spans


# --- tokens by hand ----------------------------------------------------------------------------------------------


def login(address, token, source="127.0.4.1"):
    """Return the answers to a token, and to its acknowledgement if there is an error."""
    with SaslConnection(address, source=source) as connection:
        connection.shake_hands("OAUTHBEARER")
        answer = connection.send_token(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        return [answer, *([connection.send_token(b"\x01")] if answer.auth_bytes else [])]


def test_the_session_lasts_as_long_as_the_token(provider, address):
    (answer,) = login(address, provider.token())
    assert answer.error_code == 0 and 0 < answer.session_lifetime.total_seconds() <= 600


@pytest.mark.parametrize(
    ("source", "claims", "reason"),
    [
        ("127.0.4.2", {"exp": 1_000}, "the token expired"),
        ("127.0.4.3", {"nbf": 1 << 33}, "the token is not valid for another"),
        ("127.0.4.4", {"aud": "other"}, "the token is for the audience 'other'"),
        ("127.0.4.5", {"iss": "https://evil.example"}, "the token is of the issuer 'https://evil.example'"),
        ("127.0.4.6", {"sub": ""}, "the token names no user"),
    ],
)
def test_a_token_with_another_claim_fails_and_the_log_says_why(provider, server, address, source, claims, reason):
    first, second = login(address, provider.token(**claims), source)
    assert first.error_code == 0 and first.auth_bytes == INVALID
    assert second.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and second.error_message == INVALID.decode()
    server.wait_for_log(f"closed: {reason}")


def test_a_client_that_leaves_after_the_refusal_of_its_token_is_named_with_the_reason(provider, server, address):
    """franz-go leaves so, without the acknowledgement of RFC 7628."""
    with SaslConnection(address, source="127.0.4.9") as connection:
        connection.shake_hands("OAUTHBEARER")
        connection.send_token(f"n,,\x01auth=Bearer {expired(provider)}\x01\x01".encode())
        peer = "{}:{}".format(*connection.socket.getsockname())
    server.wait_for_log(f"connection of {peer} closed: the token expired")


def test_a_token_of_another_key_fails_until_the_provider_publishes_that_key(provider, server, address):
    new = SigningKey("RS256", key_id="new")
    assert len(login(address, provider.token(new))) == 2
    provider.key = new
    until(lambda: len(login(address, provider.token(new))) == 1, what="the new key is fetched")


def test_a_provider_that_cannot_be_reached_is_named_and_asked_again(tmp_path):
    file = tmp_path / "keys.json"
    key = SigningKey()
    with ServerProcess(tmp_path / "data", settings(file.as_uri())) as server:
        server.wait_for_log(f"the keys at {file.as_uri()} cannot be fetched, which is tried again: ")
        file.write_text(key_set(key))
        server.wait_for_log(f"the keys at {file.as_uri()} were fetched")
        now = int(time.time())
        claims = {"sub": "ada", "iss": ISSUER, "aud": AUDIENCE, "iat": now, "exp": now + 600}
        assert len(login(server.addresses["broker.SASL_PLAINTEXT"], key.token(claims))) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({f"{PREFIX}.oauthbearer.jwks.endpoint.url": ""}, "OAUTHBEARER needs the keys of the identity provider"),
        ({f"{PREFIX}.oauthbearer.jwks.endpoint.url": "ftp://a/b"}, "must be https://..., http://... or file:///..."),
        ({f"{PREFIX}.server.callback.handler.class": "a.B"}, "it would check no password; leave it out"),
        ({"sasl.oauthbearer.clock.skew.seconds": "-1"}, "must be at least 0"),
        ({"sasl.oauthbearer.jwt.validator.class": "a.B"}, "tokens would be checked in another way; leave it out"),
    ],
)
def test_a_start_that_cannot_work_is_refused_by_name(provider, tmp_path, change, reason):
    with pytest.raises(DidNotStart) as error:
        ServerProcess(tmp_path / "data", settings(provider.url) | change).start()
    assert reason in error.value.stderr and next(iter(change)) in error.value.stderr
