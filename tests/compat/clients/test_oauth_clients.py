"""OAUTHBEARER at a real server: stock clients with tokens of an identity provider, and tokens that prove nothing."""

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaTokenProvider

from broker.wire.errors import ErrorCode
from tests.broker.web_tokens import SigningKey, key_set
from tests.compat.sasl_connection import SaslConnection
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.patience import SECONDS, until

ISSUER, AUDIENCE = "https://id.example", "kafka"
PREFIX = "listener.name.sasl_plaintext.oauthbearer.sasl"
INVALID = b'{"status":"invalid_token"}'
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


class IdentityProvider:
    """An HTTP server with a key set, and the tokens that it signs."""

    def __init__(self):
        provider = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(key_set(provider.key).encode())

            def log_message(self, *_):
                pass

        self.key = SigningKey()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"

    def token(self, key=None, **claims):
        now = int(time.time())
        standard = {"sub": "ada", "iss": ISSUER, "aud": [AUDIENCE], "iat": now, "exp": now + 600}
        return (key or self.key).token(standard | claims)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def provider():
    made = IdentityProvider()
    yield made
    made.close()


def settings(url):
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}.oauthbearer.jwks.endpoint.url": url,
        f"{PREFIX}.oauthbearer.expected.audience": AUDIENCE,
        f"{PREFIX}.oauthbearer.expected.issuer": ISSUER,
        f"{PREFIX}.server.callback.handler.class": VALIDATOR,
    }


@pytest.fixture(scope="module")
def server(provider, tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("data"), settings(provider.url)) as server:
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
