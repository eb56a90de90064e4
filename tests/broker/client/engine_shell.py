"""A shell for the client's cores over an EngineBroker: no socket, and a fault at any exchange the test chooses.

    shell = EngineShell(broker)
    shell.run(producer.begin())

`fault(exchange)` is called before each exchange. It returns LOST_REQUEST (the broker never sees it), LOST_ANSWER (the
broker executes it) or None.
"""

from broker.client.connection import ClientConnection
from broker.client.core import Address, ClientCore, carry_out
from broker.client.errors import TryAgain, Unreachable
from broker.client.records import read_records
from broker.wire.fetch import READ_COMMITTED

LOST_REQUEST, LOST_ANSWER = "lost request", "lost answer"
TRIES_MAX = 200


def read_committed(broker, topic, partition=0):
    """Return the values of a partition's committed records, from its start to the last stable offset."""
    shell, offset, values = EngineShell(broker), 0, []
    while True:
        fetched = shell.run(
            shell.core.fetch(topic, partition, offset, max_wait_ms=0, isolation_level=READ_COMMITTED)
        )
        read = read_records(fetched, offset)
        if read.next_offset == offset:
            return values
        offset = read.next_offset
        values += [record.value for record in read.records]


class EngineShell:
    def __init__(self, broker, fault=lambda exchange: None):
        self.broker = broker
        self.fault = fault
        self.core = ClientCore([Address("localhost", 9092)])
        self.api_keys = []

    def run(self, steps):
        """Carry out an operation once; return its result."""
        return carry_out(steps, self._exchange)

    def persist(self, make):
        """Carry out an operation until it stops raising TryAgain. The broker's clock moves in the pauses."""
        for _ in range(TRIES_MAX):
            try:
                return self.run(make())
            except TryAgain as again:
                self.broker.at(self.broker.now_ms + again.pause_ms)
        raise AssertionError(f"{make} still asks to be called again")

    def _exchange(self, exchange):
        self.api_keys.append(exchange.api_key)
        fault = self.fault(exchange)
        address = str(exchange.address)
        if fault == LOST_REQUEST:
            self.core.forget(exchange.address)
            raise Unreachable(address, fault)
        connection, client = ClientConnection(), self.broker.connect()
        client.feed(connection.request(exchange)[1])
        answers = connection.receive(memoryview(bytes(client.received)), is_reused=False)
        if fault == LOST_ANSWER or not answers:
            self.core.forget(exchange.address)
            raise Unreachable(address, fault or "no answer")
        return answers[0].body
