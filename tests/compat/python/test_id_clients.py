"""Our blocking, asyncio and Twisted id clients against real servers, with server failures, forks and threads."""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import threading

import pytest

from coordination.free_port import FreePort
from idgen.client.asyncio import AsyncIdClient
from idgen.client.blocking import IdClient
from idgen.client.core import IdServiceError, IdServiceUnreachable
from idgen.errors import Fenced
from idgen.layout import Layout
from tests.compat.server_process import ROOT, ServerProcess
from tests.patience import MS, SECONDS, until

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


TWISTED_FORK = """
import os, sys
from twisted.internet import defer, task
from idgen.client.twisted import TwistedIdClient
from idgen.errors import Fenced

@defer.inlineCallbacks
def main(reactor, server):
    client = TwistedIdClient(reactor, server, prefetch=1_000, prefetch_max_age_ms=600_000)
    yield client.get_id()
    kept = client._calls._requests.buffer._ids[::-1]
    child = os.fork()
    if child == 0:
        errors = []
        for call in (client.get_id, lambda: client.get_ids(3), client.get_worker_id):
            call().addErrback(lambda failure: errors.append(failure.value))
        fenced = [isinstance(each, Fenced) and "make a client of its own" in str(each) for each in errors]
        os._exit(0 if fenced == [True] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    ids = yield defer.gatherResults([client.get_id() for _ in range(999)])
    assert ids == kept
    plain, outcomes = TwistedIdClient(reactor, server), []
    yield plain.get_id()
    first, second = plain.get_ids(3), plain.get_ids(3)
    first.addCallback(lambda _: plain.abandon("forked"))
    yield second.addBoth(outcomes.append)
    assert isinstance(outcomes[0].value, Fenced), outcomes
    print("done", flush=True)

task.react(main, sys.argv[1:])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("ids") / "data", command="idgen") as running:
        yield running


@pytest.fixture
def two(tmp_path, zookeeper):
    """Run two id services that share one registry."""
    hosts = f"{zookeeper.hosts}/{tmp_path.name}"
    with ServerProcess(tmp_path / "one", command="idgen", zookeeper=hosts) as first:
        with ServerProcess(tmp_path / "two", command="idgen", zookeeper=hosts) as second:
            yield first, second


def test_what_the_service_knows_is_asked_by_one_client(server):
    layout = Layout()
    with IdClient(server.ids, timeout_ms=MS) as client:
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
    with IdClient(server.ids, timeout_ms=MS) as client:
        ids = client.get_ids(1_000_000)
    assert len(ids) == 1_000_000 and all(a < b for a, b in zip(ids, ids[1:]))


def test_threads_share_a_client_and_its_ids_in_advance(server):
    ids_by_thread = []
    with IdClient(server.ids, prefetch=100, timeout_ms=MS) as client:
        threads = [
            threading.Thread(target=lambda: ids_by_thread.append([client.get_id() for _ in range(1_000)]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id for ids in ids_by_thread for id in ids}) == 4_000
    assert all(ids == sorted(ids) for ids in ids_by_thread)


def test_a_client_goes_on_at_the_next_server_and_over_a_restart(two):
    first, second = two
    with IdClient(first.ids, second.ids, timeout_ms=MS) as client:
        ids = client.get_ids(1_000)
        number = client.get_worker_id()
        first.kill()
        ids += client.get_ids(1_000)
        assert client.get_worker_id() != number
        second.stop()
        with pytest.raises(IdServiceUnreachable, match=f"{second.ids}: .*; {first.ids}: "):
            client.get_id()
    assert len(set(ids)) == 2_000


def test_a_connection_that_ended_meanwhile_is_made_again_unseen(tmp_path):
    with ServerProcess(tmp_path / "data").keep_ports() as server:
        with IdClient(server.ids, timeout_ms=MS) as client:
            before = client.get_id()
            server.stop()
            server.start()
            assert client.get_id() > before


def test_a_server_that_says_nothing_is_given_up_in_time(server):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with IdClient(f"{host}:{port}", server.ids, timeout_ms=200) as client:
            assert until(lambda: id_or_none(client)) > 0
        with pytest.raises(IdServiceUnreachable, match="no answer in 200 ms|timed out"):
            IdClient(f"{host}:{port}", timeout_ms=200).get_id()


def id_or_none(client):
    """Return an id, or None if the second, responsive server has not answered in time either."""
    try:
        return client.get_id()
    except IdServiceUnreachable:
        return None


def test_a_client_is_not_copied(server):
    with IdClient(server.ids, timeout_ms=MS) as client, pytest.raises(TypeError, match="make another one"):
        pickle.dumps(client)


def test_a_forked_child_has_neither_its_parents_connection_nor_its_ids(server):
    """A forked child uses neither its parent's connection, whose answers are the parent's, nor its prefetched ids."""
    with IdClient(server.ids, prefetch=1_000, timeout_ms=MS) as client:
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


class Child:
    """A forked child that runs `task` and reports the value's text, or the error's name and text."""

    def __init__(self, task):
        self._reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                outcome = str(task())
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            os.write(writer, outcome.encode())
            os._exit(0)
        os.close(writer)

    def outcome(self):
        with os.fdopen(self._reader) as text:
            outcome = text.read()
        os.wait()
        return outcome


REMEDY = "make a client of its own after the fork"


def test_a_forked_child_gets_nothing_from_an_asyncio_client_of_its_parents(server):
    """A child's calls are fenced, because the client holds the parent's loop, connections and prefetched ids."""

    async def main():
        async with AsyncIdClient(server.ids, prefetch=1_000, prefetch_max_age_ms=10 * MS, timeout_ms=MS) as client:
            await client.get_id()
            prefetched = client._requests.buffer._ids[::-1]
            for call in (client.get_id, lambda: client.get_ids(3), client.get_worker_id):
                assert REMEDY in Child(lambda: call().send(None)).outcome()
            ids = [await client.get_id() for _ in range(999)]
            assert ids == prefetched, "the parent goes on with those it has"

    asyncio.run(main())


def test_a_forked_child_gets_nothing_from_a_twisted_client_of_its_parents(server):
    done = subprocess.run(
        [sys.executable, "-c", TWISTED_FORK, server.ids], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_an_answer_that_came_before_a_fork_and_is_read_after_it_is_the_parents(server):
    """An answer that arrives before a fork and is read after it belongs to the parent.

    Two answers arrive in one read, and the caller of the first one forks. Instead of a fork, the test only calls the
    client's `abandon`.
    """

    async def main():
        async with AsyncIdClient(server.ids, timeout_ms=MS) as client:
            await client.get_id()

            async def forks():
                await client.get_ids(3)
                client.abandon("forked")

            _, other = await asyncio.gather(forks(), client.get_ids(3), return_exceptions=True)
            assert isinstance(other, Fenced) and REMEDY in str(other)

    asyncio.run(main())


def test_asyncio_calls_go_out_together_and_another_server_steps_in(two):
    first, second = two

    async def main():
        buffering = AsyncIdClient(first.ids, prefetch=100, timeout_ms=MS)
        async with AsyncIdClient(first.ids, second.ids, timeout_ms=MS) as client, buffering as buffered:
            ids = await asyncio.gather(*(client.get_id() for _ in range(500)))
            many = await client.get_ids(200_000)
            assert ids == sorted(set(ids)) and many == sorted(set(many)) and ids[-1] < many[0]
            assert (await client.decode(many[0])).worker == await client.get_worker_id()
            buffered_ids = await asyncio.gather(*(buffered.get_id() for _ in range(250)))
            assert len(set(buffered_ids)) == 250
            given_up = asyncio.create_task(client.get_id())
            await asyncio.sleep(0)
            given_up.cancel()
            assert await client.get_id() not in many
            first.kill()
            more = await asyncio.gather(*(client.get_id() for _ in range(10)))
            assert len(set(more) | set(ids)) == 510
            with pytest.raises(IdServiceUnreachable):
                await buffered.get_ids(1)

    asyncio.run(main())


def test_asyncio_calls_that_wait_for_one_connection_share_its_failure():
    async def main():
        with FreePort() as port:
            async with AsyncIdClient(port.address, timeout_ms=MS) as client:
                outcomes = await asyncio.gather(*(client.get_ids(1) for _ in range(100)), return_exceptions=True)
                assert {type(outcome) for outcome in outcomes} == {IdServiceUnreachable}
                assert [peer.attempts for peer in client._peers.values()] == [1]

    asyncio.run(main())


def test_twisted_calls_go_out_together_and_another_server_steps_in(two):
    first, second = two
    program = subprocess.Popen(
        [sys.executable, "-c", TWISTED_PROGRAM, first.ids, second.ids],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout.readline() == "ready\n", program.stderr.read()
        first.kill()
        out, errors = program.communicate("on\n", timeout=SECONDS)
        assert (out, program.returncode) == ("done\n", 0), errors
    finally:
        program.kill()
