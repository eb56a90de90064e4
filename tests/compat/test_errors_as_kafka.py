"""The errors of tests/broker/every_error.py are those of Apache Kafka: one node of it is asked the same."""

from tests.broker.any_api import World, codes_of
from tests.broker.every_error import CASES
from tests.compat.raw_connection import RawConnection


class SocketLine:
    """A connection to a broker."""

    def __init__(self, address):
        self._address = address
        self._connection = RawConnection(address)

    def another(self):
        return SocketLine(self._address)

    def send(self, frame):
        self._connection.socket.sendall(frame)

    def receive(self):
        size = int.from_bytes(self._connection.read_exactly(4), "big")
        return self._connection.read_exactly(size)

    def rest(self):
        """Each question takes its time as it is."""


def told(address, case, version, topic):
    """The codes of Kafka's answer; why there is none."""
    try:
        return codes_of(case.ask(World(SocketLine(address), case.api, version, topic)))
    except Exception as error:
        return [repr(error)]


def test_a_request_that_is_refused_here_is_refused_alike_by_kafka(kafka):
    topic = World(SocketLine(kafka)).topic
    differ = []
    for case in CASES:
        for version in () if case.inside else case.versions:
            found = told(kafka, case, version, topic)
            if case.kafkas not in found:
                differ.append(f"{case.api} v{version}: {case.code.name}, Kafka {found}")
    assert not differ, "\n".join(differ)
