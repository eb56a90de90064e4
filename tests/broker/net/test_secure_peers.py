"""The connections to other brokers that ask who this one is, and allow it what its user may do."""

from uuid import UUID

import pytest
from twisted.internet.testing import MemoryReactorClock

from broker.client.errors import NotAuthenticated
from broker.client.security.client_security import ClientSecurity
from broker.membership.calls import AddressedCall, is_denied
from broker.metadata.image import RegisteredBroker
from broker.net.peers import DENIED_SECONDS, REFUSED_SECONDS, PeerConnections
from broker.security.authorization.acl import Operation
from broker.security.sasl.config import sasl_of
from broker.security.sasl.listeners import SaslListeners
from broker.wire.fetch import FetchPartition
from tests.broker.engine_client import EngineBroker
from tests.broker.membership.orders import stop_replica
from tests.broker.net.peer_world import World, ask, fetch, order

LISTENER = "BROKERS"
OF_LISTENER = "listener.name.brokers.plain"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = f'{MODULE} required user_broker="secret" user_stranger="strange";'
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SESSION_S = 10


def asking(session_s=0, **settings):
    """Return a broker that asks at its listener of brokers who they are."""
    given = {
        "sasl.enabled.mechanisms": "PLAIN",
        f"{OF_LISTENER}.sasl.jaas.config": USERS,
        f"{OF_LISTENER}.connections.max.reauth.ms": str(session_s * 1_000),
    }
    sasl = SaslListeners(given, {LISTENER: sasl_of(LISTENER, given)}, b"secret", lambda: "nonce", lambda line: None)
    membership = {"sasl": sasl, "inter_broker_listener": LISTENER}
    own = RegisteredBroker(2, {LISTENER: ("localhost", 9002)})
    return EngineBroker(own=own, membership=membership, connection_failed_authentication_delay_ms=0, **settings)


def security(user="broker", password="secret"):
    jaas = f'{MODULE} required username="{user}" password="{password}";'
    return ClientSecurity.of(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    )


def world_of(broker, **login):
    world = World(LISTENER, security(**login))
    world.brokers[9002] = broker
    return world


def users(world):
    return [transport.client.conn.user for transport in world.transports]


@pytest.fixture
def world():
    return world_of(asking())


def test_calls_wait_for_the_login_and_are_then_those_of_the_brokers_user(world):
    calls = [world.send(ask()), world.send(ask())]
    world.later()
    assert [call for call, _ in world.answers] == calls and world.responses == [1, 1]
    assert users(world) == ["broker"] and world.reported == []


def test_a_wrong_password_is_named_once_and_tried_again_after_a_second(world):
    world.security = security(password="wrong")
    for _ in range(3):
        world.send(ask())
        world.later(REFUSED_SECONDS / 4)
    assert len(world.attempts) == 1 and world.responses == [None]
    (line,) = world.reported
    assert "broker 2 at localhost:9002 cannot be reached: the broker refuses the login by PLAIN" in line
    assert "check user and password" in line
    world.security = security()
    world.later(REFUSED_SECONDS)
    assert world.responses == [None, 1, 1] and "can be reached again" in world.reported[1]


def test_a_login_that_gets_no_answer_ends(world):
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.later(10)
    assert world.responses == [None] and world.transports[0].is_lost
    assert "no login within 10 s" in world.reported[0]


def test_a_connection_that_ends_during_the_login_is_named_once_and_tried_again_after_a_second(world):
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    for _ in range(3):
        world.transports[-1].lose()
        world.send(ask())
        world.later(REFUSED_SECONDS)
    assert [at_s for at_s, _ in world.attempts] == [REFUSED_SECONDS * times for times in range(4)]
    assert world.responses == [None] * 3
    (line,) = world.reported
    assert line == "broker 2 at localhost:9002 cannot be reached: the connection ended during the login: lost"


def test_a_certificate_that_the_other_broker_refuses_is_named_once():
    """In TLS 1.3 the client's handshake succeeds before the server judges the client's certificate."""
    world = World()
    world.brokers[9002] = None
    refused = "it does not trust this client's certificate"
    for _ in range(3):
        world.send(ask())
        world.later()
        world.transports[-1].lose(NotAuthenticated("localhost:9002", refused))
        world.later(REFUSED_SECONDS)
    assert len(world.attempts) == 3
    assert world.reported == [f"broker 2 at localhost:9002 cannot be reached: {refused}"]
    world.brokers[9002] = EngineBroker()
    world.send(ask())
    world.later()
    assert world.reported[1:] == ["broker 2 at localhost:9002 can be reached again"]


def test_a_connection_that_cannot_begin_answers_its_calls_and_is_tried_again_after_a_second():
    """TLS refuses a name of a host with an empty part (IDNA)."""
    clock, responses, lines = MemoryReactorClock(), [], []
    over_tls = ClientSecurity.of({"security.protocol": "SSL"})
    answered = lambda call, response: responses.append(response)  # noqa: E731
    peers = PeerConnections(clock, 1, answered, lines.append, security=lambda: over_tls)
    for seconds in (0, REFUSED_SECONDS / 2):
        peers.send([AddressedCall("two..example", 9002, ask())])
        clock.advance(seconds)
        assert responses == [None]
    clock.advance(REFUSED_SECONDS / 2)
    assert responses == [None, None]
    (line,) = lines
    assert line.startswith("broker 2 at two..example:9002 cannot be reached: ")


def test_a_session_is_renewed_before_its_end_and_no_call_is_lost():
    """KIP-368: the broker would close the connection at the first request after the end of a session."""
    world = world_of(asking(SESSION_S))
    world.send(ask())
    world.later()
    for second in range(5 * SESSION_S):
        world.send(ask())
        world.later(1)
    assert world.responses == [1] * (5 * SESSION_S + 1) and len(world.transports) == 1


def test_calls_that_are_sent_during_another_login_wait_for_its_end():
    world = world_of(asking(SESSION_S))
    world.send(ask())
    world.later()
    (transport,) = world.transports
    transport.client, client = None, transport.client  # from now on the network keeps what is sent
    sent = len(transport.sent)
    world.later(SESSION_S * 0.95)
    world.send(ask())
    handshake = bytes(transport.sent[sent:])
    assert handshake[4:6] == b"\x00\x11"
    world.send(ask())
    assert transport.sent[sent:] == handshake
    transport.client = client
    del transport.sent[sent:]
    transport.write(handshake)
    world.later()
    assert world.responses == [1, 1, 1] and len(world.transports) == 1


def test_a_new_password_is_for_the_next_login_and_open_connections_live_on(world):
    world.send(ask())
    world.later()
    world.security = security(user="stranger", password="strange")
    world.send(ask()), world.send(order())
    world.later()
    assert len(world.answers) == 3 and users(world) == ["broker", "stranger"]


def test_a_session_is_renewed_with_an_altered_password():
    broker = asking(SESSION_S)
    world = world_of(broker)
    world.send(ask())
    world.later()
    broker.services.sasl.use({f"{OF_LISTENER}.sasl.jaas.config": USERS.replace('"secret"', '"altered"')})
    world.security = security(password="altered")
    world.later(SESSION_S * 0.95)
    world.send(ask())
    world.later()
    assert world.responses == [1, 1] and len(world.transports) == 1 and world.reported == []


def test_a_session_keeps_its_user_and_the_next_connection_has_the_altered_one():
    """KIP-368: a broker refuses another user, or another mechanism, where a session is renewed."""
    world = world_of(asking(SESSION_S))
    world.send(ask())
    world.later()
    world.security = security(user="stranger", password="strange")
    world.later(SESSION_S * 0.95)
    world.send(ask()), world.send(order())
    world.later()
    assert len(world.answers) == 3 and users(world) == ["broker", "stranger"] and world.reported == []


def test_a_broker_without_cluster_action_is_named_once_a_minute_and_its_orders_are_repeated():
    """The other broker has a line in its audit log for the same."""
    world = world_of(asking(authorizer_class_name=STANDARD, super_users="User:admin"))
    call = world.send(order(request=stop_replica("flights", 0, delete=True)))
    world.later()
    assert world.answers == [(call, None)]
    (line,) = world.reported
    assert "broker 2 at localhost:9002 denies StopReplica: this broker's user there needs" in line
    world.send(fetch(partitions=[FetchPartition(UUID(int=7), 0, 0, 1 << 20)]))
    world.later(1)
    (_, response) = world.answers[1]
    assert is_denied(response) and len(world.reported) == 1
    world.send(order(request=stop_replica("flights", 0, delete=True)))
    world.later(DENIED_SECONDS)
    assert len(world.reported) == 2
    (broker,) = world.brokers.values()
    assert any(f"Denied operation = {Operation.CLUSTER_ACTION.name}" in told for told in broker.reported)
