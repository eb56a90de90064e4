"""The id service with ten thousand connections, and with one that asks for all the ids there are."""

import resource
import socket
import threading

import pytest

from idgen.client.blocking import IdClient
from idgen.wire import Call, FrameDecoder, decode_reply, encode_call
from tests.compat.server_process import ServerProcess

GET_ID = encode_call(Call("get_id", 1, "agent"))


def answer(connection):
    frames = FrameDecoder(1 << 24)
    while True:
        for frame in frames.frames(connection.recv(1 << 16)):
            return decode_reply(frame)


@pytest.fixture(params=[1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def many(request):
    """How many connections, as many files as they need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < request.param + 500:
        pytest.skip(f"ulimit -n is {hard}: {request.param} connections are not tested")
    resource.setrlimit(resource.RLIMIT_NOFILE, (request.param + 500, hard))
    yield request.param
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_as_many_connections_as_are_allowed_are_served_and_one_more_is_closed(tmp_path, many):
    settings = {"flakelog.ids.max.connections": many}
    with ServerProcess(tmp_path / "data", settings, command="idgen") as server:
        host, port = server.ids.split(":")
        connections = []
        try:
            for _ in range(many):
                connections.append(socket.create_connection((host, int(port)), timeout=30))
            for connection in connections:
                connection.sendall(GET_ID)
            ids = {answer(connection).value for connection in connections}
            assert len(ids) == many
            with socket.create_connection((host, int(port)), timeout=30) as one_more:
                with pytest.raises(ConnectionResetError):
                    one_more.sendall(GET_ID)
                    one_more.recv(100)
            server.wait_for_log("flakelog.ids.max.connections are open")
        finally:
            for connection in connections:
                connection.close()


def test_one_that_asks_for_all_there_are_leaves_ids_to_others(tmp_path):
    """4.096 M/s is all a worker number has; a flood takes them, and others wait no longer than its one request."""
    flood_over = threading.Event()
    with ServerProcess(tmp_path / "data", {"flakelog.ids.max.batch": 100_000}, command="idgen") as server:

        def flood():
            host, port = server.ids.split(":")
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(encode_call(Call("get_ids", 1, "flood", 100_000)) * 400)
                while not flood_over.is_set() and connection.recv(1 << 20):
                    pass

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            with IdClient(server.ids, timeout_ms=10_000) as one, IdClient(server.ids, timeout_ms=10_000) as other:
                assert len({one.get_id() for _ in range(50)}) == 50
                assert len(other.get_ids(10_000)) == 10_000
        finally:
            flood_over.set()
            thread.join()
