"""The authentication of one connection, request by request."""

import pytest

from broker.now import Now
from broker.security.sasl.authentication import Accepted, Authentication, AuthenticationFailed, SaslState
from broker.security.sasl.exchange import Mechanism, Proof, Rejected
from broker.wire.errors import ErrorCode

VERSIONS, HANDSHAKE, AUTHENTICATE, METADATA = 18, 17, 36, 3
NAMES = {VERSIONS: "ApiVersions", HANDSHAKE: "SaslHandshake", AUTHENTICATE: "SaslAuthenticate", METADATA: "Metadata"}


class Spelled:
    """An exchange of two tokens: any, then the user's name, whose credential may have an end."""

    refusal = None

    def __init__(self, expires_wall_ms=None):
        self.expires_wall_ms = expires_wall_ms
        self.proof = None
        self.first = None

    def answer(self, token, wall_ms):
        if self.first is None:
            self.first = token
            return b"and?"
        if token == b"nobody":
            raise Rejected("nobody came")
        self.proof = Proof(token.decode(), self.expires_wall_ms)
        return b"welcome"


def at(ms):
    return Now(ms, 1_000_000 + ms)


def authentication(max_reauth_ms=0, expires_wall_ms=None):
    names = ("SPELLED", "OTHER")
    mechanisms = {name: Mechanism(name, lambda: Spelled(expires_wall_ms), max_reauth_ms) for name in names}
    return Authentication(lambda: mechanisms)


def failed(call, *arguments):
    with pytest.raises(AuthenticationFailed) as error:
        call(*arguments)
    return error.value


def log_in(made, user="ada", version=1, ms=0, mechanism="SPELLED"):
    made.check_request(HANDSHAKE, "SaslHandshake")
    made.handshake(version, mechanism)
    made.token(b"hello", at(ms))
    return made.token(user.encode(), at(ms))


def test_a_client_asks_for_versions_then_shakes_hands_then_sends_tokens():
    made = authentication()
    made.check_request(VERSIONS, "ApiVersions")
    made.versions_answered(ErrorCode.NONE)
    made.check_request(HANDSHAKE, "SaslHandshake")
    made.handshake(1, "SPELLED")
    made.check_request(AUTHENTICATE, "SaslAuthenticate")
    assert made.token(b"hello", at(0)) == Accepted(b"and?") and made.user is None
    assert made.token(b"ada", at(0)) == Accepted(b"welcome")
    assert made.is_complete and made.user == "ada" and made.expires_ms is None and made.mechanism == "SPELLED"


def test_a_handshake_may_come_first():
    made = authentication()
    log_in(made)
    assert made.is_complete


def test_tokens_are_bare_after_a_handshake_of_version_0_and_until_the_user_is_proved():
    for version, bare in ((0, True), (1, False)):
        made = authentication()
        assert not made.takes_bare_tokens
        made.handshake(version, "SPELLED")
        assert made.takes_bare_tokens is bare
        made.token(b"hello", at(0))
        made.token(b"ada", at(0))
        assert not made.takes_bare_tokens


def test_versions_may_be_asked_again_after_an_error_only():
    made = authentication()
    made.versions_answered(ErrorCode.UNSUPPORTED_VERSION)
    made.check_request(VERSIONS, "ApiVersions")
    made.versions_answered(ErrorCode.NONE)
    error = failed(made.check_request, VERSIONS, "ApiVersions")
    assert not error.is_delayed and error.code is None


@pytest.mark.parametrize("key", [METADATA, AUTHENTICATE])
def test_nothing_else_is_served_before_the_handshake(key):
    made = authentication()
    error = failed(made.check_request, key, NAMES[key])
    assert f"Unexpected Kafka request of type {NAMES[key]} during SASL handshake" in str(error)
    assert not error.is_delayed and error.code is None
    assert made.state is SaslState.FAILED


@pytest.mark.parametrize("key", [METADATA, VERSIONS, HANDSHAKE])
def test_nothing_but_tokens_is_served_after_the_handshake(key):
    made = authentication()
    made.handshake(1, "SPELLED")
    error = failed(made.check_request, key, NAMES[key])
    assert error.code == ErrorCode.ILLEGAL_SASL_STATE and error.is_delayed
    assert error.client_message == f"Unexpected Kafka request of type {NAMES[key]} during SASL authentication."


def test_an_unknown_mechanism_is_refused_with_kafkas_code():
    made = authentication()
    error = failed(made.handshake, 1, "GSS\nAPI")
    assert error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM and error.is_delayed
    assert str(error) == r"Unsupported SASL mechanism 'GSS\nAPI'; the listener has SPELLED, OTHER"
    assert made.mechanisms == ["SPELLED", "OTHER"]


def test_a_token_that_proves_nothing_ends_the_authentication():
    made = authentication()
    error = failed(log_in, made, "nobody")
    assert error.code == ErrorCode.SASL_AUTHENTICATION_FAILED and str(error) == "nobody came"
    general = "Authentication failed during authentication due to invalid credentials with SASL mechanism SPELLED"
    assert error.client_message == general
    assert failed(made.token, b"ada", at(0)).code == ErrorCode.ILLEGAL_SASL_STATE
    assert not made.is_complete and made.user is None


@pytest.mark.parametrize(
    ("max_reauth_ms", "credential_ms", "session_ms"),
    [(0, None, 0), (9_000, None, 9_000), (0, 5_000, 5_000), (9_000, 5_000, 5_000), (1_000, 5_000, 1_000), (0, -1, 0)],
)
def test_a_session_ends_with_the_limit_or_the_credential_whichever_is_first(max_reauth_ms, credential_ms, session_ms):
    wall_ms = None if credential_ms is None else at(10).wall_ms + credential_ms
    made = authentication(max_reauth_ms, wall_ms)
    assert log_in(made, ms=10).session_ms == session_ms
    if max_reauth_ms or credential_ms is not None:
        assert made.expires_ms == 10 + session_ms
        assert not made.has_expired(at(10 + session_ms)) and made.has_expired(at(11 + session_ms))
    else:
        assert not made.has_expired(at(10**12))


def test_a_client_authenticates_again_before_its_session_ends():
    made = authentication(60_000)
    log_in(made)
    assert made.begin_again(at(50_000)) and made.user == "ada"
    assert log_in(made, ms=50_000).session_ms == 60_000
    assert made.expires_ms == 110_000


def test_a_client_may_not_authenticate_again_without_an_end_of_sessions_or_twice_a_second():
    endless = authentication()
    log_in(endless)
    assert not endless.begin_again(at(50_000))
    made = authentication(60_000)
    log_in(made)
    assert made.begin_again(at(2_000))
    log_in(made, ms=2_000)
    assert not made.begin_again(at(2_999)) and made.begin_again(at(3_000))


def test_another_user_is_refused_in_the_middle_of_a_session():
    made = authentication(60_000)
    log_in(made)
    made.begin_again(at(10))
    error = failed(log_in, made, "bob")
    assert error.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert error.client_message == "Cannot change principals during re-authentication from User.ada: User.bob"


def test_another_mechanism_is_refused_in_the_middle_of_a_session():
    made = authentication(60_000)
    log_in(made)
    made.begin_again(at(10))
    made.handshake(1, "OTHER")
    error = failed(made.token, b"hello", at(10))
    refused = "SASL mechanism 'OTHER' requested by client is not supported for re-authentication of mechanism 'SPELLED'"
    assert error.client_message == refused


def test_a_failed_authentication_says_that_it_was_a_second_one():
    made = authentication(60_000)
    log_in(made)
    made.begin_again(at(10))
    assert "during re-authentication due to" in failed(log_in, made, "nobody").client_message
