"""Clients of a listener that asks who they are, at an engine without sockets."""

from contextlib import contextmanager

import pytest

from broker.metadata.change import Change
from broker.metadata.staged import Staged
from broker.security.sasl.config import sasl_of
from broker.security.sasl.listeners import SaslListeners
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import ALTER_QUOTAS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, EngineBroker
from tests.broker.scram_client import NUMBERS, ScramClient, credential

API_VERSIONS = 18
LISTENER = "SASL_PLAINTEXT"
OF_LISTENER = "listener.name.sasl_plaintext"
GIVEN = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f"{OF_LISTENER}.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="ada-secret" user_bob="bob-secret";'
    ),
}
NO_METADATA = {"topics": []}


def broker(over_tls=False, given=None, key_sets=None, **settings):
    properties = GIVEN | (given or {})
    listeners = {LISTENER: sasl_of(LISTENER, properties, over_tls)}
    sasl = SaslListeners(properties, listeners, b"secret", lambda: "nonce", lambda line: None, key_sets)
    return EngineBroker(membership={"sasl": sasl}, **settings)


def shake_hands(client, mechanism="PLAIN", version=1):
    answer = client.ask(SASL_HANDSHAKE, version, {"mechanism": mechanism})
    assert answer.error_code == 0 and answer.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def send_token(client, token, version=2):
    return client.ask(SASL_AUTHENTICATE, version, {"auth_bytes": token})


def plain(user="ada", password=None):
    return f"\0{user}\0{password or f'{user}-secret'}".encode()


def log_in(client, token=None):
    shake_hands(client)
    answer = send_token(client, token or plain())
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (0, None, b"")
    return answer


@contextmanager
def fails(client, code):
    """Let the block send what fails; the answer comes after the delay, and then the connection is closed."""
    made = client.broker
    yield
    assert client.replies() == [] and client.closed is None
    made.at(made.now_ms + 99)
    assert client.replies() == [] and client.closed is None
    made.at(made.now_ms + 1)
    if code is not None:
        ((_, answer),) = client.replies()
        assert answer.error_code == code
    assert client.replies() == [] and client.closed is not None


@pytest.fixture
def client():
    return broker().connect(listener=LISTENER)


def test_a_client_asks_for_versions_and_logs_in_and_is_served_as_its_user(client):
    keys = {row.api_key for row in client.ask(API_VERSIONS, 0, {}).api_keys}
    assert {SASL_HANDSHAKE, SASL_AUTHENTICATE} <= keys
    log_in(client)
    assert client.ask(METADATA, 12, NO_METADATA).cluster_id
    assert client.conn.user == "ada"


def test_a_client_of_another_listener_is_asked_nothing():
    client = broker().connect(listener="PLAINTEXT")
    assert client.ask(METADATA, 12, NO_METADATA).cluster_id and client.conn.user == "ANONYMOUS"


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("mechanism", NUMBERS)
def test_scram_takes_two_tokens(client, mechanism, version):
    made = client.broker
    credentials = {("ada", NUMBERS[mechanism]): credential("ada-secret", mechanism)}
    made.change(Staged(Change(credentials=credentials)))
    shake_hands(client, mechanism)
    scram = ScramClient("ada", "ada-secret", mechanism)
    final = scram.final(send_token(client, scram.first, version).auth_bytes)
    assert send_token(client, final, version).auth_bytes == scram.signature
    assert client.conn.user == "ada"


def test_tokens_come_bare_after_the_first_version_of_the_handshake(client):
    shake_hands(client, version=0)
    token = plain()
    client.feed(len(token).to_bytes(4, "big") + token)
    assert bytes(client.received) == bytes(4)
    client.received.clear()
    assert client.ask(METADATA, 12, NO_METADATA).cluster_id and client.conn.user == "ada"


def test_a_bare_token_that_fails_has_no_answer_and_closes_the_connection_after_the_delay(client):
    shake_hands(client, version=0)
    with fails(client, None):
        client.feed(len(plain("eve")).to_bytes(4, "big") + plain("eve"))
    assert client.closed == "unknown user or wrong password: 'eve'"


@pytest.mark.parametrize("token", [plain("eve"), plain("ada", "wrong"), b"", b"\0\0\0\0", b"\xff"])
def test_a_token_that_proves_nothing_is_answered_after_the_delay(client, token):
    shake_hands(client)
    with fails(client, ErrorCode.SASL_AUTHENTICATION_FAILED):
        client.send(SASL_AUTHENTICATE, 2, {"auth_bytes": token})


def test_nobody_else_waits_for_the_answer_to_a_failure(client):
    made = client.broker
    other = made.connect(listener=LISTENER)
    shake_hands(client)
    client.send(SASL_AUTHENTICATE, 2, {"auth_bytes": plain("eve")})
    assert not client.conn.wants_data
    log_in(other)
    assert other.ask(METADATA, 12, NO_METADATA).cluster_id


def test_a_client_that_leaves_before_its_failure_is_answered_leaves_nothing_behind(client):
    shake_hands(client)
    client.send(SASL_AUTHENTICATE, 2, {"auth_bytes": plain("eve")})
    made = client.broker
    made.engine.closed(client.conn)
    made.at(made.now_ms + 1_000)
    assert client.replies() == [] and made.engine.connections == 0


def test_without_a_delay_a_failure_is_answered_at_once():
    client = broker(connection_failed_authentication_delay_ms=0).connect(listener=LISTENER)
    shake_hands(client)
    client.send(SASL_AUTHENTICATE, 2, {"auth_bytes": plain("eve")})
    ((_, answer),) = client.replies()
    assert answer.error_message == "Authentication failed: Invalid username or password" and client.closed


def test_an_unknown_mechanism_is_answered_with_those_there_are(client):
    with fails(client, ErrorCode.UNSUPPORTED_SASL_MECHANISM):
        client.send(SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
    assert client.closed == "Unsupported SASL mechanism 'GSSAPI'; the listener has PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"


def test_any_other_request_closes_the_connection(client):
    client.send(METADATA, 12, NO_METADATA)
    assert client.closed.startswith("Unexpected Kafka request of type Metadata during SASL handshake.")
    assert client.replies() == []


def test_a_request_between_handshake_and_token_closes_the_connection(client):
    shake_hands(client)
    with fails(client, None):
        client.send(METADATA, 12, NO_METADATA)
    assert client.closed == "Unexpected Kafka request of type Metadata during SASL authentication."


def test_an_unknown_version_of_api_versions_is_answered_and_may_be_asked_again(client):
    _, frame = client.frame(API_VERSIONS, 4, {"client_software_name": "a", "client_software_version": "1"})
    client.feed(frame[:6] + b"\0\x63" + frame[8:])
    assert client.received[8:10] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
    client.received.clear()
    log_in(client)


def test_what_comes_with_the_last_token_is_executed_after_it(client):
    shake_hands(client)
    ids = client.send_together((SASL_AUTHENTICATE, 2, {"auth_bytes": plain()}), (METADATA, 12, NO_METADATA))
    assert client.answered() == ids and client.conn.user == "ada"


def test_a_large_frame_is_refused_before_the_login_and_taken_after_it():
    client = broker(given={"sasl.server.max.receive.size": "200"}).connect(listener=LISTENER)
    log_in(client)
    assert client.ask(METADATA, 12, {"topics": [{"name": "t" * 249}]})
    other = client.broker.connect(listener=LISTENER)
    other.feed((201).to_bytes(4, "big"))
    assert other.closed == "a frame of 201 bytes is announced, sasl.server.max.receive.size is 200"


def test_a_client_that_does_not_log_in_in_time_is_disconnected(client):
    made = client.broker
    quick = made.connect(listener=LISTENER)
    log_in(quick)
    shake_hands(client)
    made.at(made.now_ms + 9_999)
    assert client.closed is None
    made.at(made.now_ms + 1)
    assert client.closed == "it did not authenticate within 10000 ms (flakelog.authentication.timeout.ms)"
    assert quick.closed is None and made.services.sasl.figures.open == 0


def test_so_many_log_in_at_once_and_the_others_wait_for_them():
    made = broker(authentications_max=2)
    first, second, third = (made.connect(listener=LISTENER) for _ in range(3))
    assert first.conn.wants_data and second.conn.wants_data and not third.conn.wants_data
    correlation_id = third.send(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    assert third.replies() == []
    log_in(first)
    made.pump()
    assert [answered for answered, _ in third.replies()] == [correlation_id]
    assert third.conn.wants_data and made.services.sasl.figures.open == 2


def test_a_closed_connection_lets_another_begin():
    made = broker(authentications_max_per_address=1)
    first, second = (made.connect(listener=LISTENER) for _ in range(2))
    assert not second.conn.wants_data
    made.engine.closed(first.conn)
    log_in(second)


def test_over_tls_the_login_begins_once_the_connection_is_secured():
    made = broker(over_tls=True, authentications_max=1)
    first, second = (made.connect(listener=LISTENER) for _ in range(2))
    made.at(made.now_ms + 60_000)
    assert first.closed is second.closed is None
    made.engine.secured(second.conn, "CN=second", made.now)
    made.engine.secured(first.conn, None, made.now)
    assert second.conn.wants_data and not first.conn.wants_data
    log_in(second)
    assert second.conn.user == "ada"


# --- sessions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def limited():
    """A client whose session lasts for a minute."""
    return broker(given={"connections.max.reauth.ms": "60000"}).connect(listener=LISTENER)


def test_a_session_is_told_and_ends_the_connection_at_the_next_request_after_it(limited):
    made = limited.broker
    assert log_in(limited).session_lifetime.total_seconds() == 60
    made.at(made.now_ms + 60_000)
    assert limited.ask(METADATA, 12, NO_METADATA)
    made.at(made.now_ms + 1)
    assert limited.closed is None
    limited.send(METADATA, 12, NO_METADATA)
    assert "its session has expired" in limited.closed
    assert made.services.sasl.figures.expired == 1


def test_a_client_logs_in_again_in_the_middle_of_its_work(limited):
    made = limited.broker
    log_in(limited)
    for _ in range(5):
        made.at(made.now_ms + 50_000)
        log_in(limited)
        assert limited.ask(METADATA, 12, NO_METADATA)


def test_a_session_is_renewed_with_the_present_password_only(limited):
    """Otherwise a user whose password was taken away would renew a session for ever."""
    made = limited.broker
    log_in(limited)
    text = GIVEN[f"{OF_LISTENER}.plain.sasl.jaas.config"].replace("ada-secret", "altered")
    made.services.sasl.use({f"{OF_LISTENER}.plain.sasl.jaas.config": text})
    made.at(made.now_ms + 50_000)
    log_in(limited, plain(password="altered"))
    made.at(made.now_ms + 50_000)
    shake_hands(limited)
    with fails(limited, ErrorCode.SASL_AUTHENTICATION_FAILED):
        limited.send(SASL_AUTHENTICATE, 2, {"auth_bytes": plain()})


def test_another_user_is_refused_in_the_middle_of_a_session(limited):
    made = limited.broker
    log_in(limited)
    made.at(made.now_ms + 50_000)
    shake_hands(limited)
    with fails(limited, ErrorCode.SASL_AUTHENTICATION_FAILED):
        limited.send(SASL_AUTHENTICATE, 2, {"auth_bytes": plain("bob")})


def test_another_mechanism_is_refused_in_the_middle_of_a_session(limited):
    log_in(limited)
    limited.broker.at(limited.broker.now_ms + 50_000)
    shake_hands(limited, "SCRAM-SHA-256")
    with fails(limited, ErrorCode.SASL_AUTHENTICATION_FAILED):
        limited.send(SASL_AUTHENTICATE, 2, {"auth_bytes": plain()})


def test_a_session_that_has_ended_may_be_renewed_by_a_handshake(limited):
    made = limited.broker
    log_in(limited)
    made.at(made.now_ms + 100_000)
    log_in(limited)
    assert limited.ask(METADATA, 12, NO_METADATA)


def test_a_second_login_is_refused_where_sessions_do_not_end(client):
    log_in(client)
    assert client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code == ErrorCode.ILLEGAL_SASL_STATE
    answer = send_token(client, plain())
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert answer.error_message == "SaslAuthenticate request received after successful authentication"
    assert client.ask(METADATA, 12, NO_METADATA)


ADA, BOB, APP = ("user", "ada"), ("user", "bob"), ("client-id", "app")
ADAS_APP, ADAS_TOOL, BOBS_APP = ("ada", "app"), ("ada", "tool"), ("bob", "app")


@pytest.mark.parametrize(
    ("entity", "throttled"),
    [
        ([ADA], [ADAS_APP, ADAS_TOOL]),
        ([APP], [ADAS_APP, BOBS_APP]),
        ([APP, BOB], [BOBS_APP]),
        ([("user", None)], [ADAS_APP, ADAS_TOOL, BOBS_APP]),
    ],
)
def test_quotas_apply_to_the_user_that_logged_in_to_its_client_id_and_to_both(entity, throttled):
    made = broker()
    made.create("flights")
    ops = [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]
    named = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    made.connect().ask(ALTER_QUOTAS, 1, {"entries": [{"entity": named, "ops": ops}], "validate_only": False})
    muted = []
    for user, client_id in (ADAS_APP, ADAS_TOOL, BOBS_APP):
        client = made.connect(client_id, listener=LISTENER)
        log_in(client, plain(user))
        client.produce("flights", b"x" * 1_000)
        if not client.conn.wants_data:
            muted.append((user, client_id))
    assert muted == throttled


# --- tokens of OAUTHBEARER that are refused --------------------------------------------------------------------------


@pytest.fixture
def refused():
    """Return a client whose token was answered as one that proves nothing."""
    keys = {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "file:///keys"}
    client = broker(given=keys, connection_failed_authentication_delay_ms=0).connect(listener=LISTENER)
    client.ask(SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"})
    answer = send_token(client, b"n,,\x01auth=Bearer a.b\x01\x01")
    assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    return client


def test_a_client_that_takes_the_refusal_of_its_token_for_a_yes_is_told_why_in_the_log(refused):
    """kafkajs does. RFC 7628 wants an acknowledgement first."""
    refused.send(METADATA, 12, NO_METADATA)
    assert refused.closed.startswith("a signed token has three parts, and this one has 2; then Unexpected Kafka re")
    assert refused.replies() == []


def test_a_client_that_leaves_after_the_refusal_of_its_token_is_named_in_the_log_and_counted(refused):
    made = refused.broker
    made.engine.closed(refused.conn)
    assert refused.conn.close_reason == "a signed token has three parts, and this one has 2"
    figures = made.services.sasl.figures
    assert (figures.succeeded, figures.failed, figures.open) == (0, 1, 0)


def test_outcomes_are_counted(client):
    made = client.broker
    log_in(client)
    other = made.connect(listener=LISTENER)
    shake_hands(other)
    other.send(SASL_AUTHENTICATE, 2, {"auth_bytes": plain("eve")})
    figures = made.services.sasl.figures
    assert (figures.succeeded, figures.failed, figures.open) == (1, 1, 0)
