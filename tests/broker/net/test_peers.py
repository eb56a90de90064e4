"""The connections to other brokers, on a clock that the test moves, to real engines without a network."""

import pytest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.static.primitive import i32
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.cluster.channel import Call
from broker.membership.calls import AddressedCall, FetchCall
from broker.membership.peer_calls import PeerCall
from broker.net.peers import ANSWER_SECONDS, RECONNECT_SECONDS, PeerConnections
from broker.wire.fetch import FetchRequest
from tests.broker.engine_client import EngineBroker

REQUEST = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


class Transport:
    """The transport of a connection to an engine, or to a broker that never answers."""

    def __init__(self, world, protocol, broker):
        self.world, self.protocol = world, protocol
        self.client = None if broker is None else broker.connect("1")
        self.sent = bytearray()
        self.is_lost = False

    def setTcpNoDelay(self, enabled):
        pass

    def write(self, data):
        self.sent += data
        if self.client is not None and not self.is_lost:
            self.client.feed(data)
            answers, self.client.received = self.client.received, bytearray()
            self.world.clock.callLater(0, self.deliver, bytes(answers))

    def deliver(self, data):
        if not self.is_lost:
            self.protocol.dataReceived(data)

    def abortConnection(self):
        self.world.clock.callLater(0, self.lose)

    def lose(self):
        if not self.is_lost:
            self.is_lost = True
            self.protocol.connectionLost(Failure(ConnectionAbortedError("lost")))


class World:
    """A broker, 1, with its connections. `brokers` has those that listen, by port; None never answers."""

    def __init__(self):
        self.clock = Clock()
        self.brokers, self.transports, self.attempts = {}, [], []
        self.answers, self.reported = [], []
        self.hangs = False
        answered = lambda call, response: self.answers.append((call, response))  # noqa: E731
        self.peers = PeerConnections(self.clock, 1, answered, self.reported.append, self.connect)

    def connect(self, address, protocol):
        self.attempts.append((self.clock.seconds(), address.port))
        connecting = Deferred()
        if self.hangs:
            return connecting
        self.clock.callLater(0, self.connected, connecting, address, protocol)
        return connecting

    def connected(self, connecting, address, protocol):
        if address.port not in self.brokers:
            connecting.errback(ConnectionRefusedError())
            return
        transport = Transport(self, protocol, self.brokers[address.port])
        self.transports.append(transport)
        protocol.makeConnection(transport)
        connecting.callback(protocol)

    def send(self, call, port=9002):
        self.peers.send([AddressedCall("localhost", port, call)])
        return call

    def later(self, seconds=0.0):
        self.clock.pump([seconds] + [0] * 10)

    @property
    def responses(self):
        """Return what was answered, in order: the number of brokers in a response, or None."""
        return [None if response is None else len(response.brokers) for _, response in self.answers]


@pytest.fixture
def world():
    world = World()
    world.brokers[9002] = EngineBroker()
    return world


def ask(broker_id=2):
    return PeerCall(broker_id, REQUEST)


def order(broker_id=2):
    return Call(broker_id, 7, REQUEST)


def fetch(*, is_anew=False):
    return FetchCall(2, FetchRequest(0, 1, 1 << 20, [], replica_id=1, wants_ids=True), is_anew)


def test_calls_share_a_kept_connection_and_are_answered_in_order(world):
    calls = [world.send(ask()) for _ in range(3)]
    assert world.answers == [], "nothing is answered from `send`"
    world.later()
    calls.append(world.send(ask()))
    world.later()
    assert [call for call, _ in world.answers] == calls and world.responses == [1] * 4
    assert len(world.transports) == 1


def test_orders_have_a_connection_of_their_own(world):
    """A marker that waits for a disk does not keep the next order waiting."""
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.brokers[9002] = EngineBroker()
    call = world.send(order())
    world.later()
    assert [answered for answered, _ in world.answers] == [call]


def test_a_fetch_that_its_leader_holds_keeps_no_request_waiting(world):
    world.brokers[9002] = None
    world.send(fetch())
    world.later()
    world.brokers[9002] = EngineBroker()
    call = world.send(ask())
    world.later()
    assert [answered for answered, _ in world.answers] == [call]


def test_a_fetch_is_answered_with_what_its_leader_has(world):
    call = world.send(fetch())
    world.later()
    ((answered, response),) = world.answers
    assert answered is call and response.error_code == 0 and response.partitions == []


def test_a_fetch_may_begin_a_new_connection(world):
    first = world.send(fetch())
    world.later()
    second = world.send(fetch(is_anew=True))
    world.later(1)
    assert [call for call, _ in world.answers] == [first, second]
    assert len(world.transports) == 2 and world.transports[0].is_lost


def test_the_client_id_is_the_brokers_own_id_and_no_api_versions_comes_before(world):
    world.send(ask())
    world.later()
    (transport,) = world.transports
    assert transport.sent[4:8] == b"\x00\x03\x00\x0c" and transport.sent[12:15] == b"\x00\x011"


def test_a_refused_connection_answers_the_calls_that_wait_for_it(world):
    world.send(ask(), port=9009), world.send(ask(), port=9009)
    world.later()
    assert world.responses == [None, None] and len(world.attempts) == 1


def test_a_broker_is_connected_at_most_once_in_100_ms(world):
    for _ in range(5):
        world.send(ask(), port=9009)
        world.later(0.03)
    world.later(1)
    times = [at for at, _ in world.attempts]
    assert len(world.responses) == 5 and all(b - a >= RECONNECT_SECONDS for a, b in zip(times, times[1:]))


def test_one_attempt_is_under_way_at_a_time(world):
    world.hangs = True
    for _ in range(3):
        world.send(ask())
        world.later(1)
    assert len(world.attempts) == 1


def test_a_broker_that_cannot_be_reached_is_reported_once_and_so_is_its_return(world):
    for _ in range(3):
        world.send(ask(), port=9003)
        world.later(1)
    world.brokers[9003] = EngineBroker()
    world.send(ask(), port=9003)
    world.later(1)
    assert len(world.reported) == 2
    assert world.reported[0].startswith("broker 2 at localhost:9003 cannot be reached: Connection was refused")
    assert world.reported[1] == "broker 2 at localhost:9003 can be reached again"


def test_a_lost_connection_answers_its_calls_and_the_next_call_makes_another(world):
    world.brokers[9002] = None
    world.send(ask()), world.send(ask())
    world.later()
    world.transports[0].lose()
    assert world.responses == [None, None]
    world.brokers[9002] = EngineBroker()
    world.send(ask())
    world.later(1)
    assert world.responses == [None, None, 1]


def test_without_an_answer_in_30_s_the_connection_is_closed(world):
    """So no marker that it still holds is written late."""
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.later(20)
    world.send(ask())
    world.later(ANSWER_SECONDS - 21)
    assert world.answers == []
    world.later(1)
    assert world.responses == [None, None] and world.transports[0].is_lost
    assert "no answer within 30 s" in world.reported[0]


def test_the_time_of_an_answer_counts_from_its_own_call(world):
    world.send(ask())
    world.later()
    world.later(29)
    world.transports[0].client = None
    world.send(ask())
    world.later(29)
    assert world.responses == [1]
    world.later(1)
    assert world.responses == [1, None]


def test_an_answer_that_cannot_be_read_closes_the_connection(world):
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.transports[0].deliver(b"\x00\x00\x00\x04" + i32(99).to_bytes(4, "big"))
    world.later()
    assert world.responses == [None] and "correlation id 99" in world.reported[0]


def test_a_broker_with_another_address_is_asked_there(world):
    world.brokers[9002], world.brokers[9005] = None, EngineBroker()
    world.send(ask(), port=9002)
    world.later()
    world.send(ask(), port=9005)
    world.later()
    assert sorted(world.responses, key=str) == [1, None] and world.transports[0].is_lost


def test_a_stop_closes_all_connections_and_answers_nothing(world):
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.send(ask(3), port=9009)
    world.peers.stop()
    world.send(ask())
    world.later(1)
    assert world.answers == [] and world.transports[0].is_lost and world.clock.getDelayedCalls() == []
