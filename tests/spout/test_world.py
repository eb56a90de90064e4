"""The ports of the embedded engine: sessions of offset stores."""

from functools import partial

import pytest
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.client.group_config import GroupMemberConfig
from coordination.access import Access
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import CoordinatorUnavailable
from idgen.settings import InvalidSetting
from partition_manager.ports import Failed, Loaded, LoadOffset
from spout import world
from spout.world import TwistedWorld


class Reactor(Clock):
    def getThreadPool(self):
        """Return nothing, because the test opens the sessions."""

    def callFromThread(self, call, *arguments):
        self.callLater(0, call, *arguments)


def test_two_members_of_one_name_in_a_group_are_refused_because_they_would_fence_each_other():
    made, static = TwistedWorld(Reactor()), GroupMemberConfig(group_instance_id="pod-1")
    first = made.group_member("127.0.0.1:1", "g", "cars", 2, static)
    assert [first(index).instance for index in (0, 1)] == ["pod-1"] * 2, "the tasks of a spout are one member"
    made.group_member("127.0.0.1:1", "other", "trains", 1, static)
    made.group_member("127.0.0.1:1", "g", "dynamic", 1, GroupMemberConfig())
    with pytest.raises(InvalidSetting, match="group.instance.id=pod-1: the spouts cars and trains are in group g; "):
        made.group_member("127.0.0.1:1", "g", "trains", 1, static)


def test_all_partitions_share_the_session_that_is_being_opened(monkeypatch):
    """1,000 partitions used to open 1,000 sessions, and to close 999 of them."""
    opening, answers = [], []

    def to_thread(reactor, pool, work, *arguments):
        opening.append(Deferred())
        return opening[-1]

    monkeypatch.setattr(world, "deferToThreadPool", to_thread)
    store = TwistedWorld(Reactor()).offset_store("progress", "/spouts/test", Access())
    for number in range(1_000):
        store.ask(LoadOffset("flights", number), answers.append)
    (first,) = opening
    first.errback(Failure(CoordinatorUnavailable("the disk is away")))
    assert answers == [Failed("progress: the disk is away")] * 1_000
    store.ask(LoadOffset("flights", 0), answers.append)
    monkeypatch.setattr(world, "executor", lambda coordinator, reactor: partial(execute, coordinator.execute))
    opening[1].callback(MemoryCoordinator(Ensemble()))
    assert answers[-1] == Loaded(None, -1) and len(opening) == 2
