"""coordination.directory: wake-ups between processes, by sockets that only the owner may open."""

import os
import signal
import stat
import subprocess
import sys
import threading
from threading import Event as Flag

import pytest

from coordination import wake_ups
from coordination.directory import DirectoryCoordinator
from coordination.port import Changed, Children, Create, Get, NoNode, Set
from coordination.wake_ups import wake_all
from tests.patience import SECONDS, until

OTHER = """
import sys
from coordination.directory import DirectoryCoordinator
from coordination.port import Create, Set

session = DirectoryCoordinator(sys.argv[1])
session.on_wake(lambda: None)
session.execute(Create("/broker", ephemeral=True))
print("here", flush=True)
for line in sys.stdin:
    session.execute(Set("/a", line.encode(), -1))
    print("set", flush=True)
"""


@pytest.fixture
def session(tmp_path):
    session = DirectoryCoordinator(tmp_path / "nodes")
    yield session
    session.close()


@pytest.fixture
def process(session, tmp_path):
    """Return another process with a session, which sets /a to each line it reads."""
    arguments = [sys.executable, "-c", OTHER, str(tmp_path / "nodes")]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    yield process
    process.kill()
    process.communicate()


def woken(session, *watches):
    """Set the watches; return a flag that the next wake-up sets. take_events is not called meanwhile."""
    for watch in watches:
        session.execute(watch)
    flag = Flag()
    session.on_wake(flag.set)
    session.take_events()
    return flag


def test_a_change_by_another_process_wakes_who_watches(session, process):
    session.execute(Create("/a"))
    flag = woken(session, Get("/a", watch=True))
    process.stdin.write("x\n")
    process.stdin.flush()
    assert flag.wait(SECONDS)
    until(lambda: Changed("/a") in session.take_events())
    assert session.execute(Get("/a")).data == b"x\n"


def test_a_process_killed_and_told_of_ends_its_session_at_once(session, process, tmp_path):
    flag = woken(session, Get("/broker", watch=True), Children("/", watch=True))
    sockets = set(os.listdir(tmp_path / "nodes" / "wake"))
    assert len(sockets) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    wake_all(tmp_path / "nodes")
    assert flag.wait(SECONDS)
    events = session.take_events()
    assert Changed("/broker") in events and Changed("/") in events
    with pytest.raises(NoNode):
        session.execute(Get("/broker"))
    assert set(os.listdir(tmp_path / "nodes" / "wake")) == {str(session.session_id)}, "the dead socket is removed"


def test_only_the_owner_may_open_the_sockets(session, tmp_path):
    woken(session)
    assert stat.S_IMODE((tmp_path / "nodes" / "wake").stat().st_mode) == 0o700


def test_the_path_of_a_directory_may_be_longer_than_that_of_a_socket(tmp_path):
    directory = tmp_path / ("long" * 40) / ("longer" * 30)
    session, other = DirectoryCoordinator(directory), DirectoryCoordinator(directory)
    flag = woken(session, Children("/", watch=True))
    other.execute(Create("/a"))
    assert flag.wait(SECONDS)
    session.close()
    other.close()


def test_who_watches_something_else_sleeps_on(session, tmp_path):
    other = DirectoryCoordinator(tmp_path / "nodes")
    other.execute(Create("/dir/a"))
    other.execute(Create("/b"))
    flag = woken(session, Get("/b", watch=True))
    late = woken(other, Children("/dir", watch=True))
    session.execute(Set("/dir/a", b"x", 0))
    session.execute(Create("/dir/b"))
    assert late.wait(SECONDS)  # the datagrams to all sessions are sent together
    assert not flag.is_set() and session.take_events() == []
    other.close()


def test_a_change_that_no_datagram_told_of_is_found_within_a_second(session, tmp_path, monkeypatch):
    other = DirectoryCoordinator(tmp_path / "nodes")
    other.execute(Create("/a"))
    woken(session, Get("/a", watch=True))
    monkeypatch.setattr(wake_ups, "_send", lambda directory, datagram: None)
    other.execute(Set("/a", b"x", 0))
    until(lambda: Changed("/a") in session.take_events())
    other.close()


def test_datagrams_that_waited_in_numbers_may_not_be_all(session, tmp_path):
    """A process that stood still for a while was sent more than its socket holds."""
    other = DirectoryCoordinator(tmp_path / "nodes")
    other.execute(Create("/last"))
    goes_on, wakes = Flag(), []
    session.execute(Get("/last", watch=True))
    session.execute(Children("/", watch=True))

    def wake():
        wakes.append(None)
        goes_on.wait(SECONDS)  # the thread that reads the socket stands still

    session.on_wake(wake)
    session.take_events()
    for number in range(1_000):
        wake_ups.wake_for(tmp_path / "nodes", [f"/{number}"])
    until(lambda: wakes)
    other.execute(Set("/last", b"x", 0))
    goes_on.set()
    until(lambda: Changed("/last") in session.take_events())
    assert len(wakes) < 1_000
    other.close()


def test_a_name_of_many_paths_is_a_word_for_all(session, tmp_path):
    other = DirectoryCoordinator(tmp_path / "nodes")
    paths = [f"/{'long' * 20}{number}" for number in range(1_000)]
    other.execute_all([Create(path) for path in paths])
    flag = woken(session, Get(paths[-1], watch=True))
    other.execute_all([Set(path, b"x", 0) for path in paths])
    assert flag.wait(SECONDS)
    assert session.take_events() == [Changed(paths[-1])]
    other.close()


def test_a_closed_session_leaves_no_socket_thread_or_descriptor(tmp_path):
    watcher = DirectoryCoordinator(tmp_path)
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        session = DirectoryCoordinator(tmp_path)
        session.on_wake(lambda: None)
        session.execute(Create("/a", ephemeral=True))
        session.close()
    until(lambda: threading.active_count() == threads)
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # an earlier test may have left one that is closed meanwhile
    assert os.listdir(tmp_path / "wake") == []
    watcher.close()


def test_a_forked_child_does_not_take_its_parents_wake_ups(session, tmp_path):
    other = DirectoryCoordinator(tmp_path / "nodes")
    other.execute(Create("/a"))
    flag = woken(session, Get("/a", watch=True))
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    other.execute(Set("/a", b"x", 0))
    assert flag.wait(SECONDS)
    other.close()
