"""The process of a broker for tests: it is started, given orders and stopped. POSIX only.

This program holds the other end of the process's stdin, so the broker ends when this program ends, even in a crash.
"""

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flakelog.own_program import own_command, with_own_path

STOP_SECONDS = 30.0
ORDER_SECONDS = 30.0
_READ_BYTES = 1 << 16


class BrokerError(Exception):
    """A broker that does not run, or that cannot take an order."""


class DidNotStart(BrokerError):
    """The broker ended, or was not ready in time; the message has its log."""


class BrokerProcess:
    """A broker's process, at most one at a time. All of them write to the file `log`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.stalled = False
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._orders = 0
        self._ordering = threading.Lock()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id. Raises BrokerError if no broker runs."""
        return self._alive().pid

    def start(self, arguments: Sequence[str], seconds: float) -> dict[str, str]:
        """Start `flakelog server`; return the addresses of its `ready:` line, by name. Raises DidNotStart."""
        if self.running:
            raise BrokerError("it runs already")
        self._let_go()
        self.stalled = False
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                own_command("server", "--controlled", *arguments),
                env=_environment(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # A separate process group, because Ctrl-C is for the tests, whose teardown still needs the broker. The
                # same session, so that a stalled broker wakes up when the tests end (POSIX: orphaned process groups).
                process_group=0,
            )
        try:
            ready = self._line(time.monotonic() + seconds)
        except BrokerError as error:
            self.kill()
            output = self.log.read_bytes()[begin:].decode(errors="replace")
            raise DidNotStart(f"the broker did not start: {error}\n{output}") from None
        words = [word.partition("=") for word in ready.decode().split()]
        return {name: address for name, sign, address in words if sign}

    def order(self, **order: Any) -> Any:
        """Give an order (flakelog.control) and return its result; raise ValueError if it is invalid, or BrokerError."""
        with self._ordering:
            answer = self._answer(order)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["done"]

    def _answer(self, order: dict[str, Any]) -> dict[str, Any]:
        process = self._alive()
        if self.stalled:
            raise BrokerError("it is stalled and takes no orders; resume() it first")
        assert process.stdin is not None
        self._orders += 1
        try:
            process.stdin.write(json.dumps({"order": self._orders, **order}).encode() + b"\n")
        except BrokenPipeError:
            raise BrokerError("the broker has ended; see its log") from None
        deadline = time.monotonic() + ORDER_SECONDS
        while True:  # skip late answers to earlier orders, which had timed out
            answer: dict[str, Any] = json.loads(self._line(deadline))
            if answer.get("order") == self._orders:
                return answer

    def stall(self) -> None:
        """Send SIGSTOP; when this returns, the broker keeps its connections and answers nothing."""
        process = self._alive()
        process.send_signal(signal.SIGSTOP)
        self.stalled = True
        if hasattr(os, "waitid"):  # wait for the signal's effect; WNOWAIT keeps an exit status for later calls
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT; do nothing if the broker was not stalled."""
        if self.running:
            self._alive().send_signal(signal.SIGCONT)
        self.stalled = False

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended; do nothing if none runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        self._let_go()

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that takes too long; do nothing if no process runs."""
        if self._process is not None and self.running:
            self.resume()
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def _let_go(self) -> None:
        """Close the pipes of a process that has ended, and forget it."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
        self._process, self._unread, self.stalled = None, b"", False

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise BrokerError("no broker runs; start() or restart() it")
        return self._process

    def _line(self, deadline: float) -> bytes:
        """Return the next line of the process's stdout; raise BrokerError if none comes."""
        assert self._process is not None and self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not select.select([fd], [], [], remaining_s)[0]:
                raise BrokerError("it said nothing in time")
            more = os.read(fd, _READ_BYTES)
            if not more:
                raise BrokerError("it has ended")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without settings for other brokers, and with the path to this program's flakelog."""
    return with_own_path({name: value for name, value in environment.items() if not name.startswith("FLAKELOG_")})
