"""Our own clients at brokers that close, refuse or send invalid answers: each call raises a ClientError with the cause.

broker.client has a blocking client for plain programs and a Twisted client for programs on a reactor. Both share one
core, so both must raise the same errors.
"""

import ast
import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from broker.client.asyncio import CONNECT_MS_MAX, AsyncClient
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.core import Exchange
from broker.client.errors import BadAnswer, Unreachable
from broker.record.records import BatchRecord, encode_batch
from broker.wire import cold, fetch
from broker.wire.fetch import FetchedPartition, FetchResponse
from coordination.free_port import FreePort
from tests.compat.server_process import PYTHONPATH, ServerProcess
from tests.patience import MS, SECONDS

API_VERSIONS, METADATA, LIST_OFFSETS, FETCH = 18, 3, 2, 1


class ScriptedBroker:
    """A broker that answers each request with `answer(api_key)`: a body, or None to close the connection."""

    def __init__(self, answer, wrong_id=False):
        self._answer = answer
        self._wrong_id = wrong_id
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._socket.getsockname())
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def _serve(self):
        try:
            while True:
                threading.Thread(target=self._serve_peer, args=(self._socket.accept()[0],), daemon=True).start()
        except OSError:
            return

    def _serve_peer(self, peer):
        with peer, suppress(OSError):
            while self._serve_one(peer):
                pass

    def _serve_one(self, peer):
        size = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
        request = peer.recv(size, socket.MSG_WAITALL)
        if len(request) < 8:
            return False
        api_key, correlation_id = int.from_bytes(request[:2], "big"), int.from_bytes(request[4:8], "big")
        body = self._answer(api_key)
        if body is None:
            return False
        tags = b"" if api_key == API_VERSIONS else b"\0"
        frame = (correlation_id + self._wrong_id).to_bytes(4, "big") + tags + body
        peer.sendall(len(frame).to_bytes(4, "big") + frame)
        return True


def versions():
    return cold.encode(
        API_VERSIONS, 3, "response",
        {"error_code": 0, "api_keys": [{"api_key": METADATA, "min_version": 0, "max_version": 12}], "throttle_time": 0},
    )  # fmt: skip


def half_of_metadata(api_key):
    return versions() if api_key == API_VERSIONS else b"\0\0\0\0\x05"


BROKERS = {
    "it closes": (lambda: ScriptedBroker(lambda api_key: None), Unreachable, "closed the connection|cleanly"),
    "another's answer": (lambda: ScriptedBroker(lambda _: versions(), True), Unreachable, "correlation id"),
    "half an answer": (lambda: ScriptedBroker(half_of_metadata), BadAnswer, "MetadataResponse v12"),
    "nonsense": (lambda: ScriptedBroker(lambda _: b"\0"), BadAnswer, "ApiVersionsResponse"),
}


@pytest.mark.parametrize("kind", BROKERS)
def test_what_is_no_answer_is_a_client_error_that_says_so(kind):
    make, error, reason = BROKERS[kind]
    with make() as broker, Client(broker.address, timeout_ms=MS) as client:
        with pytest.raises(error, match=reason):
            client.topics()


@pytest.mark.parametrize("kind", BROKERS)
def test_on_a_reactor_it_is_the_same_error(kind):
    make, error, reason = BROKERS[kind]
    with make() as broker:
        (outcome,) = on_a_reactor("asked(client.topics())", broker.address)
    assert outcome[0] == error.__name__
    assert any(word in outcome[1] for word in reason.split("|"))


class FailingOver:
    """A broker whose first Metadata answer places the leader of t-0 at a closed port; later ones name the broker."""

    def __enter__(self):
        self.looked_up = 0
        self._broker = ScriptedBroker(self._answer)
        self.address = self._broker.address
        return self

    def __exit__(self, *_):
        self._broker.__exit__()

    def _answer(self, api_key):
        if api_key == API_VERSIONS:
            return versions()
        self.looked_up += 1
        host, port = self.address.split(":")
        brokers = [{"node_id": 1, "host": host, "port": int(port)}, {"node_id": 2, "host": host, "port": 1}]
        partition = {"partition_index": 0, "leader_id": 2 if self.looked_up == 1 else 1}
        topic = {"name": "t", "partitions": [partition]}
        return cold.encode(METADATA, 12, "response", {"brokers": brokers, "cluster_id": "c", "topics": [topic]})


def leaders_by_blocking(address):
    with Client(address, timeout_ms=MS) as client:
        first = client.run(client.core.leader("t", 0))
        with pytest.raises(Unreachable):
            client.fetch("t", 0, 0)
        return str(first), str(client.run(client.core.leader("t", 0)))


def leaders_by_asyncio(address):
    async def ask():
        async with AsyncClient(address, timeout_ms=MS) as client:
            first = await client.run(client.core.leader("t", 0))
            with pytest.raises(Unreachable):
                await client.fetch("t", 0, 0)
            return str(first), str(await client.run(client.core.leader("t", 0)))

    return asyncio.run(ask())


def leaders_on_a_reactor(address):
    look_up = "client.run(client.core.leader('t', 0)).addCallback(str)"
    fails = "client.fetch('t', 0, 0).addBoth(lambda failure: failure.type.__name__)"
    again = f"{fails}.addCallback(lambda e: {look_up}.addCallback(lambda b: [a, e, b]))"
    steps = f"{look_up}.addCallback(lambda a: {again})"
    (outcome,) = on_a_reactor(f"asked({steps})", address)
    first, error, second = ast.literal_eval(outcome[1])
    assert error == "Unreachable"
    return first, second


@pytest.mark.parametrize("leaders", (leaders_by_blocking, leaders_by_asyncio, leaders_on_a_reactor))
def test_the_leader_is_looked_up_again_if_the_one_that_is_known_refuses_connections(leaders):
    """A broker of a cluster went away, and another one leads its partitions by now."""
    with FailingOver() as cluster:
        assert leaders(cluster.address) == ("127.0.0.1:1", cluster.address)


@contextmanager
def unconnectable():
    """An address at which an attempt to connect waits, because the queue of the socket that listens is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        yield listening.getsockname()
        for client in waiting:
            client.close()


class HalfReachable:
    """A broker that leads t-0, with a record. The leader of t-1 is at another address."""

    VERSIONS = {METADATA: 12, LIST_OFFSETS: 7, FETCH: 12}

    def __init__(self, other):
        self._other = other
        self._broker = ScriptedBroker(self._answer)
        self.address = self._broker.address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._broker.__exit__()

    def _answer(self, api_key):
        if api_key == API_VERSIONS:
            keys = [{"api_key": key, "min_version": 6, "max_version": newest} for key, newest in self.VERSIONS.items()]
            return cold.encode(API_VERSIONS, 3, "response", {"error_code": 0, "api_keys": keys})
        if api_key == FETCH:
            batch = bytes(encode_batch([BatchRecord(0, 0, None, b"here")], base_timestamp_ms=0))
            answer = FetchResponse([FetchedPartition("t", 0, 0, 1, 1, 0, records=batch)])
            return b"".join(fetch.encode_response(12, answer))
        if api_key == LIST_OFFSETS:
            topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 0}]}]
            return cold.encode(LIST_OFFSETS, 7, "response", {"topics": topics})
        nodes = {1: self.address.split(":"), 2: self._other}
        brokers = [{"node_id": node, "host": host, "port": int(port)} for node, (host, port) in nodes.items()]
        partitions = [{"partition_index": number, "leader_id": number + 1} for number in range(2)]
        fields = {"brokers": brokers, "cluster_id": "c", "topics": [{"name": "t", "partitions": partitions}]}
        return cold.encode(METADATA, 12, "response", fields)


def test_a_broker_to_which_no_connection_comes_about_delays_no_reads_of_another():
    begun = time.monotonic()
    with unconnectable() as other, HalfReachable(other) as broker, Consumer(broker.address, "t") as consumer:
        assert next(consumer).value == b"here"
        assert time.monotonic() - begun < CONNECT_MS_MAX / 1000, "the other attempt to connect is still under way"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\0\0\0\x05hel", "it closed the connection after 3 of 5 bytes"),
        (b"\0\0", "it closed the connection after 2 of 4 bytes"),
        (b"HTTP/1.1 400 Bad Request", "it speaks HTTP"),
        (b"\x15\x03\x03\0\x02", "it speaks TLS"),
        (b"-ERR unknown command", f"it sent a frame of {int.from_bytes(b'-ERR', 'big')} bytes, at most"),
    ],
)
def test_what_is_no_frame_is_refused_before_memory_is_taken(sent, reason):
    """An HTTP answer and a TLS alert read as frames of 1.2 GB and 352 MB."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with listener.accept()[0] as peer:
                peer.recv(1 << 16)
                peer.sendall(sent)

        threading.Thread(target=serve, daemon=True).start()
        address = "{}:{}".format(*listener.getsockname())
        with Client(address, timeout_ms=MS) as client, pytest.raises(Unreachable, match=f"{address}.*{reason}"):
            client.topics()


def test_a_broker_that_falls_silent_is_unreachable_after_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
        silent = pytest.raises(Unreachable, match=f"{address}.*no answer within")
        with Client(address, timeout_ms=50) as client, silent:
            client.topics()


def test_requests_can_be_sent_before_earlier_answers_are_received():
    """The answers come in the order of the requests, each in a buffer of its own. An operation that needs the
    connection meanwhile opens a new one, and takes no answer of another."""
    with ScriptedBroker(lambda api_key: b"answer") as broker, Client(broker.address, timeout_ms=MS) as client:
        address = client.core.bootstrap[0]
        for _ in range(2):
            client.send(Exchange(address, METADATA, 12, True, b""))
        first, second = client.receive(address), client.receive(address)
        assert (bytes(first), bytes(second)) == (b"answer", b"answer") and first.obj is not second.obj
        client.send(Exchange(address, METADATA, 12, True, b""))
        client.give_up(address)
        with pytest.raises(Unreachable, match="the connection is closed"):
            client.receive(address)


def test_a_broker_that_was_started_again_is_found_by_the_next_call(tmp_path):
    """The next call reconnects. It sent nothing on the old connection, so no request can run twice."""
    with ServerProcess(tmp_path / "data").keep_ports() as server, Client(server.address) as client:
        client.create_topic("kept")
        server.restart()
        assert [topic.name for topic in client.topics()] == ["kept"]


def test_a_broker_that_is_away_for_a_moment_is_waited_for_by_retry(tmp_path):
    with ServerProcess(tmp_path / "data").keep_ports() as server, Client(server.address) as client:
        client.create_topic("kept")
        server.kill()
        with pytest.raises(Unreachable):
            client.topics()
        server.launch()
        assert client.retry(client.core.metadata, timeout_ms=MS)[0].name == "kept"


# --- the Twisted client ------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from twisted.internet import reactor
from twisted.internet.defer import DeferredList
from broker.client.twisted import TwistedClient
client = TwistedClient(sys.argv[1], reactor)
outcomes = []
def asked(d):
    d.addCallback(lambda r: outcomes.append(["ok", repr(r)]))
    d.addErrback(lambda f: outcomes.append([f.type.__name__, str(f.value)]))
    return d
def begin():
    DeferredList([d for d in [ASKED] if d is not None]).addCallback(lambda _: reactor.callLater(0, end))
def end():
    client.close()
    reactor.stop()
reactor.callWhenRunning(begin)
reactor.run()
print(json.dumps(outcomes))
"""


def on_a_reactor(calls, address):
    """Return the outcomes of a TwistedClient's calls in order of arrival, each as [kind, text]."""
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    argv = [sys.executable, "-c", PROGRAM.replace("ASKED", calls), address]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def nobody():
    """An address where connections are refused."""
    with FreePort() as port:
        yield port.address


def test_all_who_wait_for_a_connection_that_is_refused_are_told_so(nobody):
    outcomes = on_a_reactor("asked(client.topics()), asked(client.topics()), asked(client.topic('t'))", nobody)
    assert [kind for kind, _ in outcomes] == ["Unreachable"] * 3


def test_a_client_that_is_closed_while_it_connects_fails_what_waits_and_connects_no_more(nobody):
    outcomes = on_a_reactor("asked(client.topics()), asked(client.topics()), client.close()", nobody)
    assert [kind for kind, _ in outcomes] == ["Unreachable"] * 2
