"""The connections of a broker to others, on a clock that the test moves, to real engines without a network."""

from kio.schema.metadata.v12.request import MetadataRequest
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.cluster.channel import Call
from broker.membership.calls import AddressedCall, FetchCall
from broker.membership.peer_calls import PeerCall
from broker.net.peers import PeerConnections
from broker.wire.fetch import FetchRequest

REQUEST = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


class Transport:
    """The transport of a connection to an engine, or to a broker that never answers."""

    def __init__(self, world, protocol, broker):
        self.world, self.protocol = world, protocol
        self.client = None if broker is None else broker.connect("1", listener=world.listener)
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

    def lose(self, error=ConnectionAbortedError("lost")):
        if not self.is_lost:
            self.is_lost = True
            self.protocol.connectionLost(Failure(error))


class World:
    """A broker, 1, with its connections. `brokers` has those that listen, by port; None never answers.

    `listener` is theirs, and `security` is what the connections have.
    """

    def __init__(self, listener="", security=None):
        self.listener, self.security = listener, security
        self.clock = Clock()
        self.brokers, self.transports, self.attempts = {}, [], []
        self.answers, self.reported = [], []
        self.hangs = False
        answered = lambda call, response: self.answers.append((call, response))  # noqa: E731
        self.peers = PeerConnections(
            self.clock, 1, answered, self.reported.append, self.connect, lambda: self.security
        )

    def connect(self, address, protocol, security):
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
        for broker in self.brokers.values():
            if broker is not None and seconds:
                broker.at(broker.now_ms + round(seconds * 1_000))
        self.clock.pump([seconds] + [0] * 10)

    @property
    def responses(self):
        """Return what was answered, in order: the number of brokers in a response, or None."""
        return [None if response is None else len(response.brokers) for _, response in self.answers]


def ask(broker_id=2):
    return PeerCall(broker_id, REQUEST)


def order(broker_id=2, request=REQUEST):
    return Call(broker_id, 7, request)


def fetch(*, is_anew=False, partitions=()):
    return FetchCall(2, FetchRequest(0, 1, 1 << 20, list(partitions), replica_id=1, wants_ids=True), is_anew)
