"""The progress of a replay or a load, as a line of a file or as a bar of a terminal."""

import io
import sys

from flakelog.commands import read_progress
from flakelog.commands.read_progress import ReadProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_says_why_nothing_is_read_until_something_is():
    progress = ReadProgress()
    progress.begin("replay", 10)
    progress.add(3, 100)
    progress.wait("no broker answers at kafka:9092")
    assert progress.how_far == "replay: 3 of at most 10 messages; waiting: no broker answers at kafka:9092"
    progress.add(2, 100)
    assert progress.how_far == "replay: 5 of at most 10 messages"
    progress.end()


def test_a_bar_says_why_nothing_is_read_also_if_nothing_was_read_yet(monkeypatch):
    """A reason may have brackets, which rich takes for markup."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(read_progress, "PATIENCE_SECONDS", 0)
    monkeypatch.setenv("COLUMNS", "200")
    progress = ReadProgress()
    progress.begin("replay", 10)
    progress.wait("t-0[3, 10): no broker answers")
    progress.end()
    assert "replay, waiting: t-0[3, 10): no broker answers" in terminal.getvalue()
