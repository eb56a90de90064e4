"""Lines for the log from a core, each with a level; the driver takes them and writes them."""

from collections import deque
from typing import NamedTuple

INFO = "info"
WARN = "warn"
ERROR = "error"

NOTES_MAX = 100  # lines kept until they are taken; the oldest are dropped first
SIMILAR_MAX = 10  # lines of one kind between two summaries: a topic of bad messages must not fill a disk

# Kinds of lines, each with its summary of the lines left out.
GIVEN_UP = "{n} more messages were given up; the dead-letter topic names each"
BEGUN = "{n} more partitions begin to be read"


class Note(NamedTuple):
    """A line for the log. `level` is INFO, WARN or ERROR."""

    level: str
    text: str


class Notes:
    """The lines since the last `take`."""

    def __init__(self) -> None:
        self.waiting: deque[Note] = deque(maxlen=NOTES_MAX)
        self._similar: dict[str, int] = {}  # lines of each kind since the last summary

    def add(self, note: Note) -> None:
        """Add a line that came from a port."""
        self.waiting.append(note)

    def info(self, text: str) -> None:
        """Add an expected event, such as the start of reading."""
        self.waiting.append(Note(INFO, text))

    def warn(self, text: str) -> None:
        """Add a problem that needs no action."""
        self.waiting.append(Note(WARN, text))

    def error(self, text: str) -> None:
        """Add a problem that a person must solve."""
        self.waiting.append(Note(ERROR, text))

    def similar(self, kind: str, note: Note) -> None:
        """Add a line of `kind`, unless SIMILAR_MAX of them came since the last summary."""
        count = self._similar[kind] = self._similar.get(kind, 0) + 1
        if count <= SIMILAR_MAX:
            self.waiting.append(note)

    def summarize(self) -> None:
        """Add the number of lines of each kind that were left out since the last summary, if there are any."""
        for kind, count in self._similar.items():
            if count > SIMILAR_MAX:
                self.waiting.append(Note(WARN if kind == GIVEN_UP else INFO, kind.format(n=count - SIMILAR_MAX)))
        self._similar.clear()

    def take(self) -> list[Note]:
        """Return and clear the lines."""
        notes = list(self.waiting)
        self.waiting.clear()
        return notes
