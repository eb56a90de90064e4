"""Dead letters of a topic: the newest that were not sent back."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.client.blocking import Client
from flakelog.console.messages import Limits, PartitionBounds, read_partition_records, size_of
from flakelog.console.text import Shown, shown
from flakelog.console.visit import PageTimeout
from flakelog.operations.dead_letters import PREFIX, Letter, letter_of
from flakelog.operations.handled_letters import HandledLetters
from flakelog.visible_text import visible

ERROR_CHARACTERS = 2_000
WINDOWS_MAX = 50  # how many windows of offsets a search for letters reads in a partition
WINDOW_MAX = 2_000  # offsets of a window


class LetterRow(NamedTuple):
    """A dead letter. `unsendable` says why it cannot be sent again, empty if it can."""

    place: str
    partition: int
    offset: int
    reason: str
    error: str
    attempts: int
    source: str
    id: int | None
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: Sequence[str]
    unsendable: str


class LettersPage(NamedTuple):
    """The newest letters of a dead-letter topic; `older` counts offsets before them that were not read.

    `is_other` says that its newest messages are no letters, `is_late` that the page's time was over before they were
    all read.
    """

    topic: str
    rows: Sequence[LetterRow]
    older: int
    is_other: bool = False
    is_late: bool = False


class _Newest(NamedTuple):
    """Letters of a partition, the offset that they were searched from, and flags as those of LettersPage."""

    letters: Sequence[Letter]
    start: int
    is_other: bool = False
    is_late: bool = False


def read_letters(client: Client, topic: str, spans: Mapping[int, PartitionBounds], limits: Limits) -> LettersPage:
    """Return the newest letters that were not sent back. Raise ClientError or WireError."""
    marks = HandledLetters(client, topic)
    count = max(limits.records // max(len(spans), 1), 1)
    budget = max(limits.bytes // max(len(spans), 1), 1)
    letters: list[Letter] = []
    older = 0
    is_other = is_late = False
    for number, span in spans.items():
        first = max(marks.start(number), span.start)
        if is_late:
            older += max(span.end - first, 0)
            continue
        newest = _newest(client, topic, number, PartitionBounds(first, span.end), marks, Limits(count, budget))
        letters += newest.letters
        older += newest.start - first
        is_other, is_late = is_other or newest.is_other, newest.is_late
    letters.sort(key=lambda letter: (letter.timestamp_ms, letter.partition, letter.offset), reverse=True)
    rows = [row_of(letter) for letter in letters[: limits.records]]
    return LettersPage(topic, rows, older, is_other and not rows, is_late)


def _newest(
    client: Client, topic: str, partition: int, span: PartitionBounds, marks: HandledLetters, limits: Limits
) -> _Newest:
    """Return a partition's letters from an offset on that were not sent back, and that offset.

    Search from the end backwards, in windows that become larger while all letters in them were sent back, and smaller
    while their letters do not fit into the limits. The search ends at once if the newest messages are no letters. If
    the page's time is over, return the letters that were read by then.
    """
    letters_read: list[Letter] = []
    at, window, budget = max(span.end, span.start), limits.records, limits.bytes
    for _ in range(WINDOWS_MAX):
        if at <= span.start or budget <= 0 or len(letters_read) >= limits.records:
            break
        start = max(at - window, span.start)
        try:
            records, after = read_partition_records(client, topic, partition, start, budget, at)
        except PageTimeout:
            return _Newest(letters_read, at, is_late=True)
        if after < at and window > 1:
            window = max(min(len(records), window // 2), 1)
            continue
        in_window = [letter for record in records if (letter := letter_of(partition, record))]
        if records and not in_window and at == span.end:
            return _Newest(letters_read, start, is_other=True)
        letters = [letter for letter in in_window if not marks.has(letter)]
        room = limits.records - len(letters_read)
        at = start if len(letters) <= room else letters[-room].offset
        letters_read += letters[-room:]
        budget -= sum(size_of(kept_letter.record) for kept_letter in letters)
        if not letters:
            window = min(window * 2, WINDOW_MAX)
    return _Newest(letters_read, at)


def row_of(letter: Letter) -> LetterRow:
    """Return a letter as a page shows it."""
    own = [visible(name[:100]) for name, _ in letter.record.headers if not name.startswith(PREFIX)]
    return LetterRow(
        letter.place,
        letter.partition,
        letter.offset,
        visible(letter.reason[:100]),
        visible(letter.error[:ERROR_CHARACTERS]),
        letter.attempts,
        f"{letter.source}-{letter.source_partition}, offset {letter.source_offset}",
        letter.id,
        letter.timestamp_ms,
        shown(letter.record.key),
        shown(letter.record.value),
        own,
        letter.unsendable or "",
    )
