"""The log of a run: which reports become lines at once, and which are counted and summed up.

A bolt that fails on each message would otherwise write a traceback for each. An error is shown at once when its
component has had none of its exception type in the last REPEAT_MS; repetitions are counted, and summed up in one line
when REPEAT_MS have passed. Other reports of one kind are shown up to BURST_MAX times in that time.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spout.api import Report

REPEAT_MS = 60_000  # an outage then writes 1,440 lines a day for each kind of error
BURST_MAX = 10  # info and warnings of one kind within REPEAT_MS: enough for the partitions of a small topic
KINDS_MAX = 1_000  # kinds remembered; the reports of further kinds are all shown
MESSAGES_SHOWN_MAX = 3  # messages that a line names; a batch has hundreds

INFO, WARN, ERROR = "info", "warn", "error"


class Line(NamedTuple):
    """A line for the log. `facts` are its values for programs, which JSON shows."""

    level: str
    text: str
    traceback: str = ""
    facts: Mapping[str, object] = {}


class _Kind:
    """The reports of one kind since `since_ms`: how many were shown, how many were not, and the latest of these."""

    __slots__ = ("since_ms", "shown", "hidden", "latest")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.shown = 0
        self.hidden = 0
        self.latest: Report | None = None


class RunLog:
    """The reports of one run."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], _Kind] = {}

    def line(self, report: Report, now_ms: int) -> Line | None:
        """Return the line to write at once, or None if the report is only counted."""
        key = _key(report)
        kind = self._kinds.get(key)
        if kind is None or (not kind.hidden and kind.since_ms + REPEAT_MS <= now_ms):
            self._kinds.pop(key, None)
            kind = _Kind(now_ms)
            if len(self._kinds) < KINDS_MAX:
                self._kinds[key] = kind
        if kind.shown >= (1 if report.level == ERROR else BURST_MAX):
            kind.hidden += 1
            kind.latest = report
            return None
        kind.shown += 1
        return Line(report.level, text_of(report), report.traceback, facts_of(report))

    def due(self, now_ms: int) -> list[Line]:
        """Return the summaries that are due, and forget kinds that were not reported again."""
        return self._sum_up([key for key, kind in self._kinds.items() if kind.since_ms + REPEAT_MS <= now_ms], now_ms)

    def end(self, now_ms: int) -> list[Line]:
        """Return all outstanding summaries."""
        return self._sum_up(list(self._kinds), now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when the next summary is due, or None if none is outstanding."""
        return min((kind.since_ms + REPEAT_MS for kind in self._kinds.values() if kind.hidden), default=None)

    def _sum_up(self, keys: list[tuple[str, str, str]], now_ms: int) -> list[Line]:
        lines = []
        for key in keys:
            kind = self._kinds.pop(key)
            if kind.latest is None:
                continue
            seconds = max(1, round((now_ms - kind.since_ms) / 1000))
            text = f"{_times(kind.hidden)} more in the last {seconds} s; the latest: {text_of(kind.latest)}"
            lines.append(Line(kind.latest.level, text, facts=facts_of(kind.latest) | {"repeated": kind.hidden}))
            # The kind stays known, so that an error that goes on is summed up again, and not shown in full each minute.
            self._kinds[key] = again = _Kind(now_ms)
            again.shown = BURST_MAX
        return lines


def text_of(report: Report) -> str:
    """Return the report as text: its task, the messages it is about, and what happened."""
    messages = list(report.messages)
    named = ", ".join(map(_described, messages[:MESSAGES_SHOWN_MAX]))
    if len(messages) > MESSAGES_SHOWN_MAX:
        named += f" and {len(messages) - MESSAGES_SHOWN_MAX} more messages"
    return f"{report.task}: {report.text}" + (f"; {named}" if named else "")


def facts_of(report: Report) -> dict[str, object]:
    """Return the report's values for programs, which JSON can hold."""
    facts: dict[str, object] = {"component": report.component, "task": report.index}
    if report.error is not None:
        facts["error"] = type(report.error).__name__
    if report.messages:
        facts["messages"] = _plain(report.messages)
    return facts


def _key(report: Report) -> tuple[str, str, str]:
    """Return what reports have in common whose repetitions are counted together."""
    if report.error is not None:
        return report.component, report.level, type(report.error).__name__
    return report.component, report.level, re.sub(r"\d+", "0", report.text.partition(":")[0])


def _described(details: Mapping[str, object]) -> str:
    """Return a message's details as text: lines-3 offset 41 (id 7, attempt 2)."""
    others = dict(details)
    position = ""
    if "topic" in others and "partition" in others and "offset" in others:
        position = f"{others.pop('topic')}-{others.pop('partition')} offset {others.pop('offset')}"
    more = ", ".join(f"{name} {value}" for name, value in others.items() if value is not None)
    return f"{position} ({more})" if position and more else position or more


def _plain(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    kinds = (str, int, float, type(None))
    return [{k: v if isinstance(v, kinds) else repr(v) for k, v in details.items()} for details in messages]


def _times(number: int) -> str:
    return f"{number:,} time{'' if number == 1 else 's'}"
