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
    one = world.connect()
    one.execute(Create("/a", b"x"))
    one.lose_answers = 1
    with pytest.raises(ConnectionLost):
        one.execute(Set("/a", b"y", 0))
    assert one.execute(Get("/a")).data == b"y"


def test_a_lost_request_leaves_nothing(world):
    one = world.connect()
    one.lose_requests = 1
    with pytest.raises(ConnectionLost):
        one.execute(Create("/a"))
    with pytest.raises(NoNode):
        one.execute(Get("/a"))


@pytest.mark.parametrize("lost, data", [("lose_answers", b"y"), ("lose_requests", b"x")])
def test_a_multi_whose_answer_or_request_got_lost_is_whole_or_absent(world, lost, data):
    one = world.connect()
    one.execute(Create("/a", b"x"))
    setattr(one, lost, 1)
    with pytest.raises(ConnectionLost) as failure:
        one.execute(Multi((Create("/b", b"y"), Set("/a", b"y", 0))))
    assert failure.value.index is None
    assert one.execute(Get("/a")).data == data
    assert absent(one, "/b") == (data == b"x")


def test_a_cut_session_is_woken_of_a_change_when_it_is_back(world):
    one, other = world.connect(), world.connect()
    one.execute(Create("/a"))
    one.execute(Get("/a", watch=True))
    one.cut()
    one.take_events()
    wakes = []
    one.on_wake(lambda: wakes.append(None))
    other.execute(Set("/a", b"y", 0))
    assert not wakes and not one.take_events()
    one.heal()
    assert wakes and Changed("/a") in one.take_events()


def test_a_session_that_expires_while_cut_off_is_told_only_when_it_is_back(world):
    """The end of a session is reported after the connection has healed, as kazoo reports LOST (idgen.md, section 6)."""
    one, other = world.connect(), world.connect()
    one.execute(Create("/e", ephemeral=True))
    before = one.session_id
    one.take_events()
    one.cut()
    one.expire()
    assert one.take_events() == [SessionSuspended()]
    with pytest.raises(ConnectionLost):
        one.execute(Get("/e"))
    with pytest.raises(NoNode):
        other.execute(Get("/e"))
    one.heal()
    assert one.take_events() == [SessionEnded(), SessionEstablished(one.session_id)]
    assert one.session_id != before
