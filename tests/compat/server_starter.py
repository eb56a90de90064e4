"""Servers that begin as forks of a process with all the imports of `flakelog server`, which are most of a start's CPU.

A fork behaves as `python -m flakelog server` does: it has the same arguments, environment, directory and streams, and
it ends through the same exit of the interpreter. Tests of the start itself start Python.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

PROGRAM = "tests.compat.server_starter_program"


class Starter:
    """A process that forks servers. It ends with the process that made it."""

    def __init__(self, environment, directory):
        self._orders, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            pipes = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}  # as a server has
            self._process = subprocess.Popen([sys.executable, "-m", PROGRAM], **pipes, cwd=directory, env=environment)

    def start(self, arguments, *, cwd, env):
        """Fork a `flakelog` with these arguments; return it as a Fork, with pipes from its stdout and stderr."""
        order = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": env}).encode()
        ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
        with self._lock:
            socket.send_fds(self._orders, [len(order).to_bytes(4, "big")], theirs)
            self._orders.sendall(order)
            answer = self._orders.recv(4, socket.MSG_WAITALL)
        for descriptor in theirs:
            os.close(descriptor)
        assert answer, self._process.communicate()
        return Fork(int.from_bytes(answer, "big"), *ours)


class Fork:
    """A forked server, with those methods of `subprocess.Popen` that the tests need."""

    def __init__(self, pid, stdout, stderr, exit_code):
        self.pid = pid
        self.stdout = open(stdout, errors="replace")
        self.stderr = open(stderr, errors="replace")
        self.returncode = None
        self._exit_code = open(exit_code, "rb", buffering=0)
        self._lock = threading.Lock()

    def poll(self):
        """Return the exit code, negative for a signal, or None while the server runs."""
        return self._ended(0)

    def wait(self, timeout):
        """Return the exit code; raise TimeoutExpired if the server runs for `timeout` more seconds."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("flakelog", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout):
        """Return the exit code, for which the starter is waited for up to `timeout` seconds."""
        ends = select.poll()  # `select` takes no descriptor above 1,023, and some tests have more
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            ends.register(self._exit_code, select.POLLIN)
        if ends.poll(timeout * 1_000):
            with self._lock:
                if self.returncode is None:
                    with self._exit_code:
                        self.returncode = int(self._exit_code.read(16))
        return self.returncode
