"""The id service with ten thousand connections, and with connections that ask for all available ids."""

import http.client
import json
import resource
import socket
import threading
import time
from contextlib import contextmanager, suppress
from urllib.request import urlopen

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from idgen.client.blocking import IdClient
from idgen.layout import Layout
from idgen.wire import Call, FrameDecoder, decode_reply, encode_call
from idgen.worker import MAX_AHEAD_MS
from tests.compat.server_process import ServerProcess
from tests.patience import MS, SECONDS, until

GET_ID = encode_call(Call("get_id", 1, "agent"))
ONE = b"POST /id HTTP/1.1\r\nHost: localhost\r\n\r\n"
FOREIGN = b"POST /id HTTP/1.1\r\nHost: foreign.example\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CONNECTION_BYTES_MAX = 16 << 10
FLOODS = 4
# A layout with so few ids per millisecond that a flood asks for more than exist, however slow the machine is.
LAYOUT = Layout(time_bits=45, sequence_bits=8)
FEW_IDS = {"flakelog.ids.time.bits": 45, "flakelog.ids.sequence.bits": 8}
SLEW_MS = 10  # the id clock never goes back, so a wall clock that is slewed may be behind it a little


def thrift_answer(connection):
    frames = FrameDecoder(1 << 24)
    while True:
        for frame in frames.frames(connection.recv(1 << 16)):
            return decode_reply(frame).value


def http_answer(connection):
    response = http.client.HTTPResponse(connection)
    response.begin()
    return json.load(response)["id"]


PROTOCOLS = {
    "ids": ("flakelog.ids.max.connections", GET_ID, thrift_answer),
    "http": ("flakelog.http.max.connections", ONE, http_answer),
}


@pytest.fixture(params=[500, pytest.param(10_000, marks=pytest.mark.soak)])
def many(request):
    """Yield the number of connections to test, with the limit of open files raised to fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < request.param + 500:
        pytest.skip(f"ulimit -n is {hard}: {request.param} connections are not tested")
    resource.setrlimit(resource.RLIMIT_NOFILE, (request.param + 500, hard))
    yield request.param
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_as_many_connections_as_are_allowed_are_served_and_one_more_is_closed(tmp_path, many, protocol):
    setting, request, answer = PROTOCOLS[protocol]
    settings = {setting: many}
    with ServerProcess(tmp_path / "data", settings, command="idgen") as server:
        host, port = server.addresses[protocol].split(":")
        idle = server.status("VmRSS")
        connections = []
        try:
            for _ in range(many):
                connections.append(socket.create_connection((host, int(port)), timeout=SECONDS))
            for connection in connections:
                connection.sendall(request)
            ids = {answer(connection) for connection in connections}
            assert len(ids) == many
            used = (server.status("VmRSS") - idle) * 1024
            print(f"\n{many:,} connections: {used // many:,} bytes each, {server.status('VmRSS') >> 10} MiB in all")
            assert used < many * CONNECTION_BYTES_MAX
            with pytest.raises(ConnectionResetError):  # perhaps before the connection is seen to be open
                with socket.create_connection((host, int(port)), timeout=SECONDS) as one_more:
                    one_more.sendall(request)
                    one_more.recv(100)
            server.wait_for_log(f"{setting} are open")
        finally:
            for connection in connections:
                connection.close()


@contextmanager
def flooded(server, count):
    """Keep FLOODS connections open that always have unanswered get_ids(count) calls and so ask for every id."""
    over, open_ones = threading.Event(), []
    frame = encode_call(Call("get_ids", 1, "flood", count))
    host, port = server.ids.split(":")

    def flood():
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            at_once = max(200_000 // count, 2)
            connection.sendall(frame * at_once)
            frames = FrameDecoder(1 << 24)
            open_ones.append(connection)
            with suppress(OSError):  # the flood is over
                while not over.is_set():
                    answers = sum(1 for _ in frames.frames(connection.recv(1 << 20)))
                    connection.sendall(frame * answers)

    threads = [threading.Thread(target=flood) for _ in range(FLOODS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for each in open_ones:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def waits(server):
    """Return how often a request has waited for ids that ran ahead of the clock."""
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        [line] = [each for each in answer.read().decode().splitlines() if each.startswith("flakelog_ids_waits_total ")]
    return float(line.split()[1])


def now_ms():
    return time.time_ns() // 1_000_000


def place(id):
    """Return an id's position in the service's sequence of ids; positions are consecutive if it issues every id."""
    parts = LAYOUT.unpack(id)
    return (parts.time_ms << LAYOUT.sequence_bits) + parts.sequence


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data", FEW_IDS, command="idgen") as running:
        yield running


def ahead_of_the_clock(server, ask, answer):
    """Return by how many ms the ids are ahead of the service's clock, as the median of 80 measurements.

    The clock is read right after each id's request was sent, so that the answer's travel time is not included.
    """
    with IdClient(server.ids, timeout_ms=MS) as clock:
        figures = []
        for _ in range(80):
            ask()
            asked_ms = clock.get_timestamp()
            figures.append(LAYOUT.unpack(answer()).time_ms - asked_ms)
    return sorted(figures)[len(figures) // 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_id_at_a_time_beside_a_flood_waits_a_turn_of_each_that_floods(server, protocol):
    """A single id waits one turn, a millisecond, of each flooding connection.

    The test allows two rounds for half of the ids, because the service also waits for a core.
    """
    _, request, answer = PROTOCOLS[protocol]
    host, port = server.addresses[protocol].split(":")
    with flooded(server, 100_000), socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        until(lambda: waits(server) > 0, "a flood")
        ahead_ms = ahead_of_the_clock(server, lambda: connection.sendall(request), lambda: answer(connection))
    assert ahead_ms <= MAX_AHEAD_MS + 2 * FLOODS


def test_a_large_request_beside_a_flood_of_small_ones_has_its_share(server):
    """A request for 100,000 ids gets them in 391 turns, while small requests continue.

    Each millisecond has enough ids for a small request, but not for one of 100,000.
    """
    with flooded(server, 1_000), IdClient(server.ids, timeout_ms=MS) as client:
        for _ in range(3):
            ids = client.get_ids(10_000)
            assert len(ids) == 10_000
        many = client.get_ids(100_000)
    assert len(set(many)) == 100_000 and many == sorted(many)
    pieces = 1 + sum(place(b) - place(a) > 1 for a, b in zip(many, many[1:]))
    assert pieces >= 200  # other connections got ids between the turns


def test_the_logs_stamps_are_of_now_while_all_other_ids_are_taken(tmp_path):
    """The log has a separate worker number in the shared process, and its ids do not run ahead of the clock."""
    batch = encode_batch([BatchRecord(0, 0, None, b"value", ())], base_timestamp_ms=1_700_000_000_000)
    with ServerProcess(tmp_path / "data", FEW_IDS) as server, Client(server.address) as client:
        client.create_topic("stamped")
        with flooded(server, 100_000), IdClient(server.ids, timeout_ms=MS) as ids:
            ahead_ms = MAX_AHEAD_MS // 2
            until(lambda: LAYOUT.unpack(ids.get_id()).time_ms > now_ms() + ahead_ms, "a flood")
            for _ in range(100):
                client.produce("stamped", 0, bytearray(batch))
            end_ms = now_ms()
            theirs = LAYOUT.unpack(ids.get_id())
        stamps = [LAYOUT.unpack(record.id) for record in client.fetch("stamped", 0, 0)[0]]
        assert len(stamps) == 100
        assert max(stamp.time_ms for stamp in stamps) <= end_ms + SLEW_MS
        assert {stamp.worker_number for stamp in stamps} == {stamps[0].worker_number} != {theirs.worker_number}


def deaf_connection(host, port):
    """Open a connection with small buffers, so that little data fills them."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
    connection.settimeout(0.3)
    connection.connect((host, port))
    return connection


@pytest.mark.parametrize(
    "protocol, request_bytes, cost_kib",
    [
        ("ids", encode_call(Call("get_ids", 1, "deaf", 1_000)), 400),
        ("http", ONE, 400),
        ("http", HEALTH, 4_000),  # the web site answers all that it has read before it stops
        ("http", FOREIGN, 4_000),
    ],
    ids=["ids", "one id", "site", "refused by the site"],
)
def test_peers_that_read_no_answers_are_not_read_from_and_cost_little(server, protocol, request_bytes, cost_kib):
    """The service stops reading from a peer that reads no answers.

    TTwisted kept 1.73 million answers for one such peer, 139 MB. twisted.web keeps as many.
    """
    host, _, port = server.addresses[protocol].rpartition(":")
    urlopen(f"http://{server.http}/health").close()  # loads the site
    deaf = [deaf_connection(host, int(port)) for _ in range(4)]
    idle = server.status("VmRSS")
    try:
        for connection in deaf:
            with pytest.raises(TimeoutError):  # the service reads no more of them
                while True:
                    connection.sendall(request_bytes * 500)
        with IdClient(server.ids, timeout_ms=MS) as client:
            assert len(client.get_ids(10_000)) == 10_000
        assert server.status("VmRSS") - idle < 4 * cost_kib  # the requests read so far, and a burst of answers
    finally:
        for connection in deaf:
            connection.close()
