"""The process of a broker for tests: started, given orders, stopped in every way there is. POSIX.

It holds the other end of the process's stdin: when this program ends, however it does, the broker ends too.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flakelog

STOP_SECONDS = 30.0
ORDER_SECONDS = 30.0
_READ_BYTES = 1 << 16


class BrokerError(Exception):
    """An order that the broker did not take, or a broker that is not there to take it."""


class DidNotStart(BrokerError):
    """The broker ended, or was not ready in time; the message has its log."""


class BrokerProcess:
    """At most one process at a time. `log` is the file that all of them write to."""

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
        """BrokerError where nothing runs."""
        return self._alive().pid

    def start(self, arguments: Sequence[str], seconds: float) -> dict[str, str]:
        """Start `flakelog server` with these; the addresses of its `ready:` line by their names. DidNotStart."""
        if self.running:
            raise BrokerError("it runs already")
        self._let_go()
        self.stalled = False
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                # -P: a directory of the user's that is named like one of our packages must not be taken for it.
                [sys.executable, "-P", "-m", "flakelog", "server", "--controlled", *arguments],
                env=_environment(os.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # Ctrl-C is for the tests, which still want it when they are torn down. The session is theirs, so that
                # one that is stalled is woken when they are gone (POSIX: of orphaned process groups).
                process_group=0,
            )
        try:
            ready = self._line(time.monotonic() + seconds)
        except BrokerError as error:
            self.kill()
            said = self.log.read_bytes()[begin:].decode(errors="replace")
            raise DidNotStart(f"the broker did not start: {error}\n{said}") from None
        words = [word.partition("=") for word in ready.decode().split()]
        return {name: address for name, sign, address in words if sign}

    def order(self, **order: Any) -> Any:
        """Give an order (flakelog.control); what it answers. ValueError where it makes no sense, BrokerError."""
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
        while True:  # past answers that came too late for who gave the order
            answer: dict[str, Any] = json.loads(self._line(deadline))
            if answer.get("order") == self._orders:
                return answer

    def stall(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing from when this returns on."""
        process = self._alive()
        process.send_signal(signal.SIGSTOP)
        self.stalled = True
        if hasattr(os, "waitid"):  # a signal takes its time; and that it may have ended instead is left for who asks
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT; fine where it was not stalled."""
        if self.running:
            self._alive().send_signal(signal.SIGCONT)
        self.stalled = False

    def kill(self) -> None:
        """SIGKILL; nothing of it runs any more when this returns. Fine where nothing runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
        self._let_go()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that takes too long. Fine where nothing runs."""
        if self._process is not None and self.running:
            self.resume()
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def _let_go(self) -> None:
        """Close what is left of a process that has ended."""
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
        """The next line of its stdout; BrokerError where none comes."""
        assert self._process is not None and self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise BrokerError("it said nothing in time")
            more = os.read(fd, _READ_BYTES)
            if not more:
                raise BrokerError("it has ended")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings for other brokers, and where this program found flakelog."""
    kept = {name: value for name, value in environment.items() if not name.startswith("FLAKELOG_")}
    home = Path(flakelog.__file__).resolve().parent.parent
    if home.name not in ("site-packages", "dist-packages"):  # a checkout that nobody installed
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), environment.get("PYTHONPATH")]))
    return kept
