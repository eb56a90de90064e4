"""Which dead letters were sent back already: kept beside the letters, in the compacted topic <letters>.handled.

    key     the partition of the dead-letter topic
    value   {"v": 1, "topic_id", "offset", "done": [[first, end], ...]}

All letters below `offset`, and those in the ranges, are handled. So a listing begins at `offset`, and does not read the
whole topic each time. Marks of a dead-letter topic that was deleted and created again do not count: its id is another.
Two commands that mark letters of one partition at once may lose the marks of one of them.
"""

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.record.records import Record, encode_batch
from flakelog.dead_letters import Letter
from partition_manager.progress import Progress, SettledRanges

if TYPE_CHECKING:
    from broker.client.blocking import BlockingClient

SUFFIX = ".handled"
VERSION = 1
RANGES_MAX = 10_000  # of a partition: 250 KB in one record, a quarter of what a topic takes


class TooManyMarks(Exception):
    """The letters to mark lie too far apart."""


class HandledLetters:
    """The marks of the dead-letter topic `letters`, as they were when this was made."""

    def __init__(self, client: "BlockingClient", letters: str) -> None:
        """Read the marks. Raise BrokerError if there is no such dead-letter topic."""
        self._client = client
        self._topic = letters + SUFFIX
        self._topic_id = str(client.topic(letters).id or "")
        self._exists = any(each.name == self._topic for each in client.topics())
        self._ranges: dict[int, SettledRanges] = self._read() if self._exists else {}

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
        records = [Record(at, 0, b"%d" % number, self._value(number)) for at, number in enumerate(sorted(partitions))]
        self._client.produce(self._topic, 0, encode_batch(records, base_timestamp_ms=time.time_ns() // 1_000_000))

    # --- internals

    def _value(self, partition: int) -> bytes:
        offset, done = self._ranges[partition].progress
        return json.dumps({"v": VERSION, "topic_id": self._topic_id, "offset": offset, "done": done}).encode()

    def _create(self) -> None:
        from broker.client.errors import BrokerError
        from broker.wire.errors import ErrorCode

        try:
            self._client.create_topic(self._topic, 1, {"cleanup.policy": "compact"})
        except BrokerError as raced:
            if raced.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        self._exists = True

    def _read(self) -> dict[int, SettledRanges]:
        from broker.client.core import EARLIEST, LATEST

        found: dict[int, SettledRanges] = {}
        offset, end = (self._client.find_offset(self._topic, 0, where) for where in (EARLIEST, LATEST))
        while offset < end:
            records, following = self._client.fetch(self._topic, 0, offset)
            for record in records:
                progress = self._progress(record.value)
                if record.key is not None and record.key.isdigit() and progress is not None:
                    found[int(record.key)] = SettledRanges(progress)
            if following == offset:
                break
            offset = following
        return found

    def _progress(self, value: bytes | None) -> Progress | None:
        """Return the progress in a record; None if it is of a deleted topic, or was written by another program."""
        try:
            told = json.loads(value or b"")
            if told["v"] != VERSION or told["topic_id"] != self._topic_id:
                return None
            return Progress(int(told["offset"]), tuple((int(first), int(end)) for first, end in told["done"])).check()
        except (KeyError, TypeError, ValueError):
            return None
