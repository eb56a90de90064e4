"""The network of a simulated cluster: connections that delay, lose, and are cut in one direction.

A connection carries its bytes in order. A lost request or answer breaks it. Bytes that a cut holds back arrive when the
cut is healed, unless the connection was broken meanwhile. What a sender sent before it closed a connection arrives
nevertheless: a process that was stopped for a while finds it in its socket when it goes on.
"""

from collections import deque

from broker.client.address import Address
from broker.client.connection import ClientConnection
from broker.membership.calls import Link as LinkKind
from broker.membership.calls import exchange_of_call, link_of, response_to_call
from tests.broker.engine_client import LIST_OFFSETS, OFFSET_FETCH, PRODUCE
from tests.broker.engine_cluster import BROKERS, CLIENTS

CALL_MS = 5_000
"""A broker closes a connection on which another does not answer for so long."""


class Connection:
    """A connection to a broker's process, from a broker (`source`) or from a client (None)."""

    def __init__(self, world, source, process, listener, name, kind=None):
        self.world, self.source, self.process, self.kind = world, source, process, kind
        self.peer = process.broker.connect(name, listener=listener)
        self.is_open = True
        self._has_lost = False  # bytes: none that follow arrive, and the connection ends soon
        self._held = []
        self._arrival_ms = self._answer_ms = 0
        process.connections.append(self)

    def send(self, data):
        """Send a request."""
        if self._loses():
            return
        if self.world.is_cut(self.source, self.process.id, self.kind):
            self._held.append(lambda: self.send(data))
        else:
            self._arrival_ms = max(self._arrival_ms, self.world.now_ms + self._delay_ms())
            self.world.at(self._arrival_ms, lambda: self._arrive(data))

    def _delay_ms(self):
        """Return how long bytes are on their way, longer from and to a broker whose network is slow."""
        slowness = self.world.slowness_ms
        return self.world.delay() + max(slowness.get(self.source, 0), slowness.get(self.process.id, 0))

    def _loses(self):
        """Return True if the bytes to send are lost, as all are that follow lost ones."""
        if not self._has_lost and self.world.is_lost():
            self._has_lost = True
            self.world.after(self.world.delay(), self.end)
        return self._has_lost

    def _arrive(self, data):
        def arrive():
            if self.peer.closed is None and self.peer.conn.close_reason is None:
                self.peer.feed(data)

        self.process.do(arrive)

    def answer(self, deliver):
        """Pass an answer to the other end with `deliver`."""
        if not self.is_open or self._loses():
            return
        if self.world.is_cut(self.process.id, self.source, self.kind):
            self._held.append(lambda: self.answer(deliver))
        else:
            self._answer_ms = max(self._answer_ms, self.world.now_ms + self._delay_ms())
            self.world.at(self._answer_ms, lambda: deliver() if self.is_open else None)

    def healed(self):
        """Let the bytes go on that a cut has held back."""
        held, self._held = self._held, []
        for go_on in held:
            go_on()

    def pumped(self):
        """Take what the process has answered, or closed."""
        if self.peer.received:
            self.take_answers()
        if self.peer.closed is not None and self.is_open:
            self.world.after(self.world.delay(), self.end)

    def end(self):
        """Break the connection: both ends hear of it."""
        if not self.is_open:
            return
        self.is_open = False
        self._held.clear()
        self.lost()
        self._arrival_ms = max(self._arrival_ms, self.world.now_ms + self.world.delay())
        self.world.at(self._arrival_ms, lambda: self.process.do(self._close))

    def _close(self):
        if self in self.process.connections:
            self.process.connections.remove(self)
            if self.peer.closed is None:
                self.process.broker.engine.closed(self.peer.conn)

    def take_answers(self):
        """Pass the answers that `peer` has received on."""
        raise NotImplementedError

    def lost(self):
        """Take note that no more answers come."""
        raise NotImplementedError


class Link(Connection):
    """A connection from one broker to another, for calls of a kind."""

    def __init__(self, sender, process, kind):
        super().__init__(sender.world, sender.id, process, BROKERS, f"broker-{sender.id}", kind)
        self.sender = sender
        self._frames = ClientConnection(str(sender.id))
        self._calls = deque()

    def call(self, call):
        self._calls.append(call)
        _, data = self._frames.request(exchange_of_call(Address("localhost", 1), call))
        self.send(data)
        self.world.after(CALL_MS, lambda: self.sender.do(lambda: self._time_out(call)))

    def _time_out(self, call):
        if call in self._calls:
            self.end()

    def take_answers(self):
        data, self.peer.received[:] = bytes(self.peer.received), b""
        self.answer(lambda: self.sender.do(lambda: self._received(data)))

    def _received(self, data):
        if not self.is_open:
            return
        for answer in self._frames.receive(memoryview(data), is_reused=False):
            call = self._calls.popleft()
            self.sender.called(call, response_to_call(call, answer.body))
            if link_of(call) is not LinkKind.FETCHES:
                self.world.promised(call.request.__api_key__, self.process)

    def lost(self):
        calls, self._calls = list(self._calls), deque()
        for call in calls:
            self.sender.do(lambda call=call: self.sender.called(call, None))


class ClientLink(Connection):
    """A client's connection to a broker, with one request at a time."""

    def __init__(self, world, process, name):
        super().__init__(world, None, process, CLIENTS, name)
        self.name = name
        self.sent_ms = None
        self._answered = self._request = None

    def ask(self, request, answered):
        """Send a request. `answered` receives the answer, or None if the connection is lost."""
        assert self._answered is None
        self._request, self._answered, self.sent_ms = request, answered, self.world.now_ms
        _, data = self.peer.frame(request.api_key, request.version, request.fields, request.tags)
        self.send(data)

    def take_answers(self):
        ((_, answer),) = self.peer.replies()
        if self._is_stale():
            answer = None
        served = self._served()
        if served is not None and self._request.api_key == PRODUCE and answer[0].error_code == 0:
            self.world.oracle.note_served(served, self.process.id)
        self.answer(lambda: self._deliver(answer, served))

    def _is_stale(self):
        """Return True for an offset from a coordinator or a leader that was replaced, and has not heard of it.

        As in Kafka, it tells what it knows: its own end for an id that only later leaders have given.
        """
        request, world, broker_id = self._request, self.world, self.process.id
        if request.api_key == LIST_OFFSETS:
            return not world.is_leader(broker_id, *request.partition)
        return request.api_key == OFFSET_FETCH and not world.is_coordinator(broker_id, request.fields["group_id"])

    def _served(self):
        """Return (topic id, partition, leader epoch) of the partition that was asked for, None if it is not hosted."""
        if self._request.partition is None:
            return None
        name, number = self._request.partition
        topic = self.process.broker.services.hosted.topic(name)
        if topic is None or number >= len(topic.partitions):
            return None
        return topic.id, number, topic.partitions[number].leader_epoch

    def _deliver(self, answer, served=None):
        if self._answered is not None:
            if answer is not None:
                self.world.promised(self._request.api_key, self.process)
            answered, self._answered = self._answered, None
            self.sent_ms = None
            self.world.served[self.name] = None if served is None else self.world.oracle.key_of(*served)
            answered(answer)

    def lost(self):
        self._deliver(None)
