"""The promises of coordination/port.py, as tests that each coordinator inherits.

A subclass has a fixture `world` with `connect()` -> Coordinator and `kill(coordinator)`, which ends a session as
a crash would, without closing anything.
"""

import pytest

from coordination.port import (
    BadVersion,
    Changed,
    Children,
    Create,
    Delete,
    Get,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionLost,
    Set,
    run,
)
from tests.patience import until


def absent(coordinator, path):
    try:
        coordinator.execute(Get(path))
    except NoNode:
        return True
    return False


def changed(coordinator, path):
    return until(lambda: Changed(path) in coordinator.take_events())


class CoordinatorPromises:
    """Tests from the ZooKeeper Programmer's Guide ("Data Access", "Ephemeral Nodes", "Watches") and from port.py."""

    @pytest.fixture
    def one(self, world):
        return world.connect()

    @pytest.fixture
    def other(self, world):
        return world.connect()

    def test_a_created_node_has_its_data_and_version_0_for_everyone(self, one, other):
        assert one.execute(Create("/a", b"x")) is None
        assert other.execute(Get("/a")) == Node(b"x", 0, 0)

    def test_missing_parents_are_made_empty(self, one):
        one.execute(Create("/a/b/c", b"x"))
        assert one.execute(Get("/a/b")) == Node(b"", 0, 0)

    def test_a_node_is_made_once(self, one, other):
        one.execute(Create("/a", b"1"))
        with pytest.raises(NodeExists):
            other.execute(Create("/a", b"2"))
        assert one.execute(Get("/a")).data == b"1"

    def test_a_set_raises_the_version_by_one_and_answers_it(self, one):
        one.execute(Create("/a", b"x"))
        assert one.execute(Set("/a", b"y", 0)) == 1
        assert one.execute(Set("/a", b"z", 1)) == 2
        assert one.execute(Get("/a")) == Node(b"z", 2, 0)

    def test_of_two_sets_at_one_version_the_second_fails(self, one, other):
        one.execute(Create("/a", b"x"))
        one.execute(Set("/a", b"one", 0))
        with pytest.raises(BadVersion):
            other.execute(Set("/a", b"other", 0))
        assert one.execute(Get("/a")) == Node(b"one", 1, 0)

    def test_what_is_not_there_cannot_be_changed(self, one):
        for operation in (Set("/a", b"", 0), Delete("/a", 0), Get("/a"), Children("/a")):
            with pytest.raises(NoNode):
                one.execute(operation)

    def test_a_delete_names_the_version_it_has_seen(self, one):
        one.execute(Create("/a"))
        one.execute(Set("/a", b"x", 0))
        with pytest.raises(BadVersion):
            one.execute(Delete("/a", 0))
        one.execute(Delete("/a", 1))
        assert absent(one, "/a")

    def test_a_node_with_children_is_not_deleted(self, one):
        one.execute(Create("/a/b"))
        with pytest.raises(NotEmpty):
            one.execute(Delete("/a"))
        one.execute(Delete("/a/b"))
        one.execute(Delete("/a"))
        assert absent(one, "/a")

    def test_a_node_made_again_starts_at_version_0(self, one):
        one.execute(Create("/a"))
        one.execute(Set("/a", b"x", 0))
        one.execute(Delete("/a", 1))
        one.execute(Create("/a", b"new"))
        assert one.execute(Get("/a")) == Node(b"new", 0, 0)

    def test_children_are_names_in_order_of_the_next_level_only(self, one):
        for path in ("/a/c", "/a/b/below", "/a/a", "/other"):
            one.execute(Create(path))
        assert one.execute(Children("/a")) == ("a", "b", "c")
        assert one.execute(Children("/a/c")) == ()

    def test_an_ephemeral_node_names_its_session(self, one, other):
        one.execute(Create("/e", b"me", ephemeral=True))
        assert other.execute(Get("/e")) == Node(b"me", 0, one.session_id)
        assert one.session_id != other.session_id

    def test_an_ephemeral_node_goes_when_its_session_is_closed(self, one, other):
        one.execute(Create("/dir/e", ephemeral=True))
        one.execute(Create("/dir/p"))
        one.close()
        until(lambda: absent(other, "/dir/e"))
        assert other.execute(Children("/dir")) == ("p",)

    def test_an_ephemeral_node_goes_when_its_session_crashes_and_can_be_made_by_another(self, world, one, other):
        one.execute(Create("/e", b"one", ephemeral=True))
        with pytest.raises(NodeExists):
            other.execute(Create("/e", b"other", ephemeral=True))
        world.kill(one)
        until(lambda: absent(other, "/e"))
        other.execute(Create("/e", b"other", ephemeral=True))
        assert other.execute(Get("/e")).owner == other.session_id

    def test_an_ephemeral_node_has_no_children(self, one):
        one.execute(Create("/e", ephemeral=True))
        with pytest.raises(NoNode):
            one.execute(Create("/e/below"))

    def test_a_watch_tells_once_of_new_data(self, one, other):
        one.execute(Create("/a", b"x"))
        one.execute(Get("/a", watch=True))
        other.execute(Set("/a", b"y", 0))
        changed(one, "/a")
        assert one.execute(Get("/a")).data == b"y"
        other.execute(Set("/a", b"z", 1))
        one.execute(Get("/a"))  # an answer comes after all earlier events
        assert Changed("/a") not in one.take_events()

    def test_a_watch_tells_of_deletion(self, one, other):
        one.execute(Create("/a", b"x"))
        one.execute(Get("/a", watch=True))
        other.execute(Delete("/a"))
        changed(one, "/a")

    def test_a_watch_on_a_missing_node_tells_of_its_creation(self, one, other):
        with pytest.raises(NoNode):
            one.execute(Get("/a", watch=True))
        other.execute(Create("/a"))
        changed(one, "/a")

    def test_a_watch_tells_of_a_node_deleted_and_made_again(self, one, other):
        one.execute(Create("/a", b"x"))
        one.execute(Get("/a", watch=True))
        other.execute(Delete("/a"))
        other.execute(Create("/a", b"x"))
        changed(one, "/a")

    def test_a_watch_on_children_tells_of_names_that_come_and_go(self, one, other):
        one.execute(Create("/dir"))
        one.execute(Children("/dir", watch=True))
        other.execute(Create("/dir/e", ephemeral=True))
        changed(one, "/dir")
        assert one.execute(Children("/dir", watch=True)) == ("e",)
        other.close()
        changed(one, "/dir")
        assert one.execute(Children("/dir")) == ()

    def test_a_closed_session_carries_nothing_out(self, one):
        one.close()
        with pytest.raises(SessionLost):
            one.execute(Create("/a"))

    @pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a/../b", "/.hidden", "/a\n"])
    def test_a_path_no_coordinator_could_keep_is_refused(self, one, path):
        with pytest.raises(ValueError, match="no node's path"):
            one.execute(Create(path))

    def test_more_data_than_a_node_holds_is_refused_and_nothing_made(self, one):
        with pytest.raises(ValueError, match="at most 1000000"):
            one.execute(Create("/a", bytes(1_000_001)))
        assert absent(one, "/a")

    def test_a_procedure_is_sent_results_and_thrown_errors(self, one):
        def procedure():
            yield Create("/counter", b"0")
            try:
                yield Set("/counter", b"9", 7)
            except BadVersion:
                node = yield Get("/counter")
                return (yield Set("/counter", b"1", node.version))

        assert run(one, procedure()) == 1
        assert one.execute(Get("/counter")).data == b"1"
