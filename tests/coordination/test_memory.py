"""coordination.memory: the port's promises, and the faults it can simulate."""

import pytest

from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import (
    Changed,
    ConnectionLost,
    Create,
    Get,
    Multi,
    NoNode,
    SessionEnded,
    SessionEstablished,
    SessionSuspended,
    Set,
)
from tests.coordination.promises import CoordinatorPromises, TransactionPromises, absent


class World:
    def __init__(self):
        self.ensemble = Ensemble()

    def connect(self):
        return MemoryCoordinator(self.ensemble)

    def kill(self, coordinator):
        coordinator.expire()


@pytest.fixture
def world():
    return World()


class TestMemory(CoordinatorPromises, TransactionPromises):
    pass


def test_a_lost_answer_leaves_the_operation_applied(world):
    session = world.connect()
    session.execute(Create("/a", b"x"))
    session.lose_answers = 1
    with pytest.raises(ConnectionLost):
        session.execute(Set("/a", b"y", 0))
    assert session.execute(Get("/a")).data == b"y"


def test_a_lost_request_leaves_nothing(world):
    session = world.connect()
    session.lose_requests = 1
    with pytest.raises(ConnectionLost):
        session.execute(Create("/a"))
    with pytest.raises(NoNode):
        session.execute(Get("/a"))


@pytest.mark.parametrize("lost, data", [("lose_answers", b"y"), ("lose_requests", b"x")])
def test_a_multi_whose_answer_or_request_got_lost_is_whole_or_absent(world, lost, data):
    session = world.connect()
    session.execute(Create("/a", b"x"))
    setattr(session, lost, 1)
    with pytest.raises(ConnectionLost) as failure:
        session.execute(Multi((Create("/b", b"y"), Set("/a", b"y", 0))))
    assert failure.value.index is None
    assert session.execute(Get("/a")).data == data
    assert absent(session, "/b") == (data == b"x")


def test_a_cut_session_is_woken_of_a_change_when_it_is_back(world):
    session, other = world.connect(), world.connect()
    session.execute(Create("/a"))
    session.execute(Get("/a", watch=True))
    session.cut()
    session.take_events()
    wakes = []
    session.on_wake(lambda: wakes.append(None))
    other.execute(Set("/a", b"y", 0))
    assert not wakes and not session.take_events()
    session.heal()
    assert wakes and Changed("/a") in session.take_events()


def test_a_session_that_expires_while_cut_off_is_told_only_when_it_is_back(world):
    """The end of a session is reported after the connection has healed, as kazoo reports LOST."""
    session, other = world.connect(), world.connect()
    session.execute(Create("/e", ephemeral=True))
    before = session.session_id
    session.take_events()
    session.cut()
    session.expire()
    assert session.take_events() == [SessionSuspended()]
    with pytest.raises(ConnectionLost):
        session.execute(Get("/e"))
    with pytest.raises(NoNode):
        other.execute(Get("/e"))
    session.heal()
    assert session.take_events() == [SessionEnded(), SessionEstablished(session.session_id)]
    assert session.session_id != before
