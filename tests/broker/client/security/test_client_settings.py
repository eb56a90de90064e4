"""The settings of a client's security: what fits together, and what is refused by name."""

import pickle

import pytest

from broker.client.security.client_security import ClientSecurity
from broker.client.security.settings import Credentials, parse_security
from broker.client.security.token_request import JWT_BEARER, TokenRequest
from flakelog.testing.authority import Authority
from idgen.settings import InvalidSetting
from tests.compat.sasl_users import PLAIN_MODULE, SCRAM_MODULE, jaas

OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
SCRAM = LOGIN | {"sasl.mechanism": "SCRAM-SHA-256"}
OAUTH = LOGIN | {"sasl.mechanism": "OAUTHBEARER"}
AT_PROVIDER = {"sasl.oauthbearer.token.endpoint.url": "https://a"}
OF_ADA = {"sasl.oauthbearer.client.credentials.client.id": "ada"}
TLS = {"security.protocol": "SSL"}


def test_without_settings_connections_are_plain():
    assert ClientSecurity.of(None) is None
    assert ClientSecurity.of({}) is None
    assert ClientSecurity.of({"security.protocol": "PLAINTEXT"}) is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_user_and_password_come_from_jaas_text_or_as_librdkafka_has_them(mechanism):
    login = LOGIN | {"sasl.mechanism": mechanism}
    expected = Credentials("ada", 'a "b" c,=')
    by_text = parse_security(login | {"sasl.jaas.config": jaas("ada", 'a "b" c,=', mechanism)})
    by_names = parse_security(login | {"sasl.username": "ada", "sasl.password": 'a "b" c,='})
    assert by_text.credentials == by_names.credentials == expected


def test_a_token_comes_from_jaas_text_a_file_or_a_function():
    text = {"sasl.jaas.config": f'{OAUTH_MODULE} required token="abc";'}
    assert parse_security(OAUTH | text).credentials.token == "abc"
    file = {"sasl.oauthbearer.token.endpoint.url": "file:///run/token"}
    assert parse_security(OAUTH | file).credentials.token_file == "/run/token"
    security = ClientSecurity.of(OAUTH | {"oauth_cb": lambda _: ("abc", 0.0)})
    assert security.asks_login


def test_id_and_secret_for_an_identity_provider_are_in_settings_or_in_jaas_text_and_settings_go_before():
    """KIP-768 has the options of JAAS text, and KIP-1139 the settings."""
    options = 'clientId="bob" clientSecret="of jaas" scope="read"'
    text = {"sasl.jaas.config": f"{OAUTH_MODULE} required {options};"}
    package = OAUTH_MODULE.rpartition(".")[0]
    handler = {"sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler"}
    by_text = parse_security(OAUTH | AT_PROVIDER | text | handler).credentials.token_request
    assert by_text == TokenRequest("https://a", "bob", "of jaas", "read")
    settings = OF_ADA | {"sasl.oauthbearer.client.credentials.client.secret": "x", "sasl.oauthbearer.scope": "write"}
    by_names = parse_security(OAUTH | AT_PROVIDER | text | settings).credentials.token_request
    assert by_names == TokenRequest("https://a", "ada", "x", "write")


RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
RETRIEVERS = {
    kind: {RETRIEVER: f"org.apache.kafka.common.security.oauthbearer.{kind}JwtRetriever"}
    for kind in ("Default", "ClientCredentials", "File", "JwtBearer")
}
BY_KEY = {"sasl.oauthbearer.assertion.private.key.file": "key.pem"}
OF_ISSUER = {"sasl.oauthbearer.assertion.claim.iss": "ada"}
ASSERTED = {"sasl.oauthbearer.assertion.file": "assertion"}


def request_of(*properties):
    given = OAUTH | AT_PROVIDER | {name: text for some in properties for name, text in some.items()}
    return parse_security(given).credentials.token_request


@pytest.mark.parametrize("retriever", ["Default", "ClientCredentials"])
def test_an_assertion_goes_before_a_secret(retriever):
    """KIP-1258: a file of it, or its issuer, asks for one. The id may be left out."""
    secret = OF_ADA | {"sasl.oauthbearer.client.credentials.client.secret": "x"}
    for asserted in (ASSERTED, BY_KEY | OF_ISSUER):
        request = request_of(RETRIEVERS[retriever], secret, asserted)
        assert (request.client_id, request.client_secret) == ("ada", "") and request.assertion is not None
        assert request_of(RETRIEVERS[retriever], asserted).client_id == ""
    assert request_of(RETRIEVERS[retriever], secret, BY_KEY) == TokenRequest("https://a", "ada", "x")


def test_the_grant_of_jwt_bearer_sends_an_assertion_and_the_scope_alone():
    scope = {"sasl.oauthbearer.scope": "read"}
    request = request_of(RETRIEVERS["JwtBearer"], OF_ADA, BY_KEY, scope)
    assert (request.client_id, request.scope, request.grant) == ("", "read", JWT_BEARER)


def test_the_class_that_reads_a_file_is_taken_for_a_file():
    file = {"sasl.oauthbearer.token.endpoint.url": "file:///run/token"}
    assert parse_security(OAUTH | file | RETRIEVERS["File"]).credentials.token_file == "/run/token"


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: must be one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism=GSSAPI: GSSAPI (Kerberos) is not served: give one of"),
        (LOGIN | {"sasl.mechanism": "scram"}, "scram is not served: give one of PLAIN, SCRAM-SHA-256"),
        (LOGIN, f'sasl.jaas.config=: PLAIN needs {PLAIN_MODULE} required username="..." password="...";'),
        (LOGIN | {"sasl.jaas.config": "nonsense"}, "sasl.jaas.config=(hidden): no control flag stands behind"),
        (LOGIN | {"sasl.jaas.config": f'{SCRAM_MODULE} required username="a" password="marked";'}, PLAIN_MODULE),
        (SCRAM | {"sasl.jaas.config": f'{SCRAM_MODULE} required username="marked";'}, 'no password: add password="'),
        (SCRAM | {"sasl.jaas.config": f'{SCRAM_MODULE} required tokenauth="true";'}, "delegation tokens are not"),
        (LOGIN | {"sasl.username": "a", "sasl.jaas.config": jaas("a", "marked")}, "is given beside sasl.username"),
        (LOGIN | {"sasl.mechanisms": "PLAIN"}, "sasl.mechanisms=(hidden): is librdkafka's; give sasl.mechanism"),
        (TLS | {"ssl.ca.location": "ca.pem"}, "give ssl.truststore.location, with ssl.truststore.type=PEM"),
        (TLS | {"ssl.truststore.passwort": "marked"}, "ssl.truststore.passwort=(hidden): is no setting of a client's"),
        (TLS | {"ssl.client.auth": "required"}, "ssl.client.auth=(hidden): is no setting of a client's security"),
        (TLS | {"ssl.endpoint.identification.algorithm": "ldaps"}, "must be https, or empty, which checks no name"),
        (TLS | {"ssl.truststore.location": "/not/there"}, "ssl.truststore.location=/not/there: cannot be read"),
        (TLS | {"sasl.username": "ada"}, "sasl.username=(hidden): is not used by security.protocol=SSL"),
        ({"ssl.truststore.location": "x"}, "is not used by security.protocol=PLAINTEXT; set security.protocol=SSL"),
        (
            LOGIN | {"sasl.username": "a", "sasl.password": "b", "ssl.truststore.location": "x"},
            "is not used by security.protocol=SASL_PLAINTEXT; set security.protocol=SASL_SSL",
        ),
        (TLS | {"ssl.key.password": 5}, "ssl.key.password=(hidden): must be text"),
        (OAUTH, 'give one of sasl.oauthbearer.token.endpoint.url, token="..." in sasl.jaas.config, and in Python a'),
        (OAUTH | {"sasl.oauthbearer.token.endpoint.url": "ftp://a"}, "must be https://..., http://... or file:///..."),
        (OAUTH | AT_PROVIDER, "client.id=: sasl.oauthbearer.token.endpoint.url=https://a needs the id of this client"),
        (OAUTH | AT_PROVIDER | OF_ADA, "client.secret=: sasl.oauthbearer.token.endpoint.url=https://a needs the sec"),
        (OAUTH | AT_PROVIDER | {"oauth_cb": print}, "give one of sasl.oauthbearer.token.endpoint.url"),
        (OAUTH | AT_PROVIDER | {"sasl.login.callback.handler.class": "a.B"}, "a class in Java cannot be used; "),
        (OAUTH | AT_PROVIDER | {RETRIEVER: "a.B"}, f"{RETRIEVER}=a.B: another class in Java cannot be used; give org."),
        (OAUTH | AT_PROVIDER | RETRIEVERS["File"], "JwtRetriever: needs sasl.oauthbearer.token.endpoint.url=file:///."),
        (
            OAUTH | {"sasl.oauthbearer.token.endpoint.url": "file:///run/token"} | RETRIEVERS["JwtBearer"] | BY_KEY,
            "JwtBearerJwtRetriever: needs sasl.oauthbearer.token.endpoint.url=https://... or http://...",
        ),
        (OAUTH | {"oauth_cb": print} | RETRIEVERS["JwtBearer"], "needs sasl.oauthbearer.token.endpoint.url=https://"),
        (OAUTH | AT_PROVIDER | RETRIEVERS["JwtBearer"], "private.key.file=: an assertion needs the private key that"),
        (OAUTH | AT_PROVIDER | OF_ISSUER, "private.key.file=: an assertion needs the private key that signs it; or"),
        (OAUTH | AT_PROVIDER | OF_ADA | BY_KEY, "the secret of ada, or sasl.oauthbearer.assertion.claim.iss for an"),
        (OAUTH | AT_PROVIDER | {"sasl.oauthbearer.header.urlencode": "maybe"}, "maybe: must be true or false"),
        (OAUTH | {"sasl.oauthbearer.jwt.validator.class": "a.B"}, "leave it out, since brokers check tokens"),
        (LOGIN | {"oauth_cb": print, "sasl.username": "a", "sasl.password": "b"}, "needs sasl.mechanism=OAUTHBEARER"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(properties, reason):
    with pytest.raises(InvalidSetting) as error:
        ClientSecurity.of(properties)
    assert reason in str(error.value)
    assert "marked" not in str(error.value)


def test_no_secret_is_shown():
    config = parse_security(LOGIN | {"sasl.jaas.config": jaas("ada", "marked")})
    shown = f"{config!r} {ClientSecurity(config)!r} {config.credentials!r}"
    assert "marked" not in shown and "SASL_PLAINTEXT, PLAIN" in shown


def test_settings_are_pickled_for_other_processes():
    config = parse_security(LOGIN | {"sasl.jaas.config": jaas("ada", "secret")})
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_file_that_changes_is_read_again_for_the_next_connection(tmp_path):
    file = Authority().write_pem(tmp_path / "ca.pem")
    security = ClientSecurity.of(TLS | {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(file)})
    first = security.context()
    assert security.context() is first
    file.write_text(Authority().pem() * 2)
    second = security.context()
    assert second is not first
    file.write_text("damaged")
    assert security.context() is second
