"""The coordinator's promises on a real ZooKeeper, including session expiry, server restart and a silent server."""

import itertools

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from coordination.access import Access
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from coordination.port import (
    ANY_VERSION,
    Changed,
    Children,
    ConnectionLost,
    CoordinatorUnavailable,
    Create,
    Delete,
    Get,
    Multi,
    NoNode,
    SessionEnded,
    SessionEstablished,
    SessionSuspended,
    Set,
)
from coordination.zookeeper import ZooKeeperCoordinator
from idgen.claim_state import ClaimState
from tests.compat.tcp_proxy import TcpProxy
from tests.coordination.promises import CoordinatorPromises, TransactionPromises, absent
from tests.idgen.driving import NOW, claim, settle, step
from tests.patience import MS, SECONDS, until

COUNTER = itertools.count()


class World:
    def __init__(self, server):
        self.server = server
        self.hosts = f"{server.hosts}/test{next(COUNTER)}"
        self.open = []

    def connect(self):
        waits = {"connect_timeout_ms": MS, "request_timeout_ms": MS}
        self.open.append(ZooKeeperCoordinator(self.hosts, Access(session_timeout_ms=30_000), **waits))
        return self.open[-1]

    def kill(self, coordinator):
        """Expire a coordinator's session at the server: a second client resumes and closes it (ZooKeeper FAQ)."""
        twin = KazooClient(self.server.hosts, client_id=coordinator._client.client_id)
        twin.start()
        twin.stop()
        twin.close()


@pytest.fixture
def world(zookeeper):
    world = World(zookeeper)
    yield world
    for coordinator in world.open:
        coordinator.close()


class TestZooKeeper(CoordinatorPromises, TransactionPromises):
    pass


def seen(coordinator, kind):
    """Wait for an event of this kind, and return all events up to it."""
    events = []

    def arrived():
        events.extend(coordinator.take_events())
        return any(isinstance(event, kind) for event in events)

    until(arrived)
    return events


def test_a_node_has_the_time_of_its_last_write_alone_or_in_a_multi(world):
    one = world.connect()
    one.execute(Create("/a"))
    created_ms = one.execute(Get("/a")).mtime_ms
    until(lambda: one.execute(Set("/a", b"", ANY_VERSION)) and one.execute(Get("/a")).mtime_ms > created_ms)
    set_ms = one.execute(Get("/a")).mtime_ms
    until(lambda: one.execute(Multi((Set("/a", b"", ANY_VERSION),))) and one.execute(Get("/a")).mtime_ms > set_ms)
    before_ms = one.execute(Get("/a")).mtime_ms
    one.execute(Create("/a/below"))
    assert one.execute(Get("/a")).mtime_ms == before_ms


def test_an_expired_session_is_told_and_replaced(world):
    one = world.connect()
    one.execute(Create("/e", ephemeral=True))
    before = one.session_id
    seen(one, SessionEstablished)
    world.kill(one)
    events = seen(one, SessionEnded)
    if not isinstance(events[-1], SessionEstablished):
        events += seen(one, SessionEstablished)
    assert events[-1] == SessionEstablished(one.session_id)
    assert one.session_id != before
    assert absent(one, "/e")
    one.execute(Create("/e", ephemeral=True))


def test_a_server_killed_and_restarted_keeps_nodes_and_sessions(tmp_path):
    """Acknowledged nodes survive a kill, and the session reconnects."""
    with EmbeddedZooKeeper(tmp_path) as server:
        access = Access(session_timeout_ms=30_000)
        one = ZooKeeperCoordinator(server.hosts, access, request_timeout_ms=MS)
        one.execute(Create("/a", b"x"))
        one.execute(Create("/e", ephemeral=True))
        session = one.session_id
        seen(one, SessionEstablished)
        server.kill()
        seen(one, SessionSuspended)
        server.start()
        until(lambda: SessionEstablished(session) in one.take_events())
        assert one.execute(Set("/a", b"y", 0)) == 1
        assert one.execute(Get("/e")).owner == session
        one.close()


@pytest.mark.parametrize("watched", (Get("/n", watch=True), Children("/", watch=True)))
def test_a_change_is_told_although_the_connection_was_lost_before_it(tmp_path, watched):
    """kazoo sets no watches again when it connects again."""
    with EmbeddedZooKeeper(tmp_path) as server:
        access = Access(session_timeout_ms=30_000)
        watching, writing = ZooKeeperCoordinator(server.hosts, access), ZooKeeperCoordinator(server.hosts, access)
        writing.execute(Create("/n"))
        watching.execute(watched)
        server.kill()
        seen(watching, SessionSuspended)
        server.start()
        until(lambda: _written(writing, Delete("/n")))
        assert seen(watching, Changed)[-1] == Changed(watched.path)
        watching.close()
        writing.close()


def test_a_read_whose_watch_was_lost_with_its_connection_is_lost_too(world, monkeypatch):
    """kazoo sends the read again on its next connection, but not the watch, which had been sent."""
    one = world.connect()
    one.execute(Create("/n"))

    def lose(path, watch):
        answer = one._client.handler.async_result()
        answer.set_exception(ConnectionLoss())
        return answer

    monkeypatch.setattr(one._client, "exists_async", lose)
    with pytest.raises(ConnectionLost, match="Get /n: ConnectionLoss"):
        one.execute(Get("/n", watch=True))
    outcomes = []
    one.begin(Get("/n", watch=True), outcomes.append)
    until(lambda: outcomes)
    assert isinstance(outcomes[0], ConnectionLost)


def _written(coordinator, operation):
    """Carry out an operation once the coordinator is connected again."""
    try:
        coordinator.execute(operation)
    except ConnectionLost:
        return False
    except NoNode:
        pass
    return True


def test_a_connection_that_is_never_answered_is_given_up_before_the_session_ends(zookeeper):
    """A ZooKeeper that starts may accept a connection and forget it; kazoo waited for a whole session timeout."""
    with TcpProxy(zookeeper.port) as proxy:
        access = Access(session_timeout_ms=5_000)
        one = ZooKeeperCoordinator(f"127.0.0.1:{proxy.port}", access, connect_timeout_ms=MS, request_timeout_ms=MS)
        session = one.session_id
        seen(one, SessionEstablished)
        proxy.swallow()
        events = seen(one, SessionSuspended)
        assert proxy.given_up.wait(SECONDS)
        proxy.heal()
        events += seen(one, SessionEstablished)
        assert [each for each in events if not isinstance(each, SessionSuspended)] == [SessionEstablished(session)]
        one.close()


def test_a_server_that_is_silent_leaves_the_outcome_unknown_within_the_deadline(tmp_path):
    with EmbeddedZooKeeper(tmp_path) as server:
        patient = ZooKeeperCoordinator(server.hosts, connect_timeout_ms=MS, request_timeout_ms=MS)
        hasty = ZooKeeperCoordinator(server.hosts, connect_timeout_ms=MS, request_timeout_ms=300)
        patient.execute(Create("/a", b"x"))
        with server.paused():
            with pytest.raises(ConnectionLost):
                hasty.execute(Set("/a", b"y", 0))
        until(lambda: patient.execute(Get("/a"))[:3] == (b"y", 1, 0))
        for each in (hasty, patient):
            each.close()


@pytest.mark.parametrize("in_multi", [False, True], ids=["alone", "in a Multi"])
def test_an_operation_that_the_server_refuses_is_not_taken_for_a_lost_one(zookeeper, in_multi):
    """It would be refused again, as with QuotaExceeded: a lost one is repeated for ever."""
    coordinator = ZooKeeperCoordinator(zookeeper.hosts, connect_timeout_ms=MS, request_timeout_ms=MS)
    refused = Delete("/zookeeper/quota")  # the server answers BadArguments
    with pytest.raises(CoordinatorUnavailable, match="Delete /zookeeper/quota: BadArgumentsError") as raised:
        coordinator.execute(Multi((Create("/refused"), refused)) if in_multi else refused)
    assert raised.value.index == (1 if in_multi else None)
    coordinator.close()


def test_no_server_is_one_clear_error():
    with pytest.raises(CoordinatorUnavailable, match="no ZooKeeper answered at 127.0.0.1:1/ids in 200 ms"):
        ZooKeeperCoordinator("127.0.0.1:1/ids", connect_timeout_ms=200)


def test_a_zombie_after_expiry_is_fenced_by_the_mark_alone(world):
    """A zombie's versioned set fails on a real server."""
    one, other = world.connect(), world.connect()
    zombie = settle(claim("a"), one, NOW)
    last = zombie.worker.next_id(NOW + 29_999)
    world.kill(one)
    until(lambda: absent(other, "/snowflake-servers/0"))
    successor = settle(claim("b", number=0), other, NOW + 30_000)
    assert successor.worker.next_id(NOW + 30_000) > last
    old_worker = zombie.worker
    until(lambda: step(zombie, one, NOW + 40_000) and old_worker.fenced)
    assert "claimed by host-b:1" in old_worker.fenced


def test_after_an_expired_session_the_claim_goes_on_with_its_number(world):
    one = world.connect()
    c = settle(claim("a"), one, NOW)
    world.kill(one)

    def has_heard_of_it():
        step(c, one, NOW)
        return c.state is ClaimState.SUSPENDED

    def holds_it_again():
        settle(c, one, NOW + 60_000)
        return c.state is ClaimState.HELD

    until(has_heard_of_it)
    until(holds_it_again)
    assert c.number == 0
    assert one.execute(Get("/snowflake-servers/0")).owner == one.session_id
