"""The promises of coordination/port.py, as tests that each coordinator inherits.

A subclass has a fixture `world` with `connect()` -> Coordinator and `kill(coordinator)`, which ends a session as
a crash would, without closing anything.
"""

from threading import Event as Flag

import pytest

from coordination.port import (
    BadVersion,
    Changed,
    Check,
    Children,
    Create,
    Delete,
    Get,
    Multi,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionLost,
    Set,
    run,
)
from tests.patience import SECONDS, until


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
    def session(self, world):
        return world.connect()

    @pytest.fixture
    def other(self, world):
        return world.connect()

    def test_a_created_node_has_its_data_and_version_0_for_everyone(self, session, other):
        assert session.execute(Create("/a", b"x")) == "/a"
        assert other.execute(Get("/a"))[:3] == (b"x", 0, 0)

    def test_missing_parents_are_made_empty(self, session):
        session.execute(Create("/a/b/c", b"x"))
        assert session.execute(Get("/a/b"))[:3] == (b"", 0, 0)

    def test_a_node_is_made_once(self, session, other):
        session.execute(Create("/a", b"1"))
        with pytest.raises(NodeExists):
            other.execute(Create("/a", b"2"))
        assert session.execute(Get("/a")).data == b"1"

    def test_a_set_raises_the_version_by_one_and_answers_it(self, session):
        session.execute(Create("/a", b"x"))
        assert session.execute(Set("/a", b"y", 0)) == 1
        assert session.execute(Set("/a", b"z", 1)) == 2
        assert session.execute(Get("/a"))[:3] == (b"z", 2, 0)

    def test_of_two_sets_at_one_version_the_second_fails(self, session, other):
        session.execute(Create("/a", b"x"))
        session.execute(Set("/a", b"one", 0))
        with pytest.raises(BadVersion):
            other.execute(Set("/a", b"other", 0))
        assert session.execute(Get("/a"))[:3] == (b"one", 1, 0)

    def test_what_is_not_there_cannot_be_changed(self, session):
        for operation in (Set("/a", b"", 0), Delete("/a", 0), Get("/a"), Children("/a")):
            with pytest.raises(NoNode):
                session.execute(operation)

    def test_a_delete_names_the_version_it_has_seen(self, session):
        session.execute(Create("/a"))
        session.execute(Set("/a", b"x", 0))
        with pytest.raises(BadVersion):
            session.execute(Delete("/a", 0))
        session.execute(Delete("/a", 1))
        assert absent(session, "/a")

    def test_a_node_with_children_is_not_deleted(self, session):
        session.execute(Create("/a/b"))
        with pytest.raises(NotEmpty):
            session.execute(Delete("/a"))
        session.execute(Delete("/a/b"))
        session.execute(Delete("/a"))
        assert absent(session, "/a")

    def test_a_node_made_again_starts_at_version_0(self, session):
        session.execute(Create("/a"))
        session.execute(Set("/a", b"x", 0))
        session.execute(Delete("/a", 1))
        session.execute(Create("/a", b"new"))
        assert session.execute(Get("/a"))[:3] == (b"new", 0, 0)

    def test_children_are_names_in_order_of_the_next_level_only(self, session):
        for path in ("/a/c", "/a/b/below", "/a/a", "/other"):
            session.execute(Create(path))
        assert session.execute(Children("/a")) == ("a", "b", "c")
        assert session.execute(Children("/a/c")) == ()

    def test_an_ephemeral_node_names_its_session(self, session, other):
        session.execute(Create("/e", b"me", ephemeral=True))
        assert other.execute(Get("/e"))[:3] == (b"me", 0, session.session_id)
        assert session.session_id != other.session_id

    def test_an_ephemeral_node_goes_when_its_session_is_closed(self, session, other):
        session.execute(Create("/dir/e", ephemeral=True))
        session.execute(Create("/dir/p"))
        session.close()
        until(lambda: absent(other, "/dir/e"))
        assert other.execute(Children("/dir")) == ("p",)

    def test_an_ephemeral_node_goes_when_its_session_crashes_and_can_be_made_by_another(self, world, session, other):
        session.execute(Create("/e", b"one", ephemeral=True))
        with pytest.raises(NodeExists):
            other.execute(Create("/e", b"other", ephemeral=True))
        world.kill(session)
        until(lambda: absent(other, "/e"))
        other.execute(Create("/e", b"other", ephemeral=True))
        assert other.execute(Get("/e")).owner == other.session_id

    def test_an_ephemeral_node_has_no_children(self, session):
        session.execute(Create("/e", ephemeral=True))
        with pytest.raises(NoNode):
            session.execute(Create("/e/below"))

    def test_a_watch_tells_once_of_new_data(self, session, other):
        session.execute(Create("/a", b"x"))
        session.execute(Get("/a", watch=True))
        other.execute(Set("/a", b"y", 0))
        changed(session, "/a")
        assert session.execute(Get("/a")).data == b"y"
        other.execute(Set("/a", b"z", 1))
        session.execute(Get("/a"))  # an answer comes after all earlier events
        assert Changed("/a") not in session.take_events()

    def test_a_watch_tells_of_deletion(self, session, other):
        session.execute(Create("/a", b"x"))
        session.execute(Get("/a", watch=True))
        other.execute(Delete("/a"))
        changed(session, "/a")

    def test_a_watch_on_a_missing_node_tells_of_its_creation(self, session, other):
        with pytest.raises(NoNode):
            session.execute(Get("/a", watch=True))
        other.execute(Create("/a"))
        changed(session, "/a")

    def test_a_watch_tells_of_a_node_deleted_and_made_again(self, session, other):
        session.execute(Create("/a", b"x"))
        session.execute(Get("/a", watch=True))
        other.execute(Delete("/a"))
        other.execute(Create("/a", b"x"))
        changed(session, "/a")

    def test_a_watch_on_children_tells_of_names_that_come_and_go(self, session, other):
        session.execute(Create("/dir"))
        session.execute(Children("/dir", watch=True))
        other.execute(Create("/dir/e", ephemeral=True))
        changed(session, "/dir")
        assert session.execute(Children("/dir", watch=True)) == ("e",)
        other.close()
        changed(session, "/dir")
        assert session.execute(Children("/dir")) == ()

    def test_a_closed_session_carries_nothing_out(self, session):
        session.close()
        with pytest.raises(SessionLost):
            session.execute(Create("/a"))

    @pytest.mark.parametrize(
        "path", ["", "a", "/a/", "//a", "/a/../b", "/.", "/a/.node", "/.new/a", "/a\n", "/" + "a" * 250]
    )
    def test_a_path_no_coordinator_could_keep_is_refused(self, session, path):
        with pytest.raises(ValueError, match="no node's path"):
            session.execute(Create(path))

    @pytest.mark.parametrize("name", [".hidden", ".lock", "...", "a" * 249, "é" * 124])
    def test_each_name_that_kafka_gives_a_topic_is_kept(self, session, name):
        """Kafka takes up to 249 bytes, and a leading dot."""
        session.execute(Create(f"/a/{name}/b", b"1"))
        session.execute(Multi((Create(f"/a/{name}/c", b"2"), Set(f"/a/{name}", b"3", 0))))
        assert session.execute(Children("/a")) == (name,) and session.execute(Children(f"/a/{name}")) == ("b", "c")
        assert session.execute(Get(f"/a/{name}")).data == b"3"
        session.execute(Multi((Delete(f"/a/{name}/b"), Delete(f"/a/{name}/c"), Delete(f"/a/{name}"))))
        assert session.execute(Children("/a")) == ()

    def test_more_data_than_a_node_holds_is_refused_and_nothing_made(self, session):
        with pytest.raises(ValueError, match="at most 1000000"):
            session.execute(Create("/a", bytes(1_000_001)))
        assert absent(session, "/a")

    def test_a_procedure_is_sent_results_and_thrown_errors(self, session):
        def procedure():
            yield Create("/counter", b"0")
            try:
                yield Set("/counter", b"9", 7)
            except BadVersion:
                node = yield Get("/counter")
                return (yield Set("/counter", b"1", node.version))

        assert run(session, procedure()) == 1
        assert session.execute(Get("/counter")).data == b"1"


class TransactionPromises:
    """Multi, sequential nodes, czxid and wake-ups, as ZooKeeper's PrepRequestProcessor has them."""

    @pytest.fixture
    def session(self, world):
        return world.connect()

    @pytest.fixture
    def other(self, world):
        return world.connect()

    def test_a_multi_answers_the_result_of_each_operation(self, session, other):
        session.execute(Create("/a", b"x"))
        session.execute(Create("/b"))
        operations = Check("/a", 0), Set("/a", b"y", 0), Create("/c", b"z"), Delete("/b", 0)
        assert session.execute(Multi(operations)) == (None, 1, "/c", None)
        assert other.execute(Get("/a"))[:3] == (b"y", 1, 0)
        assert other.execute(Get("/c"))[:3] == (b"z", 0, 0)
        assert absent(other, "/b")

    @pytest.mark.parametrize(
        "failing, error",
        [
            (Check("/a", 1), BadVersion),
            (Check("/missing", 0), NoNode),
            (Set("/a", b"", 7), BadVersion),
            (Set("/missing", b"", 0), NoNode),
            (Create("/a"), NodeExists),
            (Create("/missing/below"), NoNode),
            (Delete("/a", 3), BadVersion),
            (Delete("/missing"), NoNode),
            (Delete("/full"), NotEmpty),
        ],
    )
    def test_a_multi_that_fails_changes_nothing_and_names_the_operation(self, session, other, failing, error):
        session.execute(Create("/a", b"x"))
        session.execute(Create("/full/child"))
        before = {path: other.execute(Get(path)) for path in ("/a", "/full", "/full/child")}
        operations = Create("/new"), Set("/full/child", b"y", 0), failing, Create("/later"), Check("/none", 0)
        with pytest.raises(error) as failure:
            session.execute(Multi(operations))
        assert failure.value.index == 2
        assert {path: other.execute(Get(path)) for path in before} == before
        assert absent(other, "/new") and absent(other, "/later")
        assert session.execute(Multi((Create("/new"),))) == ("/new",)

    def test_the_error_of_an_operation_outside_a_multi_has_no_index(self, session):
        with pytest.raises(NoNode) as failure:
            session.execute(Set("/a", b"", 0))
        assert failure.value.index is None

    def test_an_operation_of_a_multi_sees_what_the_earlier_ones_did(self, session, other):
        operations = (
            Create("/a"),
            Create("/a/b", b"x"),
            Set("/a/b", b"y", 0),
            Set("/a/b", b"z", 1),
            Check("/a/b", 2),
            Create("/gone"),
            Delete("/gone"),
        )
        assert session.execute(Multi(operations)) == ("/a", "/a/b", 1, 2, None, "/gone", None)
        assert other.execute(Get("/a/b"))[:3] == (b"z", 2, 0)
        assert other.execute(Children("/")) in (("a",), ("a", "zookeeper"))
        assert session.execute(Multi((Delete("/a/b"), Delete("/a", 0)))) == (None, None)
        assert absent(other, "/a")
        with pytest.raises(NotEmpty) as failure:
            session.execute(Multi((Create("/a"), Create("/a/b"), Delete("/a"))))
        assert failure.value.index == 2

    def test_a_multi_can_delete_a_node_and_create_it_again(self, session, other):
        session.execute(Create("/a", b"x"))
        session.execute(Set("/a", b"y", 0))
        before = session.execute(Get("/a"))
        session.execute(Multi((Delete("/a", 1), Create("/a", b"new", ephemeral=True))))
        node = other.execute(Get("/a"))
        assert node[:3] == (b"new", 0, session.session_id) and node.czxid > before.czxid

    def test_the_winner_of_an_election_takes_the_controller_and_its_epoch_in_one_multi(self, world, session, other):
        """Rule E1 of the cluster: /controller is created and /controller_epoch set by version, both or none."""
        session.execute(Create("/controller_epoch", b"0"))

        def stands(session, version):
            epoch = Set("/controller_epoch", b"%d" % (version + 1), version)
            return session.execute(Multi((Create("/controller", b"%d" % version, ephemeral=True), epoch)))

        assert stands(session, 0) == ("/controller", 1)
        with pytest.raises(NodeExists) as failure:
            stands(other, 1)
        assert failure.value.index == 0
        session.execute(Multi((Check("/controller_epoch", 1), Create("/state", b"by one"))))
        world.kill(session)
        until(lambda: absent(other, "/controller"))
        with pytest.raises(BadVersion) as failure:
            stands(other, 0)
        assert failure.value.index == 1 and absent(other, "/controller")
        assert stands(other, 1) == ("/controller", 2)
        assert other.execute(Get("/controller")).owner == other.session_id
        with pytest.raises(BadVersion) as failure:
            world.connect().execute(Multi((Check("/controller_epoch", 1), Set("/state", b"by a stale one", 0))))
        assert failure.value.index == 0
        assert other.execute(Get("/state"))[:2] == (b"by one", 0)

    def test_the_ephemeral_nodes_of_a_multi_go_with_the_session_and_the_others_stay(self, world, session, other):
        nodes = [Create(f"/n{number}", b"x", ephemeral=bool(number % 2)) for number in range(20)]
        session.execute(Multi((Create("/dir"), Create("/dir/e", ephemeral=True), *nodes)))
        with pytest.raises(NoNode):
            other.execute(Multi((Create("/dir/e/below"),)))
        world.kill(session)
        until(lambda: absent(other, "/dir/e"))
        assert other.execute(Children("/dir")) == ()
        assert [absent(other, node.path) for node in nodes] == [node.ephemeral for node in nodes]
        other.execute(Multi((Create("/dir/e", b"other"), Set("/n0", b"y", 0))))
        assert other.execute(Get("/dir/e"))[:3] == (b"other", 0, 0)

    def test_a_multi_of_large_nodes_is_whole(self, session, other):
        """jute.maxbuffer holds for the whole Multi."""
        session.execute(Create("/b", b"old"))
        large = bytes(range(250)) * 2_000
        session.execute(Multi((Create("/a", large), Set("/b", large[:499_000], 0))))
        assert other.execute(Get("/a")).data == large
        assert other.execute(Get("/b"))[:2] == (large[:499_000], 1)
        other.execute(Set("/a", b"small", 0))
        assert session.execute(Multi((Create("/c"), Delete("/b", 1)))) == ("/c", None)
        assert session.execute(Get("/a"))[:2] == (b"small", 1) and absent(session, "/b")

    def test_a_multi_of_many_operations_is_whole(self, session, other):
        creates = [Create(f"/a/{number}", b"x") for number in range(1_000)]
        assert session.execute(Multi((Create("/a"), *creates)))[-1] == "/a/999"
        sets = [Set(create.path, b"y", 0) for create in creates]
        with pytest.raises(BadVersion) as failure:
            session.execute(Multi((*sets, Check("/a", 9))))
        assert failure.value.index == 1_000
        assert other.execute(Get("/a/0"))[:2] == (b"x", 0)
        assert session.execute(Multi(tuple(sets))) == (1,) * 1_000
        assert other.execute(Get("/a/999"))[:2] == (b"y", 1)
        session.execute(Multi(tuple(Delete(create.path, 1) for create in creates)))
        assert other.execute(Children("/a")) == ()

    @pytest.mark.parametrize(
        "operations, reason",
        [
            ((), "without operations"),
            ((Create("/a", bytes(600_000)), Create("/b", bytes(600_000))), "at most 1040000"),
            ((Create("/a"), Create("/b", bytes(1_000_001))), "at most 1000000"),
            ((Create("/a"), Create("b")), "no node's path"),
            ((Create("/a"), Get("/b")), "no part of a Multi"),
        ],
    )
    def test_a_multi_no_coordinator_could_keep_is_refused_and_nothing_made(self, session, operations, reason):
        with pytest.raises(ValueError, match=reason):
            session.execute(Multi(operations))
        assert absent(session, "/a")

    def test_names_of_sequential_nodes_rise_in_the_order_of_creation_and_never_repeat(self, session, other):
        session.execute(Create("/dir/other"))
        paths = [session.execute(Create("/dir/n_", b"1", sequential=True))]
        paths.append(other.execute(Create("/dir/n_", b"2", sequential=True)))
        other.execute(Delete(paths[1]))
        paths += session.execute(Multi((Create("/dir/n_", sequential=True), Create("/dir/n_", sequential=True))))
        paths.append(other.execute(Create("/dir/n_", ephemeral=True, sequential=True)))
        for path in paths:
            name, digits = path[: len("/dir/n_")], path[len("/dir/n_") :]
            assert name == "/dir/n_" and len(digits) == 10 and digits.isdecimal()
        assert paths == sorted(set(paths))
        assert [session.execute(Get(path)).data for path in paths[:1]] == [b"1"]
        names = tuple(path.rpartition("/")[2] for path in paths if path != paths[1])
        assert session.execute(Children("/dir")) == (*names, "other")

    def test_the_parents_of_a_sequential_node_are_made(self, session):
        path = session.execute(Create("/a/b/n", sequential=True))
        assert session.execute(Children("/a/b")) == (path.removeprefix("/a/b/"),)

    def test_a_node_created_later_has_a_higher_czxid_whatever_its_path(self, world, session, other):
        session.execute(Create("/first"))
        before = session.execute(Get("/first")).czxid
        for creator, create in (
            (other, Create("/z/below")),
            (session, Create("/a", ephemeral=True)),
            (other, Create("/b", ephemeral=True)),
        ):
            creator.execute(create)
            czxid = creator.execute(Get(create.path)).czxid
            assert czxid > before
            before = czxid
        session.execute(Set("/first", b"y", 0))
        session.execute(Multi((Create("/m"), Delete("/first"))))
        assert session.execute(Get("/m")).czxid > before
        other.execute(Create("/first"))
        assert session.execute(Get("/first")).czxid > session.execute(Get("/m")).czxid

    def test_a_set_leaves_the_czxid(self, session, other):
        session.execute(Create("/a"))
        before = session.execute(Get("/a")).czxid
        other.execute(Set("/a", b"y", 0))
        other.execute(Multi((Create("/b"), Set("/a", b"z", 1))))
        assert session.execute(Get("/a"))[:4] == (b"z", 2, 0, before)

    def test_two_lives_of_a_broker_have_two_epochs(self, world, session):
        """Rule E3 of the cluster: the broker epoch is the czxid of /brokers/ids/N."""
        register = Multi((Create("/ids/1", ephemeral=True), Set("/ids/1", b"me", 0)))
        session.execute(Create("/ids"))
        epochs = []
        for _ in range(3):
            life = world.connect()
            life.execute(register)
            epochs.append(session.execute(Get("/ids/1")).czxid)
            world.kill(life)
            until(lambda: absent(session, "/ids/1"))
        assert epochs == sorted(set(epochs))

    def test_a_watch_tells_of_a_multi(self, session, other):
        session.execute(Create("/dir/a"))
        session.execute(Get("/dir/a", watch=True))
        session.execute(Children("/dir", watch=True))
        other.execute(Multi((Set("/dir/a", b"y", 0), Create("/dir/b"), Create("/dir/c"))))
        events = []

        def heard():
            events.extend(session.take_events())
            return Changed("/dir/a") in events and Changed("/dir") in events

        until(heard)
        assert session.execute(Children("/dir")) == ("a", "b", "c")

    def test_a_session_is_woken_when_what_it_watches_changes(self, session, other):
        """Nothing calls take_events until the wake-up."""
        session.execute(Create("/dir/a"))
        other.execute(Get("/"))
        for watch, change in (
            (Get("/dir/a", watch=True), Set("/dir/a", b"y", 0)),
            (Children("/dir", watch=True), Create("/dir/b")),
            (Get("/dir/b", watch=True), Multi((Create("/c"), Delete("/dir/b")))),
            (Children("/dir", watch=True), Create("/dir/n", sequential=True)),
        ):
            session.execute(watch)
            session.take_events()
            woken = Flag()
            session.on_wake(woken.set)
            other.execute(change)
            assert woken.wait(SECONDS), change
            until(lambda: Changed(watch.path) in session.take_events())

    def test_a_session_is_woken_when_another_is_closed(self, session, other):
        other.execute(Create("/e", ephemeral=True))
        session.execute(Get("/e", watch=True))
        session.take_events()
        woken = Flag()
        session.on_wake(woken.set)
        other.close()
        assert woken.wait(SECONDS)
        changed(session, "/e")
