"""Three brokers that log in to each other by OAUTHBEARER over TLS, with tokens of an identity provider or of a file."""

import time
from contextlib import ExitStack
from urllib.parse import parse_qs, quote

import pytest

from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.identity_provider import (
    BY_JWT_BEARER,
    CLIENT_ID,
    CLIENT_SECRET,
    JWT_BEARER,
    LOGIN_HANDLER,
    OAUTH_MODULE,
    IdentityProvider,
    assertion_settings,
    rules_of_tokens,
)
from tests.compat.tls_files import TlsFiles
from tests.patience import until

LIFETIME_S = 6
"""How long a token lasts, and with it a session between brokers."""
OF_MECHANISM = "listener.name.brokers.oauthbearer.sasl"
TOKEN_URL = f"{OF_MECHANISM}.oauthbearer.token.endpoint.url"


@pytest.fixture
def provider():
    made = IdentityProvider()
    made.lifetime_s = LIFETIME_S
    yield made
    made.close()


def settings_of(provider, directory):
    files = TlsFiles(directory / "tls")
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_SSL",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.clock.skew.seconds": "0",
        **rules_of_tokens(provider.url, "listener.name.brokers"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
        "ssl.endpoint.identification.algorithm": "",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{CLIENT_ID};User:ANONYMOUS",
        "min.insync.replicas": "3",
    }


def at_provider(provider):
    """Return the settings of a broker as a client of the provider, as Kafka's brokers have them."""
    options = f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="kafka"'
    return {
        f"{OF_MECHANISM}.jaas.config": f"{OAUTH_MODULE} required {options};",
        f"{OF_MECHANISM}.login.callback.handler.class": LOGIN_HANDLER,
        TOKEN_URL: provider.token_url,
    }


@pytest.fixture
def start(provider, tmp_path, zookeeper):
    """Return a function that starts the brokers, with settings that replace those of all, or of single brokers."""
    with ExitStack() as stack:

        def begin(settings, own_settings=None):
            (tmp_path / "tls").mkdir()
            hosts = f"{zookeeper.hosts}/{quote(tmp_path.name)}"
            all_settings = settings_of(provider, tmp_path) | settings
            return ReplicatedServers(tmp_path, hosts, stack, settings=all_settings, own_settings=own_settings)

        yield begin


def produce_to_all(brokers, topic):
    """Produce to a topic that is acknowledged by all three brokers."""
    brokers.await_in_sync()
    brokers.produce(topic, "value", [0])


def test_brokers_get_another_token_before_their_sessions_end(provider, start):
    brokers = start(at_provider(provider))
    brokers.create("flights", 1)
    taken = len(provider.forms)
    until(lambda: [produce_to_all(brokers, "flights")] and len(provider.forms) >= taken + 6, "two more tokens of each")
    assert "session has expired" not in brokers.log and "cannot be reached: " not in brokers.log
    assert set(provider.forms) == {"grant_type=client_credentials&scope=kafka"}
    assert CLIENT_SECRET not in brokers.log


@pytest.mark.soak
def test_brokers_prove_themselves_to_the_provider_by_an_assertion(provider, start, tmp_path):
    """The JWT bearer grant of KIP-1139, by the settings of the listener's mechanism."""
    asserted = assertion_settings(provider, tmp_path / "key.pem") | BY_JWT_BEARER
    brokers = start({f"listener.name.brokers.oauthbearer.{name}": text for name, text in asserted.items()})
    brokers.create("flights", 1)
    produce_to_all(brokers, "flights")
    assert {parse_qs(form)["grant_type"][0] for form in provider.forms} == {JWT_BEARER}


@pytest.mark.soak
def test_a_provider_that_gives_no_tokens_for_a_while_is_named_and_the_brokers_go_on_afterwards(provider, start):
    brokers = start(at_provider(provider))
    brokers.create("flights", 1)
    produce_to_all(brokers, "flights")
    provider.is_refusing = True
    named = f"no token of OAUTHBEARER: {provider.token_url} gives none: it answers 401"
    for number in brokers.others(brokers.leaders("flights")[0]):  # they fetch from the leader
        brokers[number].wait_for_log(named)
    provider.is_refusing = False
    produce_to_all(brokers, "flights")
    assert CLIENT_SECRET not in brokers.log


@pytest.mark.soak
def test_a_broker_whose_token_has_expired_is_named_on_both_sides_until_its_file_has_a_new_one(
    provider, start, tmp_path
):
    provider.lifetime_s = 3_600
    files = {number: tmp_path / f"token-{number}" for number in NUMBERS}
    for file in files.values():
        file.write_text(provider.token())
    files[2].write_text(provider.token(exp=int(time.time()) - 60))
    own = {number: {TOKEN_URL: file.as_uri()} for number, file in files.items()}
    brokers = start({"min.insync.replicas": "1"}, own)
    brokers.place(1, first=True)
    brokers.create("flights", 1)  # broker 2 fetches from broker 1
    brokers[2].wait_for_log("the broker refuses the login by OAUTHBEARER ('{\"status\":\"invalid_token\"}'); check the")
    until(lambda: "closed: the token expired 6" in brokers[1].log + brokers[3].log, "the name of the reason")
    new = tmp_path / "new"
    new.write_text(provider.token())
    new.rename(files[2])
    produce_to_all(brokers, "flights")
    brokers[2].wait_for_log("can be reached again")
