"""LivingBrokers: which brokers a client finds in ZooKeeper, and when it looks again."""

import pytest

from broker.client.address import Address
from broker.client.registry.living_brokers import RETRY_MS, LivingBrokers
from broker.cluster.documents import Endpoint, Registration, broker_path
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import CoordinationError, Create, Delete, Get, Set, run

ONE, TWO = Address("one", 9092), Address("two", 9092)


def registration(address, protocol="PLAINTEXT"):
    return Registration((Endpoint(protocol, protocol, *address),), timestamp_ms=0).encode()


class Client:
    """A client's session, with the shell's steps: take events, read if it is due."""

    def __init__(self, ensemble):
        self.session = MemoryCoordinator(ensemble)
        self.brokers = LivingBrokers()
        self.now_ms = 0

    def read_if_due(self):
        """Return True if the brokers were read again."""
        for event in self.session.take_events():
            self.brokers.notified(event)
        if not self.brokers.is_due(self.now_ms):
            return False
        try:
            run(self.session, self.brokers.read(self.now_ms))
        except CoordinationError as error:
            self.brokers.failed(error, self.now_ms)
        return True

    @property
    def addresses(self):
        self.read_if_due()
        return self.brokers.addresses


@pytest.fixture
def cluster():
    return Cluster()


class Cluster:
    """Brokers that come and go."""

    def __init__(self):
        self.ensemble = Ensemble()
        self.session = MemoryCoordinator(self.ensemble)
        self.session.execute(Create("/brokers/ids"))

    def begin(self, broker_id, address, protocol="PLAINTEXT"):
        data = registration(address, protocol)
        self.session.execute(Create(broker_path(broker_id), data, ephemeral=True))

    def end(self, broker_id):
        self.session.execute(Delete(broker_path(broker_id)))

    def client(self):
        return Client(self.ensemble)


def test_a_client_finds_the_brokers_that_live(cluster):
    cluster.begin(1, ONE)
    cluster.begin(2, TWO)
    assert cluster.client().addresses == {1: ONE, 2: TWO}


def test_a_client_follows_brokers_that_come_and_go(cluster):
    cluster.begin(1, ONE)
    client = cluster.client()
    assert client.addresses == {1: ONE}
    cluster.begin(2, TWO)
    assert client.addresses == {1: ONE, 2: TWO}
    cluster.end(1)
    assert client.addresses == {2: TWO}


def test_a_client_sees_a_broker_that_came_back_elsewhere_at_once(cluster):
    cluster.begin(1, ONE)
    client = cluster.client()
    assert client.addresses == {1: ONE}
    cluster.end(1)
    cluster.begin(1, TWO)
    assert client.addresses == {1: TWO}


def test_a_client_sees_a_registration_that_a_broker_changes(cluster):
    """A broker of Apache Kafka writes its node again when its listeners are changed (KIP-226)."""
    cluster.begin(1, ONE)
    client = cluster.client()
    assert client.addresses == {1: ONE}
    cluster.session.execute(Set(broker_path(1), registration(TWO), 0))
    assert client.addresses == {1: TWO}


def test_a_client_reads_nothing_while_nothing_changes(cluster):
    cluster.begin(1, ONE)
    client = cluster.client()
    assert client.read_if_due()
    client.now_ms += 3_600_000
    assert not client.read_if_due()


def test_a_client_keeps_the_brokers_it_knows_while_zookeeper_is_away(cluster):
    cluster.begin(1, ONE)
    client = cluster.client()
    assert client.addresses == {1: ONE}
    client.session.cut()
    cluster.end(1)
    cluster.begin(2, TWO)
    assert client.addresses == {1: ONE}
    client.session.heal()
    assert client.addresses == {2: TWO}


def test_a_client_reads_again_after_its_session_ended(cluster):
    cluster.begin(1, ONE)
    client = cluster.client()
    assert client.addresses == {1: ONE}
    client.session.expire()
    cluster.begin(2, TWO)
    assert client.addresses == {1: ONE, 2: TWO}


def test_a_read_whose_answer_got_lost_is_repeated_after_a_pause(cluster):
    cluster.begin(1, ONE)
    client = cluster.client()
    client.session.lose_answers = 1
    assert client.addresses == {} and "lost" in client.brokers.problem
    assert not client.read_if_due()
    client.now_ms += RETRY_MS
    assert client.addresses == {1: ONE} and client.brokers.problem is None


def test_a_client_keeps_the_last_brokers_when_none_is_registered(cluster):
    """Their sessions may have ended because ZooKeeper was down, and they may answer all the same."""
    cluster.begin(1, ONE)
    client = cluster.client()
    assert client.addresses == {1: ONE}
    cluster.end(1)
    assert client.addresses == {1: ONE}
    assert client.brokers.problem == "no broker is registered"


def test_a_client_finds_the_first_broker_of_an_empty_ensemble():
    """A node that does not exist takes no watch for its children, so the client looks again and again."""
    ensemble = Ensemble()
    client = Client(ensemble)
    assert client.addresses == {}
    missing = "there is no /brokers/ids: no broker has been in this chroot, so check its name"
    assert client.brokers.problem == missing
    other = MemoryCoordinator(ensemble)
    other.execute(Create(broker_path(1), registration(ONE), ephemeral=True))
    client.now_ms += RETRY_MS
    assert client.addresses == {1: ONE}


def test_a_broker_without_plaintext_is_left_out_by_name(cluster):
    cluster.begin(1, ONE)
    cluster.begin(2, TWO, protocol="SSL")
    client = cluster.client()
    assert client.addresses == {1: ONE}
    assert client.brokers.problem == (
        "broker 2 has no listener with the protocol PLAINTEXT, but with SSL, which security.protocol of a client's "
        "properties names"
    )


@pytest.mark.parametrize(
    "name, data, problem",
    [
        ("2", b"no JSON", "/brokers/ids/2: b'no JSON' is not JSON"),
        ("two", registration(TWO), "/brokers/ids/two: 'two' is no number of a broker"),
    ],
)
def test_a_damaged_node_hides_no_other_broker(cluster, name, data, problem):
    cluster.begin(1, ONE)
    cluster.session.execute(Create(f"/brokers/ids/{name}", data))
    client = cluster.client()
    assert client.addresses == {1: ONE}
    assert client.brokers.problem.startswith(problem)


def test_a_broker_that_goes_during_the_read_is_left_out(cluster):
    cluster.begin(1, ONE)
    cluster.begin(2, TWO)
    client = cluster.client()
    reading = client.brokers.read(client.now_ms)
    names = client.session.execute(next(reading))
    cluster.end(1)
    first = reading.send(names)
    with pytest.raises(CoordinationError) as missing:
        client.session.execute(first)
    second = reading.throw(missing.value)
    assert second == Get(broker_path(2), watch=True)
    with pytest.raises(StopIteration):
        reading.send(client.session.execute(second))
    assert client.brokers.addresses == {2: TWO}
