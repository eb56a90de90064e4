"""Our clients of the id service against real servers: blocking, asyncio, Twisted; servers that end, forks, threads."""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import threading

import pytest

from idgen.client.asyncio import AsyncIdClient
from idgen.client.blocking import IdClient
from idgen.client.core import IdServiceError, IdServiceUnreachable
from idgen.layout import Layout
from tests.compat.server_process import ServerProcess

TWISTED_PROGRAM = """
import sys
from twisted.internet import defer, task
from idgen.client.twisted import TwistedIdClient

@defer.inlineCallbacks
def main(reactor, one, two):
    client = TwistedIdClient(reactor, one, two)
    ids = yield defer.gatherResults([client.get_id() for _ in range(500)])
    many = yield client.get_ids(200_000)
    assert ids == sorted(set(ids)) and many == sorted(set(many)) and ids[-1] < many[0]
    number = yield client.get_worker_id()
    first, end = yield client.id_range(1_700_000_000_000, 1_700_000_000_001)
    parts = yield client.decode(many[0])
    assert (parts.worker, end - first) == (number, 1 << 22)
    buffered = TwistedIdClient(reactor, one, prefetch=100)
    got = yield defer.gatherResults([buffered.get_id() for _ in range(250)])
    assert len(set(got)) == 250
    print("ready", flush=True)
    sys.stdin.readline()  # the first server is killed
    more = yield client.get_id()
    other = yield client.get_worker_id()
    assert other != number and more not in ids
    nobody = TwistedIdClient(reactor, "127.0.0.1:1")
    try:
        yield nobody.get_id()
    except ConnectionError as error:
        assert "127.0.0.1:1: " in str(error), error
    client.close()
    print("done", flush=True)

task.react(main, sys.argv[1:])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("ids") / "data", command="idgen") as running:
        yield running


@pytest.fixture
def two(tmp_path, zookeeper):
    """Two services that share one registry."""
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    with ServerProcess(tmp_path / "one", command="idgen", zookeeper=hosts) as one:
        with ServerProcess(tmp_path / "two", command="idgen", zookeeper=hosts) as other:
            yield one, other


def test_what_the_service_knows_is_asked_by_one_client(server):
    layout = Layout()
    with IdClient(server.ids) as client:
        id = client.get_id()
        assert client.decode(id) == layout.unpack(id)
        assert client.id_range(1_700_000_000_000, 1_700_000_000_500) == layout.id_range(
            1_700_000_000_000, 1_700_000_000_500
        )
        assert client.get_worker_id() == layout.unpack(id).worker
        assert client.get_datacenter_id() == layout.unpack(id).datacenter
        with pytest.raises(IdServiceError, match="InvalidTimeRange: the range ends at 1, before its start 2"):
            client.id_range(2, 1)
        with pytest.raises(IdServiceError, match="InvalidId: -1 is no id"):
            client.decode(-1)


def test_a_million_ids_come_by_calls_under_way_together(server):
    with IdClient(server.ids) as client:
        ids = client.get_ids(1_000_000)
    assert len(ids) == 1_000_000 and all(a < b for a, b in zip(ids, ids[1:]))


def test_threads_share_a_client_and_its_ids_in_advance(server):
    got = []
    with IdClient(server.ids, prefetch=100) as client:
        threads = [
            threading.Thread(target=lambda: got.append([client.get_id() for _ in range(1_000)])) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id for ids in got for id in ids}) == 4_000
    assert all(ids == sorted(ids) for ids in got)


def test_a_client_goes_on_at_the_next_server_and_over_a_restart(two):
    one, other = two
    with IdClient(one.ids, other.ids) as client:
        ids = client.get_ids(1_000)
        number = client.get_worker_id()
        one.kill()
        ids += client.get_ids(1_000)
        assert client.get_worker_id() != number
        other.stop()
        with pytest.raises(IdServiceUnreachable, match=f"{other.ids}: .*; {one.ids}: "):
            client.get_id()
    assert len(set(ids)) == 2_000


def test_a_connection_that_ended_meanwhile_is_made_again_unseen(tmp_path):
    with ServerProcess(tmp_path / "data").start().keep_ports() as server:
        with IdClient(server.ids) as client:
            before = client.get_id()
            server.stop()
            server.start()
            assert client.get_id() > before


def test_a_server_that_says_nothing_is_given_up_in_time(server):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with IdClient(f"{host}:{port}", server.ids, timeout_ms=200) as client:
            assert client.get_id() > 0
        with pytest.raises(IdServiceUnreachable, match="no answer in 200 ms|timed out"):
            IdClient(f"{host}:{port}", timeout_ms=200).get_id()


def test_a_client_is_not_copied(server):
    with IdClient(server.ids) as client, pytest.raises(TypeError, match="make another one"):
        pickle.dumps(client)


def test_a_forked_child_has_neither_its_parents_connection_nor_its_ids(server):
    """The child's first answer would else be the parent's, and both would hand out the ids kept in advance."""
    with IdClient(server.ids, prefetch=1_000) as client:
        client.get_id()
        pipes = []
        for _ in range(4):
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.write(writer, "\n".join(str(client.get_id()) for _ in range(1_000)).encode())
                os._exit(0)
            os.close(writer)
            pipes.append(reader)
        ids = [client.get_id() for _ in range(999)]
        for reader in pipes:
            with os.fdopen(reader) as text:
                ids += map(int, text.read().split())
        for _ in pipes:
            assert os.wait()[1] == 0
    assert len(ids) == 4_999 == len(set(ids))


def test_asyncio_calls_go_out_together_and_another_server_steps_in(two):
    one, other = two

    async def main():
        async with AsyncIdClient(one.ids, other.ids) as client, AsyncIdClient(one.ids, prefetch=100) as buffered:
            ids = await asyncio.gather(*(client.get_id() for _ in range(500)))
            many = await client.get_ids(200_000)
            assert ids == sorted(set(ids)) and many == sorted(set(many)) and ids[-1] < many[0]
            assert (await client.decode(many[0])).worker == await client.get_worker_id()
            got = await asyncio.gather(*(buffered.get_id() for _ in range(250)))
            assert len(set(got)) == 250
            given_up = asyncio.create_task(client.get_id())
            await asyncio.sleep(0)
            given_up.cancel()
            assert await client.get_id() not in many
            one.kill()
            more = await asyncio.gather(*(client.get_id() for _ in range(10)))
            assert len(set(more) | set(ids)) == 510
            with pytest.raises(IdServiceUnreachable):
                await buffered.get_ids(1)

    asyncio.run(main())


def test_twisted_calls_go_out_together_and_another_server_steps_in(two):
    one, other = two
    program = subprocess.Popen(
        [sys.executable, "-c", TWISTED_PROGRAM, one.ids, other.ids],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout.readline() == "ready\n", program.stderr.read()
        one.kill()
        out, errors = program.communicate("on\n", timeout=60)
        assert (out, program.returncode) == ("done\n", 0), errors
    finally:
        program.kill()
