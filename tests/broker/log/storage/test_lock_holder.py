"""broker.log.storage.lock_holder: the message about a locked directory names the process that holds the lock."""

import fcntl
import os
import subprocess
import sys

import pytest

from broker.log.storage.lock_holder import holder_of
from broker.log.storage.os_storage import LOCK, OsStorage
from broker.log.storage.port import StorageError

HOLD = "import fcntl,sys; f=open(sys.argv[1],'a'); fcntl.flock(f,fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
linux_only = pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux tells who holds a lock")


class Holder:
    """Another process that holds the lock of a file until the end of its block."""

    def __init__(self, path):
        self._process = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=-1, stdout=-1)
        self.pid = self._process.pid

    def __enter__(self):
        self._process.stdout.readline()
        return self

    def __exit__(self, *_):
        self._process.communicate()


@linux_only
def test_the_holder_is_named_and_not_the_last_server(tmp_path):
    """The file has the process id of a server that has ended; another program holds the lock now."""
    storage = OsStorage(str(tmp_path))
    storage.lock()
    storage.unlock()
    (tmp_path / LOCK).write_text("4194303\n")
    with Holder(tmp_path / LOCK) as holder, pytest.raises(StorageError) as caught:
        storage.lock()
    message = str(caught.value)
    assert f"another process uses this data directory: pid {holder.pid}, started 20" in message
    assert "import fcntl,sys" in message and "4194303" not in message


def test_a_user_who_may_not_write_the_lock_cannot_open_it(tmp_path):
    """A lock file of an older server could be opened by any user, and whoever can open a file can lock it."""
    path = tmp_path / LOCK
    path.touch(0o644)
    path.chmod(0o644)
    storage = OsStorage(str(tmp_path))
    storage.lock()
    storage.unlock()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with open(path) as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=str(os.getpid()) if os.path.exists("/proc/locks") else "uses"):
            storage.lock()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def lock(tmp_path):
    """Return an open lock file with the process id 12, and an empty directory that stands for /proc."""
    (tmp_path / "lock").write_text("12\n")
    fd = os.open(tmp_path / "lock", os.O_RDONLY)
    proc = tmp_path / "proc"
    proc.mkdir()
    yield fd, proc
    os.close(fd)


def row(fd, pid, device=None, kind="FLOCK  ADVISORY  WRITE"):
    file = os.fstat(fd)
    device = device or f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    return f"1: {kind} {pid} {device}:{file.st_ino} 0 EOF\n"


def test_the_lock_of_another_file_or_one_that_is_waited_for_counts_for_nothing(lock):
    fd, proc = lock
    waits = row(fd, 7, kind="-> FLOCK ADVISORY WRITE")
    (proc / "locks").write_text(waits + row(fd, 8, "00:01") + row(fd, 9, kind="POSIX ADVISORY WRITE") + "rubbish\n")
    assert "cannot be named" in holder_of(fd, proc)


def test_where_the_device_has_another_number_the_process_id_in_the_file_decides(lock):
    fd, proc = lock
    (proc / "locks").write_text(row(fd, 8, "00:01") + row(fd, 12, "00:02"))
    (proc / "12").mkdir()
    (proc / "12" / "cmdline").write_bytes(b"python\0-m\0flake\x1blog\0" + b"x" * 500)
    description = holder_of(fd, proc)
    assert description.startswith("pid 12, python -m flake?log xxx") and len(description) < 150


def test_a_lock_that_outlived_its_process_is_a_childs(lock):
    fd, proc = lock
    (proc / "locks").write_text(row(fd, 13))
    assert holder_of(fd, proc) == "a child of process 13, which took the lock and has ended"


@pytest.mark.parametrize("written, description", [("own", "pid "), ("", "a process"), ("x", "a process")])
def test_without_proc_the_process_id_in_the_file_is_told_if_it_lives(lock, written, description):
    fd, proc = lock
    own = f"{os.getpid()}\n"
    (proc.parent / "lock").write_text(own if written == "own" else written)
    assert holder_of(fd, proc).startswith(description)
