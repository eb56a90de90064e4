"""A start that fails half way releases what it took, before its process ends."""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from broker.log.storage.os_storage import OsStorage
from coordination.free_port import FreePort
from idgen.snowflake import Snowflake

PROGRAM = Path(__file__).with_name("failed_start_program.py")
SHORT_MS = "500"


class FailedStart:
    """A server's start in a process that lives on: its `reason`, what it `left` open, and the ports it was given."""

    def __init__(self, data_dir, zookeeper="", **properties):
        self._stack = ExitStack()
        self.ports = [self._stack.enter_context(FreePort()) for _ in range(3)]
        broker, ids, http = (port.address for port in self.ports)
        given = {
            "listeners": f"PLAINTEXT://{broker}",
            "flakelog.ids.listener": ids,
            "flakelog.http.listener": http,
            "flakelog.start.timeout.ms": SHORT_MS,
            **{name.replace("_", "."): value for name, value in properties.items()},
        }
        command = [sys.executable, PROGRAM, data_dir, zookeeper, *(f"{name}={value}" for name, value in given.items())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(self._process.communicate)
        outcome = json.loads(self._process.stdout.readline())
        self.reason, self.left = outcome["reason"], outcome["left"]

    def close(self):
        self._stack.close()

    def ports_are_free(self):
        for port in self.ports:
            socket.create_server(("127.0.0.1", port.number)).close()
        return True


@pytest.fixture
def start(tmp_path):
    """Return a function that makes a failed start on a data directory, and ends its process after the test."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(closing(FailedStart(tmp_path / "data", **settings)))


def lock(directory):
    """Lock a data directory, and return what unlocks it."""
    directory.mkdir(exist_ok=True)
    storage = OsStorage(str(directory))
    storage.lock()
    return storage


def test_a_port_in_use_leaves_the_other_ports_and_the_directory_free(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:{}".format(taken.getsockname()[1])
        failed = start(flakelog_http_listener=address)
    assert failed.reason == f"cannot listen on {address}: Address already in use"
    assert failed.left == [] and failed.ports_are_free()
    lock(tmp_path / "data").unlock()


def test_a_locked_directory_leaves_no_file_open_and_stays_locked(start, tmp_path):
    holder = lock(tmp_path / "data")
    failed = start()
    assert "another process uses this data directory" in failed.reason
    assert failed.left == [] and failed.ports_are_free()
    assert "another process uses this data directory" in start().reason
    holder.unlock()


def test_a_registry_that_refuses_a_number_gets_the_other_one_back(start, tmp_path):
    """The broker holds number 0 when the id service is refused number 1."""
    registry = tmp_path / "data" / "ids"
    with Snowflake(directory=registry, worker=1):
        failed = start(flakelog_ids_worker="1")
        assert failed.reason.startswith(f"no worker number within {SHORT_MS} ms: ")
        assert failed.left == [] and failed.ports_are_free()
        lock(tmp_path / "data").unlock()
        with Snowflake(directory=registry, worker=0, timeout_ms=1_000) as ids:
            assert ids.worker_number == 0


def test_a_zookeeper_that_refuses_connections_leaves_no_thread(start, tmp_path):
    with FreePort() as port:
        failed = start(zookeeper=port.address)
    assert failed.reason == f"no ZooKeeper answered at {port.address} in {SHORT_MS} ms"
    assert failed.left == [] and failed.ports_are_free()
    lock(tmp_path / "data").unlock()
