"""The login of a connection, against the server's side of it, without sockets."""

from types import SimpleNamespace

import pytest

from broker.client.address import Address
from broker.client.core import ClientCore
from broker.client.errors import NotAuthenticated
from broker.client.exchange import carry_out
from broker.client.security.client_security import ClientSecurity
from broker.client.security.login import log_in, renewal_ms
from broker.client.security.mechanisms import PlainClient, ScramClient
from broker.now import Now
from broker.security.sasl.authentication import Authentication, AuthenticationFailed
from broker.security.sasl.exchange import Mechanism
from broker.security.sasl.plain import Passwords, PlainExchange
from broker.security.sasl.scram import ScramExchange
from broker.wire import cold
from broker.wire.errors import ErrorCode
from tests.broker.scram_client import credential

ADDRESS = Address("broker", 9092)
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
SERVED = [{"api_key": key, "min_version": 0, "max_version": 1} for key in (SASL_HANDSHAKE, SASL_AUTHENTICATE)]
VERSIONS = memoryview(cold.encode(API_VERSIONS, 3, "response", {"error_code": 0, "api_keys": SERVED}))
PASSWORDS = Passwords({"ada": "secret"}, b"key")


class Server:
    """A listener's side of a connection."""

    def __init__(self, max_reauth_ms=0):
        stored = credential("secret", "SCRAM-SHA-512")
        begins = {
            "PLAIN": lambda: PlainExchange(PASSWORDS),
            "SCRAM-SHA-512": lambda: ScramExchange("SCRAM-SHA-512", lambda user: (stored, user == "ada"), "nonce"),
        }
        mechanisms = {name: Mechanism(name, begin, max_reauth_ms) for name, begin in begins.items()}
        self.authentication = Authentication(lambda: mechanisms)
        self.now = Now(0, 0)

    def ask(self, exchange):
        """Return the body of the answer to a request."""
        key, version = exchange.api_key, exchange.version
        request = cold.decode(key, version, "request", memoryview(exchange.body), 0, version)
        fields = self._shake_hands if key == SASL_HANDSHAKE else self._take
        try:
            answer = fields(SimpleNamespace(version=version, **vars_of(request.original)))
        except AuthenticationFailed as failure:
            answer = {"error_code": failure.code, **self._about(key, failure)}
        return memoryview(cold.encode(key, version, "response", answer))

    def _shake_hands(self, request):
        if self.authentication.is_complete:
            assert self.authentication.begin_again(self.now)
        self.authentication.handshake(request.version, request.mechanism)
        return {"error_code": 0, "mechanisms": self.authentication.mechanisms}

    def _take(self, request):
        accepted = self.authentication.token(request.auth_bytes, self.now)
        lifetime = {"session_lifetime": accepted.session_ms} if request.version else {}
        return {"error_code": 0, "error_message": None, "auth_bytes": accepted.token, **lifetime}

    def _about(self, api_key, failure):
        if api_key == SASL_HANDSHAKE:
            return {"mechanisms": self.authentication.mechanisms}
        return {"error_message": failure.client_message, "auth_bytes": b""}


def vars_of(message):
    return {name: getattr(message, name) for name in ("mechanism", "auth_bytes") if hasattr(message, name)}


def plain(password="secret"):
    return PlainClient("ada", password)


def refusal(server, *arguments):
    with pytest.raises(NotAuthenticated) as error:
        carry_out(log_in(ADDRESS, *arguments), server.ask)
    return str(error.value)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_user_logs_in_by_each_version(version):
    for mechanism, exchange in (("PLAIN", plain()), ("SCRAM-SHA-512", scram())):
        server = Server(max_reauth_ms=60_000)
        lifetime_ms = carry_out(log_in(ADDRESS, mechanism, exchange, version), server.ask)
        assert server.authentication.user == "ada"
        assert lifetime_ms == (60_000 if version else 0)


def scram(password="secret"):
    return ScramClient("SCRAM-SHA-512", "ada", password, "client-nonce")


def test_the_login_is_renewed_over_the_same_connection():
    server = Server(max_reauth_ms=60_000)
    for now_ms in (0, 55_000):
        server.now = Now(now_ms, now_ms)
        carry_out(log_in(ADDRESS, "SCRAM-SHA-512", scram()), server.ask)
    assert server.authentication.expires_ms == 115_000


def test_a_renewal_begins_with_the_login_also_where_the_broker_was_doubted_meanwhile():
    """Over a session that has ended a broker answers nothing else."""
    server = Server(max_reauth_ms=60_000)
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ada" password="secret";'
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
    core, api_keys = ClientCore([ADDRESS], ClientSecurity.of(given)), []

    def ask(exchange):
        api_keys.append(exchange.api_key)
        return VERSIONS if exchange.api_key == API_VERSIONS else server.ask(exchange)

    carry_out(core.log_in(ADDRESS), ask)
    server.now = Now(55_000, 55_000)
    core.forget(ADDRESS)
    carry_out(core.log_in(ADDRESS), ask)
    login = [SASL_HANDSHAKE, SASL_AUTHENTICATE, SASL_AUTHENTICATE]
    assert api_keys == [API_VERSIONS, *login, *login]


def test_a_session_is_renewed_before_its_end_and_not_all_at_once():
    assert [renewal_ms(100_000, share) for share in (0, 0.5, 1)] == [85_000, 90_000, 95_000]
    assert renewal_ms(300, 0.5) == 1_000, "a broker refuses a second one within a second"


@pytest.mark.parametrize(("mechanism", "exchange"), [("PLAIN", plain("wrong")), ("SCRAM-SHA-512", scram("wrong"))])
def test_a_wrong_password_says_what_to_check(mechanism, exchange):
    reason = refusal(Server(), mechanism, exchange)
    assert reason.startswith(f"broker:9092: the broker refuses the login by {mechanism} ('Authentication failed")
    assert reason.endswith("check user and password in sasl.jaas.config")
    assert "wrong" not in reason


def test_the_words_of_the_broker_are_whole():
    reason = refusal(Server(), "SCRAM-SHA-512", scram("wrong"))
    assert " due to invalid credentials with SASL mechanism SCRAM-SHA-512'); " in reason


def test_another_mechanism_names_those_of_the_listener():
    reason = refusal(Server(), "SCRAM-SHA-256", plain())
    assert reason.endswith("has no SCRAM-SHA-256: set sasl.mechanism to one of PLAIN, SCRAM-SHA-512")


def test_a_listener_that_asks_for_no_login_is_named():
    def ask(exchange):
        answer = {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
        return memoryview(cold.encode(SASL_HANDSHAKE, 1, "response", answer))

    with pytest.raises(NotAuthenticated, match="asks for no login: set security.protocol=PLAINTEXT"):
        carry_out(log_in(ADDRESS, "PLAIN", plain()), ask)
