"""The common part of both kinds of tasks: commands for Storm, lines for its log, and the row of a tuple.

Storm takes the answers of a spout only while it waits for one, so that lines for its log wait for the next command.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Protocol

from spout.api import Report, Stream, Tuple
from spout.collector import Engine, undeclared
from spout.multilang.config import StormConfig
from spout.multilang.frames import SYNC
from spout.multilang.values import NoStormValue, grouping_json_of, json_of
from spout.run_log import Line, RunLog
from spout.task import StreamOutlet, Task
from spout.work import Interruption

DIRECT_OFFSET = 1 << 32
"""Added to the task of a direct emit: Storm 2.8 takes the task only as a Long, and keeps its low 32 bits as the number.
https://github.com/apache/storm/blob/v2.8.8/storm-client/src/jvm/org/apache/storm/multilang/JsonSerializer.java
"""

INFO, WARN, ERROR = 2, 3, 4  # Storm's numbers of log levels
LEVELS: Mapping[str, int] = {"info": INFO, "warn": WARN, "error": ERROR}

REPORTED_MESSAGES_MAX = 10  # messages named in the report of a failure: a batch may have thousands
SUMMARY_MS = 1_000  # how often summaries of repeated reports are looked for
LINE_CHARACTERS_MAX = 8_192  # of a line for the log; Storm's log files are for people

_SYNC = SYNC.decode()
_END = "\nend\n"


class PipeClosed(Interruption):
    """Storm has closed the pipe, or ends the process. It passes through handlers of a user's exceptions."""


class Pipe(Protocol):
    """The shell's port for an emit that waits for Storm's answer."""

    def exchange(self, data: bytes) -> list[Any]:
        """Write the data, wait for messages from Storm, and return them. Raise PipeClosed."""


class WireOutlet(StreamOutlet):
    """The outlet of a task for one stream, with the frames' constant part. `grouped` are fields that bolts group by."""

    def __init__(self, name: str, stream: Stream, directly: Mapping[int, Any], grouped: Sequence[str]) -> None:
        super().__init__(name, stream, directly)
        self.width = len(stream.fields)
        self.grouped = frozenset(self.fields.index[field] for field in grouped)
        self.stream_part = "" if name == "default" else f',"stream":{encode_basestring(name)}'


class Wire(Engine):
    """The output of one task."""

    what_stops = "the process of this task ends"
    when_again = "after its timeout, once Storm has started the task again"

    def __init__(
        self,
        component: str,
        outlets: Mapping[str, WireOutlet],
        config: StormConfig,
        pipe: Pipe,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(self._on_error, wake)
        self.component = component
        self.config = config
        self.pipe = pipe
        self.outlets = outlets
        self._out: list[str] = []
        self._log = RunLog()
        self._lines: deque[str] = deque()  # commands that wait for `take_lines`
        self._dropped = 0
        self._summary_at_ms = 0
        self.waiting: deque[Any] = deque()  # messages that came while an emit waited for its task ids

    # --- commands

    def write(self, text: str) -> None:
        """Write the JSON of a message to Storm."""
        self._out.append(text + _END)

    def sync(self) -> None:
        """Write the end of the answers to a command, or of an answer to a heartbeat."""
        self._out.append(_SYNC)

    def take(self) -> bytes:
        """Return and clear the bytes for Storm."""
        out = self._out
        if not out:
            return b""
        text = "".join(out)
        out.clear()
        return text.encode(errors="replace")

    def take_lines(self) -> None:
        """Write the lines for Storm's log, because Storm reads now; first the summaries that are due."""
        if self.now_ms >= self._summary_at_ms:
            self._summary_at_ms = self.now_ms + SUMMARY_MS
            for due in self._log.due(self.now_ms):
                self._show(due)
        while self._lines:
            self.write(self._lines.popleft())
        if self._dropped:
            self.write(_log_command(f"{self._dropped} lines were dropped (flakelog.storm.log.lines.max)", WARN))
            self._dropped = 0

    def left_lines(self) -> list[str]:
        """Return and clear the lines that Storm has not taken."""
        lines = [json.loads(line)["msg"] for line in self._lines]
        self._lines.clear()
        return lines

    def metric(self, name: str, value: float) -> None:
        """Write the growth of a counter, or the value of a gauge, that is registered in Storm."""
        self.write(f'{{"command":"metrics","name":{json_of_text(name)},"params":{value!r}}}')

    # --- tuples

    def outlet(self, task: Task, stream: str) -> WireOutlet:
        """Return the task's outlet for `stream`. Raise ValueError if the component has not declared the stream."""
        outlet = self.outlets.get(stream)
        if outlet is None:
            raise undeclared(task, stream, self.outlets)
        return outlet

    def row(self, outlet: WireOutlet, values: Sequence[Any]) -> tuple[str, list[tuple[int, Any]]]:
        """Return the values as JSON, each with a comma after it, and those by place that Storm has in another type.

        Raise NoStormValue or ValueError, naming the component, the stream and the field.
        """
        originals: list[tuple[int, Any]] = []
        texts: list[str] = []
        grouped = outlet.grouped
        try:
            for value in values:
                text = json_of(value)
                if grouped and value.__class__ is not str and len(texts) in grouped:
                    same = grouping_json_of(value)
                    if same != text:
                        originals.append((len(texts), value))
                        text = same
                texts.append(text)
        except (NoStormValue, ValueError) as error:
            field = outlet.fields.names[len(texts)]
            subject = f"{self.component} emits to stream {outlet.name!r} a field {field!r}"
            kind = NoStormValue if isinstance(error, NoStormValue) else ValueError
            raise kind(f"{subject} that Storm does not take: {error}") from None
        texts.append("")
        row = ",".join(texts)
        if len(row) > self.config.storm_frame_max_bytes:
            limit = f"flakelog.storm.frame.max.bytes allows {self.config.storm_frame_max_bytes}"
            raise ValueError(f"{self.component} emits {len(row)} characters to stream {outlet.name!r}; {limit}")
        return row, originals

    def task_ids(self, urgent: Callable[[Any], bool] = lambda message: False) -> list[int]:
        """Wait for the tasks that received the tuple just written, and return them.

        Other messages wait in `waiting`, except those that `urgent` answers at once. Raise PipeClosed.
        """
        while True:
            messages = self.pipe.exchange(self.take())
            for index, message in enumerate(messages):
                if isinstance(message, list):
                    self.waiting.extend(messages[index + 1 :])
                    return message
                if not urgent(message):
                    self.waiting.append(message)

    # --- the log

    def say(self, text: str, level: int) -> None:
        """Give a line to Storm's log. Past the limit on waiting lines, count it only."""
        self._command(_log_command(text, level))

    def report_line(self, report: Report) -> None:
        """Give a report to Storm's log, or count it if it repeats. An error becomes one of Storm's, with traceback."""
        line = self._log.line(report, self.now_ms)
        if line is not None:
            self._show(line)

    def show_rest(self) -> None:
        """Give all summaries of repeated reports to Storm's log, because the task ends."""
        for line in self._log.end(self.now_ms):
            self._show(line)

    def next_deadline_ms(self) -> int | None:
        """Return when the next summary is due, or None."""
        return self._log.next_deadline_ms()

    def _show(self, line: Line) -> None:
        if line.level == "error":
            more = "\n" + line.traceback.rstrip() if line.traceback else ""
            self._command(f'{{"command":"error","msg":{json_of_text(line.text + more)}}}')
        else:
            self.say(line.text, LEVELS[line.level])

    def _command(self, command: str) -> None:
        if len(self._lines) >= self.config.storm_log_lines_max:
            self._dropped += 1
        else:
            self._lines.append(command)

    def _on_error(self, task: Task, text: str, error: BaseException | None, tuples: Sequence[Tuple]) -> None:
        task.counts.errors += 1
        messages: list[Mapping[str, object]] = []
        for tup in tuples:
            if tup.link is not None and len(messages) < REPORTED_MESSAGES_MAX:
                messages += tup.link.details(REPORTED_MESSAGES_MAX - len(messages))
        self.report_line(Report("error", task.component, task.index, text, error, messages))


def json_of_text(text: str) -> str:
    """Return text as JSON, in which unpaired surrogates become question marks."""
    return encode_basestring(text.encode(errors="replace").decode())


def direct_part(task: int | None) -> str:
    """Return the part of an emit command with the task of a direct emit."""
    return "" if task is None else f',"task":{task + DIRECT_OFFSET}'


def _log_command(text: str, level: int) -> str:
    if len(text) > LINE_CHARACTERS_MAX:
        text = f"{text[:LINE_CHARACTERS_MAX]}... ({len(text)} characters)"
    return f'{{"command":"log","msg":{json_of_text(text)},"level":{level}}}'
