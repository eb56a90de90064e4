"""A `flakelog server` in a separate process, as an operator runs it: started, killed, restarted on its directory.

    with ServerProcess(tmp_path / "data") as server:      # free ports, embedded
        client = Client(server.address)
        server.kill()                                     # SIGKILL; `server.start()` again is the restart
        server.wait_for_log("recovered")
"""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

from coordination.free_port import FreePort
from tests.compat.server_starter import Starter
from tests.patience import SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCTION = Path(__file__).with_name("production")  # hides packages that only tests need
PYTHONPATH = f"{ROOT}{os.pathsep}{PRODUCTION}"  # of programs that tests start
FREE_PORTS = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "flakelog.ids.listener": "127.0.0.1:0",
    "flakelog.http.listener": "127.0.0.1:0",
}
PROGRAM = [sys.executable, "-m", "flakelog"]
KEEP_ALL = {"log.retention.ms": "-1"}  # many messages of the tests have old timestamps


class DidNotStart(Exception):
    """The process ended before its `ready:` line. `exit_code` and `stderr` are those an operator would see."""

    def __init__(self, exit_code, stderr):
        super().__init__(f"exit code {exit_code}:\n{stderr}")
        self.exit_code = exit_code
        self.stderr = stderr


@cache
def _starter():
    """Return the process that forks the servers of this one."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": PYTHONPATH}
    return Starter(environment, ROOT)


class ServerProcess:
    """A server on free local ports. `settings` override the defaults; an empty listener turns that part off.

    `log` keeps the output of all runs. `prefix` is a command to run the server under (`unshare`, `prlimit`, ...), which
    must exec the rest. `arguments` are more options of the server. `root` is the checkout whose code it runs.

    In tests it is forked from a process that has its imports, unless `prefix`, `env` or `root` ask for a start of
    Python. In benchmarks and other programs it is always a start of Python.
    """

    forked = False  # the tests' conftest.py sets it

    def __init__(
        self,
        data_dir,
        settings=None,
        *,
        zookeeper=None,
        prefix=(),
        env=None,
        command="server",
        root=ROOT,
        arguments=(),
    ):
        self.data_dir = Path(data_dir)
        self.settings = FREE_PORTS | (settings or {})
        if not any(name.startswith("log.retention") for name in self.settings):
            self.settings |= KEEP_ALL
        self._zookeeper = zookeeper
        self._prefix = tuple(prefix)
        self._arguments = tuple(arguments)
        self._env = env or {}
        self._command = command
        self._root = root
        self._process = None
        self._addresses = {}
        self._log = []
        self._changed = threading.Condition()
        self._readers = []
        self._ports = []

    def __enter__(self):
        return self if self.running else self.start()

    def __exit__(self, *_):
        self.kill()
        for port in self._ports:
            port.close()

    # --- life ----------------------------------------------------------------------------------------------------

    @property
    def argv(self):
        argv = [*self._prefix, *PROGRAM, self._command, "--data-dir", str(self.data_dir)]
        for name, value in self.settings.items():
            argv += ["--set", f"{name}={value}"]
        return [*argv, *self._arguments, *(["--zookeeper", self._zookeeper] if self._zookeeper else [])]

    def start(self):
        """Start the server and wait for its `ready:` line; raise DidNotStart if it ends before that."""
        begin = self.mark()
        self.launch()
        self._await(lambda: self._addresses or not any(r.is_alive() for r in self._readers), "no ready: line")
        if not self._addresses:
            raise DidNotStart(self._ended(), self.log_since(begin))
        return self

    def launch(self):
        """Start the server without waiting for its `ready:` line."""
        assert not self.running, "it runs already"
        self._addresses = {}
        path = f"{self._root}{os.pathsep}{PRODUCTION}"
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, **self._env}
        program, arguments = self.argv[: len(PROGRAM)], self.argv[len(PROGRAM) :]
        if program == PROGRAM and self.forked and not self._env and self._root == ROOT:
            self._process = _starter().start(arguments, cwd=self._root, env=env)
        else:
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self._process = subprocess.Popen(
                self.argv, cwd=self._root, env=env, **streams, text=True, errors="replace"
            )
        streams = self._process.stdout, self._process.stderr
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True) for stream in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream):
        with stream:
            for line in stream:
                with self._changed:
                    self._log.append(line)
                    if line.startswith("ready: "):
                        words = [word.partition("=") for word in line.split()[1:]]
                        self._addresses = {name: address for name, sign, address in words if sign}
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _await(self, condition, failure):
        end = time.monotonic() + SECONDS
        with self._changed:
            while not condition():
                remaining_s = end - time.monotonic()
                if remaining_s <= 0:
                    raise TimeoutError(f"{failure} within {SECONDS} s; the log:\n{''.join(self._log)}")
                # Wake regularly, because a reader's last notification can come just before its thread seems dead.
                self._changed.wait(min(remaining_s, 0.2))

    def _ended(self):
        code = self._process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        return code

    def send_signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        """Send SIGKILL and wait until the process has ended. Do nothing if it has ended already."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def stop(self, number=signal.SIGTERM):
        """Ask the server to stop cleanly, and return its exit code."""
        self.send_signal(number)
        return self._ended()

    def restart(self):
        """Send SIGKILL and start again on the same directory. Free ports change, unless `keep_ports` was called."""
        self.kill()
        return self.start()

    def restart_without(self, partition):
        """Restart with a partition, such as "kept-1", offline: a directory stands in place of its first log file."""
        self.kill()
        log = self.directory_of(partition) / f"{0:020}.log"
        log.unlink()
        log.mkdir()
        return self.start()

    def keep_ports(self):
        """Use the same ports at every start, so that clients find the server again. Call it before the first start."""
        assert self._process is None, "its ports are taken already, and would be free for others between two starts"
        for name, address in self.settings.items():
            if address == FREE_PORTS.get(name):
                self._ports.append(FreePort())
                self.settings[name] = address.replace(":0", f":{self._ports[-1].number}")
        return self

    def directory_of(self, partition):
        """Return the directory of a partition, such as "kept-1"."""
        return self.data_dir / partition

    # --- addresses, log and figures ------------------------------------------------------------------------------

    @property
    def running(self):
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self):
        return self._process.pid

    @property
    def address(self):
        """The broker's address, "host:port"."""
        return self._addresses["broker"]

    @property
    def addresses(self):
        """All addresses of the `ready:` line: "broker", "broker.NAME" for more listeners, "ids", "http"."""
        return dict(self._addresses)

    @property
    def ids(self):
        """The address of the id service (Thrift), "host:port"."""
        return self._addresses["ids"]

    @property
    def http(self):
        return self._addresses["http"]

    @property
    def log(self):
        """Everything that all runs wrote to stdout and stderr."""
        with self._changed:
            return "".join(self._log)

    def mark(self):
        """Return the current position in the log, for `log_since` and `wait_for_log`."""
        with self._changed:
            return len(self._log)

    def log_since(self, mark):
        with self._changed:
            return "".join(self._log[mark:])

    def wait_for_log(self, text, since=0):
        """Return the first line that contains `text`; raise TimeoutError with the whole log if none comes."""
        lines = []

        def has_line():
            lines[:] = [line for line in self._log[since:] if text in line]
            return lines

        self._await(has_line, f"no {text!r} in the log")
        return lines[0].rstrip("\n")

    def status(self, name):
        """Return a figure of /proc/PID/status, e.g. `VmRSS` (KiB) or `Threads`."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1])
        raise KeyError(name)

    def read_by_threads(self):
        """Return the bytes that threads other than the main one have read from files (/proc/PID/task/TID/io)."""
        others = [task for task in Path(f"/proc/{self.pid}/task").iterdir() if task.name != str(self.pid)]
        return sum(int((task / "io").read_text().split()[1]) for task in others)


class ServerProgram(ServerProcess):
    """A server that begins as a start of Python, for the tests of starts."""

    forked = False
