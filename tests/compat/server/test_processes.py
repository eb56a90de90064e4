"""A parent of brokers and its children as real processes: deaths, hangs, stops, and the death of the parent."""

import fcntl
import json
import os
import re
import signal
import socket
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from threading import Event as Flag

import pytest

from coordination.directory import DirectoryCoordinator
from coordination.port import Changed, Children
from flakelog.processes.plan import Machine, plan
from idgen.client.blocking import IdClient
from tests.compat.server_process import FREE_PORTS, DidNotStart, ServerProcess
from tests.patience import MS, SECONDS, until

PARENT = "tests.compat.server.parent_program"
CHILD = "tests.compat.server.child_program"
SERVER = "tests.compat.server.child_server_program"


class ParentProcess(ServerProcess):
    """A parent with children of CHILD; `options` are added to those of one child, by its number."""

    def __init__(self, directory, options=None, *, children=2, commands=None, sockets=None, env=None, **limits):
        super().__init__(directory, env=env)
        self.cluster_dir = directory / "cluster"
        given = options or {}
        plain = [{"directory": str(directory), "name": f"h:{number}"} for number in range(1, children + 1)]
        children_options = [child | given.get(number, {}) for number, child in enumerate(plain, 1)]
        self._options = {
            "commands": commands or [[sys.executable, "-m", CHILD, json.dumps(child)] for child in children_options],
            "cluster_dir": str(self.cluster_dir),
            "sockets": sockets or {},
            "beat_timeout_ms": MS,
            "stop_timeout_ms": MS,
            "json_log": False,
        } | limits

    @property
    def argv(self):
        return [sys.executable, "-m", PARENT, json.dumps(self._options)]

    def child(self, number, since=0):
        """Return the process id of a child that has begun."""
        return int(re.search(r"began (\d+)", self.wait_for_log(f"[broker {number}] began", since=since))[1])

    def kill_child(self, number, signal_number=signal.SIGKILL):
        """Signal a child. Return the position in the log before that."""
        mark = self.mark()
        os.kill(self.child(number), signal_number)
        return mark


def test_one_line_names_all_addresses_when_all_children_are_ready_and_a_stop_is_clean(tmp_path):
    with ParentProcess(tmp_path, children=3) as parent:
        assert parent.addresses == {"broker": "h:1,h:2,h:3", "http": "shared"}
        assert "ready: broker=h:1,h:2,h:3 http=shared ids unique in a directory\n" in parent.log
        assert parent.stop() == 0
    for number in (1, 2, 3):
        assert f"[broker {number}] serves\n" in parent.log and f"[broker {number}] stops\n" in parent.log


def test_a_child_that_is_killed_is_started_at_once_and_then_after_a_pause(tmp_path):
    with ParentProcess(tmp_path) as parent:
        first, neighbour = parent.child(2), parent.child(1)
        mark = parent.kill_child(2)
        parent.wait_for_log("broker 2 ended by signal 9; it is started again at once", since=mark)
        second = parent.child(2, since=mark)
        parent.wait_for_log("[broker 2] serves", since=mark)
        os.kill(second, signal.SIGKILL)
        parent.wait_for_log("broker 2 ended by signal 9; it is started again in 1 s", since=mark)
        mark = parent.mark()
        assert len({first, second, parent.child(2, since=mark)}) == 3
        parent.wait_for_log("[broker 2] serves", since=mark)
        assert parent.stop() == 0
    assert parent.log.count("ready: ") == 1 and parent.log.count("[broker 1] began") == 1, neighbour


@pytest.mark.parametrize("hang", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "its reactor hangs"])
def test_a_child_that_hangs_is_killed_and_started_again(tmp_path, hang):
    with ParentProcess(tmp_path, beat_timeout_ms=3_000) as parent:
        mark = parent.kill_child(1, hang)
        parent.wait_for_log("broker 1 has not answered for ", since=mark)
        parent.wait_for_log("broker 1 ended by signal 9; it is started again at once", since=mark)
        parent.wait_for_log("[broker 1] serves", since=mark)
        assert parent.stop() == 0


def test_children_end_cleanly_when_their_parent_is_killed(tmp_path):
    parent = ParentProcess(tmp_path).start()
    pids = [parent.child(1), parent.child(2)]
    parent.send_signal(signal.SIGKILL)
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits until both have ended
    assert all((tmp_path / f"parent-ended-{pid}").exists() for pid in pids)
    parent.kill()


def test_a_child_that_does_not_stop_is_killed_and_the_exit_code_says_so(tmp_path):
    with ParentProcess(tmp_path, stop_timeout_ms=2_000) as parent:
        parent.kill_child(2, signal.SIGSTOP)
        assert parent.stop() == 1
    assert "[broker 1] stops" in parent.log
    assert "broker 2 has not stopped within 2000 ms; it is killed" in parent.log
    assert "Error: not stopped cleanly: broker 2; the next start recovers" in parent.log


def test_a_refused_start_ends_everything_with_its_message(tmp_path):
    parent = ParentProcess(tmp_path, {2: {"refuses": "Error: listeners=x: must be right"}})
    with pytest.raises(DidNotStart) as refused:
        parent.start()
    assert refused.value.exit_code == 2
    assert "Error: broker 2: listeners=x: must be right\n" in refused.value.stderr
    assert "[broker 2] some lines before it\n" in refused.value.stderr
    assert parent.log.count("began") <= 1, "the other child is not started again"


def test_a_command_that_does_not_exist_is_a_refused_start(tmp_path):
    with pytest.raises(DidNotStart) as refused:
        ParentProcess(tmp_path, commands=[["/nowhere"]]).start()
    assert refused.value.exit_code == 1 and "Error: broker 1: it cannot begin: " in refused.value.stderr


def test_a_socket_that_cannot_be_bound_is_refused(tmp_path):
    parent = ParentProcess(tmp_path, sockets={"http": ("203.0.113.1", 1)})
    with pytest.raises(DidNotStart) as refused:
        parent.start()
    assert refused.value.exit_code == 1 and "cannot listen on 203.0.113.1:1: " in refused.value.stderr


def test_ctrl_c_of_a_terminal_reaches_the_parent_alone(tmp_path):
    """A terminal signals the parent's process group, and the children would take the parent's TERM for a second one."""
    with ParentProcess(tmp_path) as parent:
        for number in (1, 2):
            line = parent.wait_for_log(f"[broker {number}] began")
            assert f"began {parent.child(number)} group {parent.child(number)} " in line
        assert parent.stop(signal.SIGINT) == 0


def test_another_process_hears_of_a_death_by_a_wake_up(tmp_path):
    with ParentProcess(tmp_path) as parent, closing(DirectoryCoordinator(parent.cluster_dir)) as session:
        (tmp_path / "no-session").touch()  # so that the next life of the child changes nothing
        flag = Flag()
        session.execute(Children("/", watch=True))
        session.on_wake(flag.set)
        session.take_events()
        parent.kill_child(2)
        assert flag.wait(SECONDS)
        assert session.take_events() == [Changed("/")]
        assert session.execute(Children("/")) == ("h:1",)


def test_systemd_hears_from_the_parent_alone(tmp_path):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(SECONDS)
        with ParentProcess(tmp_path, env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}) as parent:
            ready = manager.recv(4_096).decode()
            assert ready == "READY=1\nSTATUS=ready: broker=h:1,h:2 http=shared ids unique in a directory"
            assert [manager.recv(4_096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert parent.stop() == 0
            messages = []
            until(lambda: messages.append(manager.recv(4_096)) or messages[-1] == b"STOPPING=1")
    assert parent.log.count("told of systemd: False") == 2


def _servers(directory, **settings):
    """Return a parent of two real servers, planned as for an operator."""
    given = FREE_PORTS | settings
    planned = plan(given, 2, directory, Machine(2, None, 1_000))
    options = [
        {"settings": given | child.settings, "data_dir": str(child.data_dir)} for child in planned.children
    ]
    commands = [[sys.executable, "-m", SERVER, json.dumps(child)] for child in options]
    return ParentProcess(directory, commands=commands, sockets=planned.sockets)


def _stop(pid):
    """Stop a process, and wait until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text())


def _ask(parent):
    """Request an id over HTTP and one over Thrift, by new connections."""
    request = urllib.request.Request(f"http://{parent.http}/id", method="POST")
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 200
    with IdClient(parent.ids) as client:
        assert client.get_id()


def test_all_servers_answer_at_one_port_of_http_and_one_of_ids(tmp_path):
    """Each of two servers answers alone while the other stands still, and also after its death and restart."""
    with _servers(tmp_path) as parent:
        brokers = parent.address.split(",")
        assert len(brokers) == 2 and parent.http.count(":") == parent.ids.count(":") == 1
        pids = parent.child(1), parent.child(2)
        for stopped in pids:
            _stop(stopped)
            _ask(parent)
            os.kill(stopped, signal.SIGCONT)
        mark = parent.kill_child(1)
        assert parent.child(1, since=mark) != pids[0]
        _stop(pids[1])
        _ask(parent)
        os.kill(pids[1], signal.SIGCONT)
        assert parent.stop() == 0
    assert (tmp_path / "metadata.json").exists() and (tmp_path / "nodes" / "2" / "metadata.json").exists()


GRACE = {"flakelog.shutdown.grace.ms": str(MS)}


def test_a_second_signal_ends_the_grace_of_all_servers(tmp_path):
    with _servers(tmp_path, **GRACE) as parent:
        parent.send_signal(signal.SIGTERM)
        for number in (1, 2):
            parent.wait_for_log(f"[broker {number}] told to stop: not ready any more")
        assert parent.stop() == 0
    assert parent.log.count("told to stop again: the grace ends now") == 2


def test_servers_stop_cleanly_at_once_when_their_parent_is_killed(tmp_path):
    parent = _servers(tmp_path, **GRACE).start()
    parent.kill()
    marks = [tmp_path / ".stopped-cleanly", tmp_path / "nodes" / "2" / ".stopped-cleanly"]
    until(lambda: all(mark.exists() for mark in marks))
