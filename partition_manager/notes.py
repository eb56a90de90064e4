"""Lines for the log from a core, each with a level; the driver takes them and writes them."""

from collections import deque
from typing import NamedTuple

INFO = "info"
WARN = "warn"
ERROR = "error"

NOTES_MAX = 100  # lines kept until they are taken; the oldest are dropped first
SIMILAR_MAX = 10  # lines about single messages between two summaries: a topic of bad messages must not fill a disk


class Note(NamedTuple):
    """A line for the log. `level` is INFO, WARN or ERROR."""

    level: str
    text: str


class Notes:
    """The lines since the last `take`."""

    def __init__(self) -> None:
        self._notes: deque[Note] = deque(maxlen=NOTES_MAX)
        self._similar = 0

    def add(self, note: Note) -> None:
        """Add a line that came from a port."""
        self._notes.append(note)

    def info(self, text: str) -> None:
        """Add an expected event, such as the start of reading."""
        self._notes.append(Note(INFO, text))

    def warn(self, text: str) -> None:
        """Add a problem that needs no action."""
        self._notes.append(Note(WARN, text))

    def error(self, text: str) -> None:
        """Add a problem that a person must solve."""
        self._notes.append(Note(ERROR, text))

    def message(self, text: str) -> None:
        """Add a line about one message given up, unless SIMILAR_MAX of them came since the last summary."""
        self._similar += 1
        if self._similar <= SIMILAR_MAX:
            self.warn(text)

    def summarize(self) -> None:
        """Add the number of messages that were left out since the last summary, if there are any."""
        left_out = self._similar - SIMILAR_MAX
        self._similar = 0
        if left_out > 0:
            self.warn(f"{left_out} more messages were given up; the dead-letter topic names each")

    def take(self) -> list[Note]:
        """Return and clear the lines."""
        notes = list(self._notes)
        self._notes.clear()
        return notes
