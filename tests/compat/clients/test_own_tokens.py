"""Our own clients at a listener that takes tokens (OAUTHBEARER): from a file, a function, and an identity provider."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qsl

import pytest
from twisted.internet import reactor
from twisted.internet.threads import blockingCallFromThread

from broker.client.asyncio import AsyncClient
from broker.client.blocking import Client
from broker.client.errors import NotAuthenticated
from broker.client.twisted import TwistedClient
from flakelog import Consumer, Producer
from spout.reactor_thread import ensure_running
from tests.broker.web_tokens import SigningKey
from tests.compat.identity_provider import (
    BY_JWT_BEARER,
    CLIENT_ASSERTION,
    CLIENT_ID,
    CLIENT_SECRET,
    JWT_BEARER,
    OAUTH_MODULE,
    IdentityProvider,
    assertion_settings,
    rules_of_tokens,
)
from tests.compat.served_data import batch_of
from tests.compat.server_process import ServerProcess
from tests.patience import SECONDS, until

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


@pytest.fixture
def provider():
    made = IdentityProvider()
    yield made
    made.close()


@pytest.fixture(scope="module")
def keys():
    made = IdentityProvider()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(keys, tmp_path_factory):
    own = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.clock.skew.seconds": "0",
        **rules_of_tokens(keys.url, "listener.name.sasl_plaintext"),
    }
    with ServerProcess(tmp_path_factory.mktemp("data"), own) as server:
        with Client(server.address) as client:
            client.create_topic("greetings", 1)
            client.produce("greetings", 0, batch_of(b"hello"))
        yield server


@pytest.fixture
def address(server, provider, keys):
    provider.key = keys.key
    return server.addresses["broker.SASL_PLAINTEXT"]


def by_blocking(servers, security, repeat_s=0.0):
    """Read the topic, again and again for some time; return the values."""
    with Client(servers, timeout_ms=SECONDS * 1_000, security=security) as client:
        end = time.monotonic() + repeat_s
        while True:
            records, _ = client.fetch("greetings", 0, 0)
            if time.monotonic() >= end:
                return [record.value for record in records]


def by_asyncio(servers, security, repeat_s=0.0):
    async def read():
        async with AsyncClient(servers, timeout_ms=SECONDS * 1_000, security=security) as client:
            end = time.monotonic() + repeat_s
            while True:
                records, _ = await client.fetch("greetings", 0, 0)
                if time.monotonic() >= end:
                    return [record.value for record in records]

    return asyncio.run(read())


def by_twisted(servers, security, repeat_s=0.0):
    ensure_running(reactor)
    client = blockingCallFromThread(reactor, lambda: TwistedClient(servers, reactor, security=security))
    try:
        end = time.monotonic() + repeat_s
        while True:
            records, _ = blockingCallFromThread(reactor, client.fetch, "greetings", 0, 0)
            if time.monotonic() >= end:
                return [record.value for record in records]
    finally:
        blockingCallFromThread(reactor, client.close)


FACES = by_blocking, by_asyncio, by_twisted
each_face = pytest.mark.parametrize("face", FACES)


def at_provider(provider, secret=CLIENT_SECRET, path="/token"):
    """Return the properties of a client that gets its tokens from the provider, by Kafka's JAAS options."""
    options = f'clientId="{CLIENT_ID}" clientSecret="{secret}" scope="read"'
    return LOGIN | {TOKEN_URL: provider.address + path, "sasl.jaas.config": f"{OAUTH_MODULE} required {options};"}


@each_face
def test_a_token_comes_from_a_file_that_is_read_at_each_login(provider, address, tmp_path, face):
    file = tmp_path / "token"
    security = LOGIN | {TOKEN_URL: file.as_uri()}
    file.write_text(provider.token() + "\n")
    assert face(address, security) == [b"hello"]
    file.write_text(provider.token(exp=int(time.time()) - 60))
    with pytest.raises(NotAuthenticated, match="refuses the login by OAUTHBEARER.*check the token; it says that it"):
        face(address, security)


@each_face
def test_a_token_comes_from_an_identity_provider(provider, address, face):
    assert face(address, at_provider(provider)) == [b"hello"]
    assert provider.forms == ["grant_type=client_credentials&scope=read"]


@each_face
def test_a_provider_that_refuses_the_clients_secret_is_named_and_the_secret_is_not(provider, address, face):
    with pytest.raises(NotAuthenticated) as error:
        face(address, at_provider(provider, secret="marked-wrong"))
    assert f"no token of OAUTHBEARER: {provider.token_url} gives none: it answers 401 " in str(error.value)
    assert "invalid_client" in str(error.value) and "marked" not in str(error.value)


@each_face
def test_a_client_proves_itself_by_an_assertion_in_place_of_a_secret(provider, address, tmp_path, face):
    """The client credentials grant of KIP-1258, and the JWT bearer grant of KIP-1139."""
    asserted = LOGIN | assertion_settings(provider, tmp_path / "key.pem")
    assert face(address, asserted) == [b"hello"]
    assert face(address, asserted | BY_JWT_BEARER) == [b"hello"]
    credentials, bearer = (dict(parse_qsl(form)) for form in provider.forms)
    assert credentials.keys() == {"grant_type", "client_assertion_type", "client_assertion"}
    assert (credentials["grant_type"], credentials["client_assertion_type"]) == ("client_credentials", CLIENT_ASSERTION)
    assert bearer.keys() == {"grant_type", "assertion"} and bearer["grant_type"] == JWT_BEARER


def test_the_key_of_an_assertion_is_read_for_each_request(provider, address, tmp_path):
    asserted = LOGIN | assertion_settings(provider, tmp_path / "key.pem")
    provider.client_key = SigningKey("RS256", key_id=None)
    with pytest.raises(NotAuthenticated, match=f"{provider.token_url} gives none: it answers 401 .*invalid_client"):
        by_blocking(address, asserted)
    (tmp_path / "key.pem").write_text(provider.client_key.pem())
    assert by_blocking(address, asserted) == [b"hello"]
    (tmp_path / "key.pem").unlink()
    with pytest.raises(NotAuthenticated, match="private.key.file=.*/key.pem: cannot be read: No such file"):
        by_blocking(address, asserted)


@each_face
def test_the_clients_secret_is_not_sent_to_where_a_provider_redirects(provider, address, face):
    with pytest.raises(NotAuthenticated, match="it answers 307"):
        face(address, at_provider(provider, path="/moved"))
    assert provider.forms == []


def test_a_client_gets_another_token_before_its_session_ends(provider, server, address):
    """The session lasts as long as the token (KIP-368)."""
    provider.lifetime_s = 3
    begin = server.mark()
    with ThreadPoolExecutor() as pool:
        reads = [pool.submit(face, address, at_provider(provider), 4.0) for face in FACES]
        assert [read.result(SECONDS) for read in reads] == [[b"hello"]] * len(FACES)
    assert len(provider.forms) >= 2 * len(FACES)
    assert "session has expired" not in server.log_since(begin)


def test_a_provider_that_is_slow_holds_up_no_other_work_of_a_loop(provider, address):
    """The token is fetched in a thread. The provider waits for what the loop does meanwhile."""
    answer = provider.answer

    async def read():
        loop, freed = asyncio.get_running_loop(), asyncio.Event()

        def waiting(*arguments):
            asyncio.run_coroutine_threadsafe(set_free(), loop).result(SECONDS)
            return answer(*arguments)

        async def set_free():
            freed.set()

        provider.answer = waiting
        async with AsyncClient(address, security=at_provider(provider)) as client:
            records, _ = await client.fetch("greetings", 0, 0)
        return freed.is_set() and [record.value for record in records]

    assert asyncio.run(read()) == [b"hello"]


def test_a_message_goes_from_a_producer_to_a_consumer_with_tokens_of_a_provider(provider, server, address, name):
    with Client(server.address) as client:
        client.create_topic(name, 1)
    security = at_provider(provider)
    with Producer(address, security=security) as producer:
        producer.send_and_wait(name, "hello")
    with Consumer(address, name, group=name, timeout_ms=SECONDS * 1_000, security=security) as consumer:
        assert next(consumer).value == b"hello"


def test_a_producer_gets_another_token_before_its_session_ends(provider, server, address, name):
    provider.lifetime_s = 4
    begin = server.mark()
    with Client(server.address) as client:
        client.create_topic(name, 1)
    with Producer(address, security=at_provider(provider)) as producer:
        until(lambda: [producer.send_and_wait(name, "hello")] and len(provider.forms) >= 3, "three tokens")
    assert "session has expired" not in server.log_since(begin)


def test_a_producer_without_a_token_says_so_at_once(provider, address, tmp_path):
    file = tmp_path / "token"
    file.write_text(provider.token(exp=int(time.time()) - 60))
    with pytest.raises(NotAuthenticated, match="no token of OAUTHBEARER: it has expired, 6[0-9] s ago"):
        Producer(address, security=LOGIN | {TOKEN_URL: file.as_uri()})
    with pytest.raises(NotAuthenticated, match="no token of OAUTHBEARER: .* gives none: it answers 401"):
        Producer(address, security=at_provider(provider, secret="wrong"))
