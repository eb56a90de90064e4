"""Which dead letters were sent back already: kept beside the letters, in the compacted topic <letters>.handled.

    key     the partition of the dead-letter topic
    value   {"v": 1, "topic_id", "offset", "done": [[first, end], ...], "seen"}

All letters below `offset`, and those in the ranges, are handled. So a listing begins at `offset`, and does not read the
whole topic each time. Marks of a dead-letter topic that was deleted and created again do not count: its id is another.

Two commands may mark letters of one partition at once. So a command that has written a record reads what others wrote
since it last looked, and writes again with their marks. `seen` is the offset up to which it had looked: a reader joins
the marks of a record with those of an earlier one that its writer had not seen. So no marks are lost, also if a command
is killed between the two writes.
"""

import json
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from broker.record.records import BatchRecord, encode_batch
from flakelog.operations.dead_letters import Letter
from flakelog.operations.errors import NotPossible
from partition_manager.progress import Progress, SettledRanges

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.records import Record as ReadRecord

SUFFIX = ".handled"
VERSION = 1
RANGES_MAX = 10_000  # of a partition: 250 KB in one record, a quarter of what a topic takes


class TooManyMarks(NotPossible):
    """The letters to mark lie too far apart."""


class _Marked(NamedTuple):
    """A record of the topic of marks. Its writer had seen all records below `seen`."""

    partition: int
    offset: int
    seen: int
    marks: Progress


class HandledLetters:
    """The marks of the dead-letter topic `letters`, as they were when this was made."""

    def __init__(self, client: "Client", letters: str) -> None:
        """Read the marks. Raise BrokerError if there is no such dead-letter topic."""
        self._client = client
        self._topic = letters + SUFFIX
        self._topic_id = str(client.topic(letters).id or "")
        self._exists = any(topic.name == self._topic for topic in client.topics())
        self._ranges: dict[int, SettledRanges] = {}
        self._seen = 0
        """The offset in the topic of marks up to which this has read, or written itself."""
        if self._exists:
            self._read()

    def start(self, partition: int) -> int:
        """Return the first offset that is not handled."""
        ranges = self._ranges.get(partition)
        return 0 if ranges is None else ranges.watermark

    def has(self, letter: Letter) -> bool:
        """Return True if the letter is marked."""
        ranges = self._ranges.get(letter.partition)
        return ranges is not None and ranges.end_of(letter.offset) is not None

    def check(self, letters: Iterable[Letter]) -> None:
        """Raise TooManyMarks if these letters, marked too, would be more than RANGES_MAX ranges of a partition."""
        added: dict[int, int] = {}
        for letter in letters:
            added[letter.partition] = added.get(letter.partition, 0) + 1
        for partition, number in added.items():
            ranges = self._ranges.get(partition)
            if number + (0 if ranges is None else len(ranges)) > RANGES_MAX:
                ways = "send fewer at once, or drop the oldest ones"
                raise TooManyMarks(f"partition {partition} would have more than {RANGES_MAX:,} marks: {ways}")

    def mark(self, letters: Iterable[Letter]) -> None:
        """Mark letters as handled, with the offsets before them that hold no letter."""
        partitions = set()
        for letter in letters:
            ranges = self._ranges.setdefault(letter.partition, SettledRanges(Progress(0)))
            ranges.add(letter.begin, letter.offset + 1)
            partitions.add(letter.partition)
        if not self._exists:
            self._create()
        while partitions:  # each repetition means that another command has marked letters of them meanwhile
            partitions &= self._write(sorted(partitions))

    # --- internals

    def _write(self, partitions: list[int]) -> set[int]:
        """Write the marks of these partitions; return the partitions that others have written since the last look."""
        records = [BatchRecord(at, 0, b"%d" % number, self._value(number)) for at, number in enumerate(partitions)]
        batch = encode_batch(records, base_timestamp_ms=time.time_ns() // 1_000_000)
        offset = self._client.produce(self._topic, 0, batch).base_offset
        others = set()
        for record in self._records(offset):
            self._join(record)
            others.add(record.partition)
        self._seen = offset + len(records)
        return others

    def _value(self, partition: int) -> bytes:
        offset, done = self._ranges[partition].progress
        fields = {"v": VERSION, "topic_id": self._topic_id, "offset": offset, "done": done, "seen": self._seen}
        return json.dumps(fields).encode()

    def _create(self) -> None:
        from broker.client.errors import BrokerError
        from broker.wire.errors import ErrorCode

        try:
            self._client.create_topic(self._topic, 1, {"cleanup.policy": "compact"})
        except BrokerError as raced:
            if raced.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._exists = True

    def _read(self) -> None:
        """Read all marks."""
        from broker.client.core import EARLIEST, LATEST

        self._seen, end = (self._client.find_offset(self._topic, 0, where) for where in (EARLIEST, LATEST))
        offsets: dict[int, int] = {}
        for record in self._records(end):
            if offsets.get(record.partition, -1) < record.seen:
                self._ranges[record.partition] = SettledRanges(record.marks)
            else:
                self._join(record)
            offsets[record.partition] = record.offset

    def _records(self, end: int) -> "Iterator[_Marked]":
        """Yield the records up to `end` that were not seen yet."""
        while self._seen < end:
            records, following = self._client.fetch(self._topic, 0, self._seen)
            for record in records:
                marked = self._marked(record)
                if marked is not None and record.offset < end:
                    yield marked
            self._seen = min(following, end) if following > self._seen else end

    def _join(self, other: "_Marked") -> None:
        """Add the marks of another command."""
        ranges = self._ranges.setdefault(other.partition, SettledRanges(Progress(0)))
        for first, end in ((0, other.marks.offset), *other.marks.done):
            if first < end:
                ranges.add(first, end)

    def _marked(self, record: "ReadRecord") -> "_Marked | None":
        """Return what a record says; None if it is of a deleted topic, or was written by another program."""
        try:
            fields = json.loads(record.value or b"")
            if fields["v"] != VERSION or fields["topic_id"] != self._topic_id:
                return None
            done = tuple((int(first), int(end)) for first, end in fields["done"])
            # Earlier versions of this program wrote no "seen"; each of their records replaces the one before it.
            seen = int(fields.get("seen", record.offset))
            return _Marked(int(record.key or b""), record.offset, seen, Progress(int(fields["offset"]), done).check())
        except (KeyError, TypeError, ValueError):
            return None
