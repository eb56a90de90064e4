"""SHELL (processes, pipes, signals, sockets, the clock): the parent of the brokers of one machine.

It needs no reactor: one thread waits in a selector for signals, for lines of its children, and for the next deadline.
So the parent is small, and forks while it has no other thread.

Each child has a separate process group, because Ctrl-C reaches a whole group, and the children would take the parent's
TERM for a second signal. A pipe to each child ends with the parent, however the parent ends, and then the child stops.
Output of a child goes to stderr line by line, behind its name.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from broker.address import host_port
from coordination.wake_ups import wake_all
from flakelog.listeners import LISTEN_BACKLOG
from flakelog.processes.messages import Inherited, LineBuffer, forwarded, messages_of, with_inherited
from flakelog.processes.supervisor import Outcome, Send, Start, Supervisor, Tell, joined
from flakelog.ready_line import ready_line
from flakelog.service_manager import notify, watchdog_seconds

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
NOTIFIED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # the parent alone talks to systemd
STOP_TIMEOUT_MS = 120_000  # as TimeoutStopSec= of deploy/flakelog.service
READ_BYTES = 1 << 16
FAILURE = 1  # the exit code of `flakelog server` if it cannot start


class Program(NamedTuple):
    """A child: its name for the operator, the command that runs it, and the id of its broker."""

    name: str
    argv: Sequence[str]
    broker_id: int | None = None


class Ending(NamedTuple):
    """The exit code of the parent, and its reason; '' after a clean stop."""

    status: int
    reason: str = ""


class Parent:
    """The parent. `run` starts the children, and returns when all of them have ended."""

    def __init__(
        self,
        programs: Sequence[Program],
        sockets: Mapping[str, tuple[str, int]],
        cluster_dir: Path,
        report: Callable[[str], None],
        *,
        beat_timeout_ms: int,
        stop_timeout_ms: int = STOP_TIMEOUT_MS,
        json_log: bool = False,
    ) -> None:
        """`sockets` are host and port of the sockets that all children share, by name. `report` gets a line of the log.

        `stop_timeout_ms` is the time between TERM and KILL, with the children's flakelog.shutdown.grace.ms. With
        `json_log`, each line of a child that is a JSON object gets a field in place of a prefix.
        """
        self._programs = programs
        self._addresses = sockets
        self._cluster_dir = cluster_dir
        self._broker_ids = [program.broker_id for program in programs if program.broker_id is not None]
        self._report = report
        self._json_log = json_log
        names = [program.name for program in programs]
        self._supervisor = Supervisor(names, beat_timeout_ms=beat_timeout_ms, stop_timeout_ms=stop_timeout_ms)
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[str, socket.socket] = {}
        self._processes: dict[int, _Process] = {}
        self._last_lines: dict[int, str] = {}
        self._told_ready = False
        self._watchdog_s = watchdog_seconds(os.environ, os.getpid())
        self._watchdog_at_s = 0.0

    def run(self) -> Ending:
        """Serve until all children have ended. Call it in the main thread, since it handles signals."""
        with ExitStack() as stack:
            stack.callback(self._selector.close)
            try:
                for name, (host, port) in self._addresses.items():
                    self._sockets[name] = stack.enter_context(listening(host, port))
            except OSError as error:
                return Ending(FAILURE, f"cannot listen on {host_port(host, port)}: {error.strerror or error}")
            signals = stack.enter_context(_signals())
            self._selector.register(signals, selectors.EVENT_READ, lambda: self._signalled(signals))
            self._supervisor.begin(_now_ms())
            while (outcome := self._supervisor.outcome) is None:
                self._turn()
            return self._ending(outcome)

    def _turn(self) -> None:
        self._carry_out()
        for key, _ in self._selector.select(self._wait_s()):
            key.data()
        for index, process in list(self._processes.items()):
            if process.ended:
                self._exited(index, process)
        self._tell_ready()
        self._feed_watchdog()
        self._supervisor.tick(_now_ms())
        self._carry_out()

    def _wait_s(self) -> float | None:
        """Return the time to the next deadline; None if only events matter."""
        waits = []
        deadline_ms = self._supervisor.next_deadline_ms()
        if deadline_ms is not None:
            waits.append((deadline_ms - _now_ms()) / 1_000)
        if self._watchdog_at_s:
            waits.append(self._watchdog_at_s - time.monotonic())
        return max(min(waits), 0) if waits else None

    def _carry_out(self) -> None:
        for order in self._supervisor.take_orders():
            match order:
                case Start(child):
                    self._start(child)
                case Send(child, number):
                    if child in self._processes:  # it may have ended meanwhile
                        self._processes[child].send(signal.Signals[number.value])
                case Tell(line):
                    self._report(line)

    def _start(self, index: int) -> None:
        program = self._programs[index]
        sockets = {name: shared.fileno() for name, shared in self._sockets.items()}
        self._supervisor.began(index, _now_ms())
        try:
            process = _Process(program.argv, sockets, self._cluster_dir, self._broker_ids)
        except OSError as error:
            self._last_lines[index] = f"it cannot begin: {error}"
            self._report(f"{program.name}: {self._last_lines[index]}")
            self._supervisor.exited(index, FAILURE, _now_ms())
            return
        self._processes[index] = process
        for stream in process.streams:
            self._selector.register(stream, selectors.EVENT_READ, lambda stream=stream: self._read(index, stream))

    # --- events --------------------------------------------------------------------------------------------------

    def _signalled(self, signals: socket.socket) -> None:
        numbers = signals.recv(READ_BYTES)
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                if not self._supervisor.stopping:
                    notify(self._report, "STOPPING=1")
                self._supervisor.stop(_now_ms())

    def _read(self, index: int, stream: int) -> None:
        """Take all that a child has sent; forget a stream that has ended."""
        process = self._processes[index]
        lines, ended = process.read(stream)
        if ended:
            self._selector.unregister(stream)
            process.close(stream)
        if stream == process.report:
            for message in messages_of(lines):
                if message is None:
                    self._supervisor.beat(index, _now_ms())
                else:
                    self._supervisor.ready(index, message, _now_ms())
        else:
            for line in lines:
                process.last_line = line
                self._forward(self._programs[index].name, line)

    def _forward(self, name: str, line: bytes) -> None:
        with suppress(OSError):  # stderr was closed; the brokers serve on
            sys.stderr.buffer.write(forwarded(name, line, as_json=self._json_log))
            sys.stderr.buffer.flush()

    def _exited(self, index: int, process: "_Process") -> None:
        for stream in tuple(process.streams):
            self._read(index, stream)
        for stream in tuple(process.streams):  # a program that the child started may hold it open
            self._selector.unregister(stream)
        process.close_all()
        wake_all(self._cluster_dir)  # the kernel has released the lock of its session, and tells no other session
        self._supervisor.exited(index, process.status, _now_ms())
        self._last_lines[index] = process.last_line.decode(errors="replace")
        del self._processes[index]

    # --- what the operator sees ----------------------------------------------------------------------------------

    def _tell_ready(self) -> None:
        """Print the `ready:` line once, when all children are ready for the first time."""
        children = self._supervisor.ready_children
        if self._told_ready or children is None or self._supervisor.stopping:
            return
        self._told_ready = True
        line = ready_line(*joined(children))
        with suppress(OSError):
            print(line, flush=True)
        notify(self._report, "READY=1", f"STATUS={line}")
        if self._watchdog_s is not None:
            self._watchdog_at_s = time.monotonic()

    def _feed_watchdog(self) -> None:
        """Tell systemd that the parent runs; the parent itself watches its children."""
        now_s = time.monotonic()
        if self._watchdog_s is not None and self._watchdog_at_s and now_s >= self._watchdog_at_s:
            self._watchdog_at_s = now_s + self._watchdog_s
            notify(lambda _: None, "WATCHDOG=1")

    def _ending(self, outcome: Outcome) -> Ending:
        for order in self._supervisor.take_orders():
            if isinstance(order, Tell):
                self._report(order.line)
        if outcome.refused is not None:
            name = self._programs[outcome.refused].name
            reason = self._last_lines.get(outcome.refused, "").removeprefix("Error: ")
            return Ending(outcome.status, f"{name}: {reason}")
        unclean = ", ".join(outcome.unclean)
        return Ending(outcome.status, unclean and f"not stopped cleanly: {unclean}; the next start recovers")


class _Process:
    """A process of a child, with the parent's ends of its pipes. Raises OSError if it cannot be made."""

    def __init__(
        self, argv: Sequence[str], sockets: Mapping[str, int], cluster_dir: Path, broker_ids: Sequence[int]
    ) -> None:
        self.report, report = os.pipe()
        parent, self._life = os.pipe()
        inherited = Inherited(report, parent, dict(sockets), str(cluster_dir), broker_ids)
        environment = {name: text for name, text in os.environ.items() if name not in NOTIFIED}
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=with_inherited(environment, inherited),
                pass_fds=(report, parent, *sockets.values()),
                process_group=0,
            )
        except OSError:
            os.close(self.report)
            os.close(self._life)
            raise
        finally:
            os.close(report)
            os.close(parent)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._closing = {
            self.report: lambda: os.close(self.report),
            self._process.stdout.fileno(): self._process.stdout.close,
            self._process.stderr.fileno(): self._process.stderr.close,
        }
        self._buffers = {stream: LineBuffer() for stream in self._closing}
        self.last_line = b""
        for stream in self._closing:
            os.set_blocking(stream, False)

    @property
    def streams(self) -> Sequence[int]:
        """The open descriptors of its messages and its output."""
        return tuple(self._closing)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def status(self) -> int:
        return self._process.wait()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)  # does nothing if the process has ended

    def read(self, stream: int) -> tuple[list[bytes], bool]:
        """Return the lines of all bytes that wait, and whether the stream has ended."""
        buffer, lines = self._buffers[stream], list[bytes]()
        try:
            while data := os.read(stream, READ_BYTES):
                lines += buffer.feed(data)
        except BlockingIOError:
            return lines, False
        return lines + buffer.end(), True

    def close(self, stream: int) -> None:
        self._closing.pop(stream)()

    def close_all(self) -> None:
        for stream in self.streams:
            self.close(stream)
        os.close(self._life)


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket that children can inherit; port 0 takes a free one. Raise OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    shared = socket.socket(family, socket.SOCK_STREAM)
    try:
        shared.setblocking(False)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.bind((host, port))
        shared.listen(LISTEN_BACKLOG)
    except OSError:
        shared.close()
        raise
    return shared


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket that receives the number of each signal, and handle the signals in no other way meanwhile."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
