"""coordination.directory: the port's promises on files, and failures that only files have."""

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordination import directory
from coordination.directory import DirectoryCoordinator, file_system_of
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import (
    Changed,
    Check,
    Children,
    ConnectionLost,
    CoordinationError,
    CoordinatorUnavailable,
    Create,
    Delete,
    Get,
    Multi,
    Node,
    NoNode,
    Set,
)
from idgen.layout import utc_text
from tests.coordination.promises import CoordinatorPromises, TransactionPromises
from tests.idgen.driving import NOW, claim, settle
from tests.patience import MS, SECONDS, until


class World:
    def __init__(self, directory):
        self.directory = directory
        self.open = []

    def connect(self):
        self.open.append(DirectoryCoordinator(self.directory))
        return self.open[-1]

    def kill(self, coordinator):
        coordinator.abandon()  # closes only the session's files, as the kernel does at kill -9


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path / "nodes")
    yield world
    for coordinator in world.open:
        coordinator.close()


class TestDirectory(CoordinatorPromises, TransactionPromises):
    pass


PATHS = st.sampled_from(["/a", "/a/b", "/a/c", "/a/b/d", "/e"])
DATA = st.binary(max_size=3)
VERSIONS = st.integers(-1, 2)
CREATES = st.builds(Create, PATHS, DATA, st.booleans(), st.sampled_from([False, False, False, True]))
PARTS = st.one_of(
    st.builds(Check, PATHS, VERSIONS),
    CREATES,
    st.builds(Set, PATHS, st.one_of(DATA, st.just(bytes(5_000))), VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
)
OPERATIONS = st.one_of(
    CREATES,
    st.builds(Set, PATHS, DATA, VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Get, PATHS),
    st.builds(Children, PATHS),
    st.builds(Multi, st.lists(PARTS, min_size=1, max_size=4).map(tuple)),
)


def outcome(coordinator, operation):
    try:
        result = coordinator.execute(operation)
    except CoordinationError as error:
        return type(error), error.index
    return result._replace(owner=bool(result.owner)) if isinstance(result, Node) else result


@settings(max_examples=40)
@given(st.lists(OPERATIONS, max_size=15))
def test_it_answers_as_memory_does(tmp_path_factory, operations):
    files = DirectoryCoordinator(tmp_path_factory.mktemp("nodes"))
    memory = MemoryCoordinator(Ensemble())
    for operation in operations:
        assert outcome(files, operation) == outcome(memory, operation), operation
    files.close()


def outcomes(coordinator, operations):
    """Return the outcomes of operations that a coordinator carries out as a group."""
    return [
        result._replace(owner=bool(result.owner))
        if isinstance(result, Node)
        else (type(result), result.index)
        if isinstance(result, Exception)
        else result
        for result in coordinator.execute_all(operations)
    ]


@settings(max_examples=40)
@given(st.lists(st.lists(OPERATIONS, max_size=8), max_size=6), st.integers(1, 3))
def test_a_group_of_operations_does_what_they_do_one_by_one(tmp_path_factory, groups, packed_min):
    """Two sessions take turns, so that each reads what the other wrote. Groups of one are executed alone."""
    folder = tmp_path_factory.mktemp("nodes")
    sessions = [DirectoryCoordinator(folder), DirectoryCoordinator(folder)]
    ensemble = Ensemble()
    memories = [MemoryCoordinator(ensemble), MemoryCoordinator(ensemble)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "PACKED_MIN", packed_min)
        for number, group in enumerate(groups):
            files, memory = sessions[number % 2], memories[number % 2]
            wanted = [outcome(memory, operation) for operation in group]
            results = [outcome(files, group[0])] if len(group) == 1 else outcomes(files, group)
            assert results == wanted, group
    for session in sessions:
        session.close()


def test_a_group_of_writes_is_one_file(world, monkeypatch):
    session = world.connect()
    session.execute(Create("/a"))
    syncs = []
    monkeypatch.setattr(os, "fsync", lambda fd: syncs.append(fd))
    paths = [f"/a/{number}" for number in range(1_000)]
    assert session.execute_all([Create(path, b"x") for path in paths]) == paths
    assert session.execute_all([Set(f"/a/{number}", b"y", 0) for number in range(1_000)]) == [1] * 1_000
    assert len(syncs) == 4, "the file and its directory, for each group"
    assert len(session.execute(Children("/a"))) == 1_000
    again = world.connect()
    assert again.execute(Get("/a/999"))[:3] == (b"y", 1, 0)


def test_a_multi_of_a_group_is_one_file(world, monkeypatch):
    """Else a thousand partitions of a new topic need a thousand files, and a sync for each."""
    session = world.connect()
    session.execute(Create("/a"))
    syncs = []
    monkeypatch.setattr(os, "fsync", lambda fd: syncs.append(fd))
    multis = [Multi(tuple(Create(f"/a/{turn}-{number}") for number in range(100))) for turn in range(5)]
    assert [len(result) for result in session.execute_all(multis)] == [100] * 5
    assert len(syncs) == 2, "the file and its directory, for all of the group"
    assert [len(result) for result in session.execute_all([Multi((Create("/b"), Create("/c")))])] == [2]
    assert len(syncs) == 4


def test_a_group_that_a_full_disk_refuses_changes_nothing(world, monkeypatch):
    session = world.connect()
    session.execute_all([Create(f"/{name}", b"x") for name in "abcdefgh"])

    def full(fd):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(ConnectionLost, match="No space left"):
        patch.setattr(os, "fsync", full)
        session.execute_all([Set(f"/{name}", b"y", 0) for name in "abcdefgh"])
    assert session.execute(Get("/a"))[:3] == (b"x", 0, 0)


def test_damaged_packed_nodes_are_named_and_never_taken_for_missing_ones(world):
    session = world.connect()
    session.execute_all([Create(f"/{name}", b"x") for name in "abcdefgh"])
    file = world.directory / "packed"
    file.write_bytes(file.read_bytes().replace(b"x", b"z", 1))
    with pytest.raises(CoordinatorUnavailable, match="packed is damaged"):
        world.connect()


def test_nodes_outlive_the_process_and_ephemeral_ones_do_not(world):
    """A directory opened again is in the state that kill -9 leaves, because a close writes nothing."""
    session = world.connect()
    session.execute(Create("/a", b"kept"))
    session.execute(Set("/a", b"kept too", 0))
    session.execute(Create("/e", ephemeral=True))
    world.kill(session)
    again = world.connect()
    assert again.execute(Get("/a"))[:3] == (b"kept too", 1, 0)
    with pytest.raises(NoNode):
        again.execute(Get("/e"))


def test_a_node_half_made_before_a_power_cut_is_no_node(world):
    session = world.connect()
    session.execute(Create("/a"))
    half = world.directory / "nodes" / "a" / "b"
    half.mkdir()
    (half / ".new").write_bytes(b"0 0\nhal")
    with pytest.raises(NoNode):
        session.execute(Get("/a/b"))
    assert session.execute(Children("/a")) == ()
    session.execute(Delete("/a"))
    assert outcome(session, Get("/a")) == (NoNode, None)
    session.execute(Create("/a/b", b"whole"))
    assert session.execute(Get("/a/b")).data == b"whole"


def test_a_damaged_node_is_named_and_never_taken_for_a_missing_one(world):
    """A damaged node raises an error, because a lost high-water mark would let ids repeat."""
    session = world.connect()
    session.execute(Create("/a", b"x"))
    file = world.directory / "nodes" / "a" / ".node"
    file.write_bytes(b"\0" * 8)
    for operation in (Get("/a"), Create("/a"), Set("/a", b"", 0)):
        with pytest.raises(CoordinatorUnavailable, match="a/.node is damaged"):
            session.execute(operation)


def test_a_process_stopped_inside_an_operation_stops_others_for_a_bounded_time(world):
    session = DirectoryCoordinator(world.directory, lock_timeout_ms=20)
    with open(world.directory / ".lock", "w") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with pytest.raises(ConnectionLost, match="another process has held"):
            session.execute(Get("/"))
    session.execute(Get("/"))


@contextmanager
def locked(world):
    """Hold the lock of the directory, as a process does that was stopped inside an operation."""
    with open(world.directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def watching(world):
    """Return a session that watches /a, which has changed."""
    session, other = world.connect(), world.connect()
    session.execute(Create("/a"))
    session.execute(Get("/a", watch=True))
    session.take_events()
    other.execute(Set("/a", b"x", 0))
    return session


def test_a_look_for_events_does_not_wait_for_a_process_stopped_inside_an_operation(world, watching):
    """It is the reactor's thread that looks: the clients of this process would wait too."""
    with locked(world):
        assert watching.take_events() == []
    assert watching.take_events() == [Changed("/a")]


def test_a_session_that_found_the_directory_locked_is_woken_to_look_again(world, watching):
    woken = Event()
    watching.on_wake(woken.set)
    with locked(world):
        assert watching.take_events() == []
        assert woken.wait(SECONDS)
        woken.clear()
        assert watching.take_events() == []
    assert woken.wait(SECONDS)
    assert watching.take_events() == [Changed("/a")]


def test_a_directory_that_stays_locked_is_named_by_the_look_for_events(world):
    session = DirectoryCoordinator(world.directory, lock_timeout_ms=20)
    session.execute(Get("/", watch=True))

    def is_named():
        try:
            return session.take_events() is None
        except ConnectionLost as error:
            return "another process has held" in str(error)

    with locked(world):
        until(is_named)
    session.take_events()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CoordinatorUnavailable, match="file/below"):
        DirectoryCoordinator(tmp_path / "file" / "below")


def test_a_network_file_system_is_refused_with_the_reason_unless_someone_insists(tmp_path, monkeypatch):
    """A network file system, simulated here because tests cannot mount one, is refused unless it is allowed."""
    monkeypatch.setattr(directory, "file_system_of", lambda path, mounts: "nfs4")
    with pytest.raises(CoordinatorUnavailable, match=r"network file system \(nfs4\).*directory.network.allow=true"):
        DirectoryCoordinator(tmp_path)
    DirectoryCoordinator(tmp_path, allow_network=True).close()


def test_after_a_reboot_a_number_rests_its_mark_is_kept_and_nothing_of_the_dead_is_left(world):
    """kill -9 and power loss leave the same state: the files of dead sessions, and all acknowledged changes."""
    before = world.connect()
    last = settle(claim("a"), before, NOW).worker.next_id(NOW + 20_000)
    world.kill(before)
    after = world.connect()
    assert [file.name for file in (world.directory / "sessions").iterdir()] == [str(after.session_id)]
    waiting = settle(claim("b", number=0), after, NOW + 20_000)
    assert f"rests until {utc_text(NOW + 29_500)}" in waiting.problem
    again = settle(waiting, after, NOW + 29_500)
    assert again.number == 0 and again.worker.next_id(NOW + 29_500) > last


def test_the_file_system_is_that_of_the_innermost_mount():
    """proc(5), /proc/self/mounts: octal escapes stand for blanks; a later mount hides an earlier one."""
    mounts = (
        "/dev/a / ext4 rw 0 0\n"
        "srv:/x /mnt/nfs\\040share nfs4 rw 0 0\n"
        "/dev/b /data ext4 rw 0 0\n"
        "h:/ /data nfs rw 0 0\n"
    )
    assert file_system_of(Path("/home"), mounts) == "ext4"
    assert file_system_of(Path("/mnt/nfs share/ids"), mounts) == "nfs4"
    assert file_system_of(Path("/mnt/nfs shared"), mounts) == "ext4"
    assert file_system_of(Path("/data/ids"), mounts) == "nfs"


def test_no_descriptor_is_left_open(world):
    session = world.connect()
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for n in range(20):
        session.execute(Create(f"/n{n}", ephemeral=bool(n % 2)))
    other = world.connect()
    assert len(other.execute(Children("/"))) == 20
    other.close()
    assert (len(os.listdir("/proc/self/fd")) if before else 0) == before


def test_a_child_forked_inside_an_operation_does_not_hold_the_lock_on(world):
    """A forked child, which may live as long as a web server's worker, shares the lock's file but not the lock."""
    session, other = world.connect(), DirectoryCoordinator(world.directory, lock_timeout_ms=MS)
    reader, writer = os.pipe()
    with session._exclusive():
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent has finished the test
            os._exit(0)
    try:
        other.execute(Create("/a", b"x"))
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)
        other.close()


def test_no_event_is_lost_while_the_lock_cannot_be_opened(world):
    """A process may have no descriptor left for a while."""
    session, other = world.connect(), world.connect()
    session.execute(Create("/a"))
    session.execute(Get("/a", watch=True))
    session.take_events()
    other.execute(Set("/a", b"x", 0))
    lock, renamed = world.directory / ".lock", world.directory / ".kept"
    lock.rename(renamed)
    lock.mkdir()
    with pytest.raises(ConnectionLost):
        session.take_events()
    lock.rmdir()
    renamed.rename(lock)
    assert session.take_events() == [Changed("/a")]


def test_a_damaged_node_hides_no_change_of_another(world):
    session, other = world.connect(), world.connect()
    for path in ("/a", "/b", "/c"):
        session.execute(Create(path))
        session.execute(Get(path, watch=True))
    session.take_events()
    other.execute(Set("/a", b"x", 0))
    other.execute(Set("/c", b"x", 0))
    (world.directory / "nodes" / "b" / ".node").write_bytes(b"damaged")
    assert {event.path for event in session.take_events()} == {"/a", "/b", "/c"}
    with pytest.raises(CoordinatorUnavailable):
        session.execute(Get("/b"))
