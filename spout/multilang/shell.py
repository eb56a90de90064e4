"""SHELL (descriptors, the reactor, signals, the clock): one task's process, between Storm's pipes and the reactor.

Twisted's reactor runs in the main thread, and calls all methods of the spout or bolt. It reads Storm's pipe. While
Storm sends one command after another, the process waits for the next one at the pipe itself for a few milliseconds,
and returns to the reactor at least every five: a turn of the reactor takes as long as a command.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from spout.error_text import error_text, traceback_of
from spout.multilang.config import StormConfig
from spout.multilang.frames import FrameDecoder, frame
from spout.multilang.handshake import BadHandshake, Handshake, handshake_of
from spout.multilang.output import WARN, CapturedOutput
from spout.multilang.starting import Starting
from spout.multilang.wire import PipeClosed
from spout.process_end import EXIT_SECONDS, exit_within_seconds
from spout.work import EXITS, Interruption, exit_code

READ_BYTES = 65_536
SLICE_NS = 5_000_000  # longest time away from the reactor, plus one call of the user's code
STICKY_MS = 4  # how long to wait for Storm's next command outside the reactor


class Connection:
    """The pipes to Storm: a spout.multilang.wire.Pipe. A write blocks until Storm has taken it.

    `is_waiting` is True while a write or an exchange may block.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.is_waiting = False
        self._writer = writer
        self._writing = threading.Lock()  # a thread writes too while the process starts
        self._decoder = FrameDecoder(StormConfig().storm_frame_max_bytes)

    def limit(self, frame_bytes: int) -> None:
        """Set the limit on frames, before the first one after the handshake is read."""
        self._decoder.limit = frame_bytes

    def read(self) -> list[Any]:
        """Wait for bytes, and return the messages that they complete. Raise PipeClosed or BadFrame."""
        try:
            data = os.read(self.reader, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            raise PipeClosed
        return self._decoder.receive(data)

    def write(self, data: bytes) -> None:
        """Write all of the data. Raise PipeClosed."""
        self.is_waiting = True
        try:
            self.write_in_thread(data)
        finally:
            self.is_waiting = False

    def write_in_thread(self, data: bytes) -> None:
        """Write all of the data, in any thread. Raise PipeClosed."""
        try:
            with self._writing:
                sent = os.write(self._writer, data)
                while sent < len(data):
                    data = data[sent:]
                    sent = os.write(self._writer, data)
        except OSError:
            raise PipeClosed from None

    def exchange(self, data: bytes) -> list[Any]:
        self.write(data)
        self.is_waiting = True
        try:
            return self.read()
        finally:
            self.is_waiting = False


def run(name: str, component: str, output: CapturedOutput) -> int:
    """Run the task that Storm started this process for, until Storm or the user's code ends it.

    Return the exit code.
    """
    connection = Connection(output.storm_in, output.storm_out)
    try:
        handshake, messages = _shake_hands(connection)
    except PipeClosed:
        return 0
    except (BadHandshake, ValueError) as error:
        output.say(f"{error}\n")
        return 1
    try:
        if handshake.component != component:
            text = f"this process has component {component!r}, and Storm started it as that of {handshake.component!r}"
            raise BadHandshake(text)
        starting = Starting(connection.write_in_thread, handshake)
        return Process(name, handshake, connection, output, starting.end).run(messages)
    except Interruption:
        raise
    except BaseException as error:
        tell_failure(connection, output, f"{component}[{handshake.index}]", error)
        return exit_code(error)


def tell_failure(connection: Connection, output: CapturedOutput, task: str, error: BaseException) -> None:
    """Tell Storm, and standard error, that the process ends with this exception."""
    text = f"{task}: {error_text(error)}\n{traceback_of(error).rstrip()}"
    output.say(f"{text}\n")
    try:
        connection.write(frame({"command": "error", "msg": text}))
    except PipeClosed:
        pass  # standard error has it


def _shake_hands(connection: Connection) -> tuple[Handshake, list[Any]]:
    messages: list[Any] = []
    while not messages:
        messages = connection.read()
    handshake = handshake_of(messages[0])
    Path(handshake.pid_dir, str(os.getpid())).touch()
    connection.write(frame({"pid": os.getpid()}))
    return handshake, messages[1:]


class Process:
    """The process of one task: a reader of the reactor. `started` is called when its spout or bolt is open."""

    def __init__(
        self,
        name: str,
        handshake: Handshake,
        connection: Connection,
        output: CapturedOutput,
        started: Callable[[], None],
    ) -> None:
        from spout.multilang.world import prepared

        self._handshake = handshake
        self._connection = connection
        self._output = output
        self._started = started
        self._config = handshake.config(StormConfig)
        connection.limit(self._config.storm_frame_max_bytes)
        run_id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:12]}"  # see offset_document.process_of
        prepared_ = prepared(name, handshake, self._config, run_id, connection, self._wake)
        self._task, self._figures, reactor = prepared_
        self._reactor: Any = reactor
        self._poller = select.poll()
        self._poller.register(connection.reader, select.POLLIN)
        self._timer: Any = None
        self._timer_ms = 0
        self._is_woken = self._is_reading = self._is_stopping = self._is_open = self._is_ended = False
        self._until_ms = 0
        self._error: BaseException | None = None

    def run(self, messages: list[Any]) -> int:
        """Open the spout or bolt and serve Storm, first these messages. Return the exit code.

        An exception from `open` or `prepare` is raised here.
        """
        from spout.multilang.world import observe_log

        observe_log(self._task.wire.say)
        self._output.on_lines = lambda: self._reactor.callFromThread(self._wake)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        self._reactor.callWhenRunning(partial(self._guarded, partial(self._begin, messages)))
        self._reactor.run(installSignalHandlers=False)
        if self._error is not None:
            raise self._error
        return self._code

    # --- the reactor's methods (IReadDescriptor)

    def fileno(self) -> int:
        return self._connection.reader

    def doRead(self) -> None:
        self._guarded(self._read)

    def connectionLost(self, reason: object) -> None:
        self._stop()

    def logPrefix(self) -> str:
        return "storm"

    # --- work

    def _begin(self, messages: list[Any]) -> None:
        self._task.open(_now_ms())
        self._is_open = True
        self._started()
        self._figures.start()
        if self._task.receive(messages, _now_ms()):
            self._wake()
        self._flush()
        self._follow()

    def _read(self) -> None:
        """Read and answer messages, for a limited time as long as one follows the other."""
        task, connection, clock_ns, poll = self._task, self._connection, time.monotonic_ns, self._poller.poll
        end_ns = clock_ns() + SLICE_NS
        while True:
            if task.receive(connection.read(), clock_ns() // 1_000_000):
                self._wake()
            data = task.take()
            if data:
                connection.write(data)
            if self._is_woken or not task.is_waiting_for_storm or clock_ns() > end_ns or not poll(STICKY_MS):
                break
        self._follow()

    def _turn(self) -> None:
        """Do the work that is due, and give captured output to the log."""
        self._is_woken = False
        for line in self._output.take():
            self._task.wire.say(line.text, line.level)
        if self._task.work(_now_ms()):
            self._wake()
        self._flush()
        self._follow()

    def _flush(self) -> None:
        data = self._task.take()
        if data and not self._is_stopping:
            self._connection.write(data)

    def _follow(self) -> None:
        """Start or stop reading, set the timer for the next deadline, or end."""
        if self._is_stopping:
            if (self._task.idle and self._figures.idle) or _now_ms() >= self._until_ms:
                self._end()
                return
        elif self._is_reading == (self._task.is_full or self._is_woken and not self._task.is_waiting_for_storm):
            self._is_reading = not self._is_reading
            (self._reactor.addReader if self._is_reading else self._reactor.removeReader)(self)
        self._set_timer()

    def _set_timer(self) -> None:
        at_ms = self._task.next_deadline_ms()
        if self._is_stopping:
            at_ms = self._until_ms if at_ms is None else min(at_ms, self._until_ms)
        active = self._timer is not None and self._timer.active()
        if at_ms is None or (active and self._timer_ms <= at_ms):
            return  # an alarm that comes early finds nothing to do, and sets the next one
        if active:
            self._timer.cancel()
        self._timer_ms = at_ms
        delay = max(0, at_ms - _now_ms()) / 1000
        self._timer = self._reactor.callLater(delay, partial(self._guarded, self._turn))

    def _wake(self) -> None:
        """Schedule a turn, because an answer has arrived or work is left."""
        if not self._is_woken:
            self._is_woken = True
            self._reactor.callLater(0, partial(self._guarded, self._turn))

    # --- the end

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._is_ended:
            return
        task = self._task
        try:
            try:
                work()
            except EXITS as error:
                task.wire.leave(task.task, error, ())
            if task.wire.exit is not None:
                self._leave()
        except PipeClosed:
            self._stop()
        except BaseException as error:
            self._error = error
            self._end()

    @property
    def _code(self) -> int:
        if self._error is not None:
            return 1
        return 0 if self._task.wire.exit is None else exit_code(self._task.wire.exit)

    def _leave(self) -> None:
        """Stop because the user's code asked for the end of the process, after Storm has the log's line about it."""
        if not self._is_stopping:
            self._task.wire.take_lines()
            self._flush()
            self._stop()

    def _signalled(self, number: int, frame: object) -> None:
        """Handle a stop signal: stop soon, and interrupt a wait for Storm, which may read no more."""
        self._reactor.callFromThread(self._stop)
        exit_within_seconds(128 + number, self._config.storm_stop_ms / 1000 + EXIT_SECONDS)  # also if a bolt blocks
        if self._connection.is_waiting:
            raise PipeClosed

    def _stop(self) -> None:
        """Store the progress and end, because Storm has closed the pipe or sent a signal. Later calls do nothing."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._until_ms = _now_ms() + self._config.storm_stop_ms
        if self._is_reading:
            self._reactor.removeReader(self)
        self._guarded(self._finish)

    def _finish(self) -> None:
        self._task.finish(_now_ms())
        self._figures.stop(self._wake)
        self._follow()

    def _end(self) -> None:
        self._is_ended = True
        exit_within_seconds(self._code)
        wire = self._task.wire
        self._figures.abandon()
        if self._error is None and not self._task.idle:
            wire.say("progress could not be stored: the messages it covers come again", WARN)
        try:
            if self._is_open:
                self._task.close(_now_ms())
        except BaseException as error:
            self._error = self._error or error
        wire.show_rest()
        self._tell_rest()
        if self._reactor.running:
            self._reactor.stop()

    def _tell_rest(self) -> None:
        """Give the last lines of the log to Storm if an error ends the process, and else to standard error."""
        for line in self._output.take():
            self._task.wire.say(line.text, line.level)
        if self._error is None:
            for text in self._task.wire.left_lines():
                self._output.say(f"{text}\n")
            return
        self._task.wire.take_lines()
        try:
            self._connection.write(self._task.take())
        except PipeClosed:
            pass  # Storm has ended first


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
