"""The messages of a load whose values did not decode, and the limit on them (`flakelog load --max-rejected`)."""

from collections.abc import Callable

import pyarrow as pa

from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import WrittenPart
from spark_bridge.reading.offset_range import OffsetRange

OnRejected = Callable[[pa.RecordBatch], None]
"""Called with messages that are kept apart, with the columns of value_decoder.REJECTED."""


class TooManyRejected(LoadError):
    """More messages did not decode than the user allows. The load is withdrawn, unless another run published it."""


class Rejections:
    """The rejected messages of one load, counted while its parts are written side by side: one thread to a part.

    `limit` is None if any number is allowed. Parts that a killed run has written count too.
    """

    def __init__(self, load: Load, limit: int | None) -> None:
        self._load = load
        self._limit = limit
        self._rows = dict.fromkeys(load.parts, 0)
        self.example: str | None = None
        """A sentence about one of the messages; None if all were decoded."""

    @property
    def rows(self) -> int:
        return sum(self._rows.values())

    def of(self, part: OffsetRange) -> OnRejected:
        """Return a function that counts messages of a part. It raises TooManyRejected."""

        def add(messages: pa.RecordBatch) -> None:
            offset, reason = messages.column("offset")[0], messages.column("reason")[0]
            self.example = self.example or f"{part.topic}-{part.partition} offset {offset}: {reason}"
            self._rows[part] += messages.num_rows
            self._check()

        return add

    def add_written(self, part: WrittenPart) -> None:
        """Count a part that is written already. Raise TooManyRejected."""
        self._rows[part.range] = sum(file.rows for file in part.rejected.values())
        self._check()

    def _check(self) -> None:
        if self._limit is not None and self.rows > self._limit:
            example = "" if self.example is None else f" ({self.example})"
            messages = f"{self.rows:,} message{'' if self.rows == 1 else 's'}"
            raise TooManyRejected(
                f"{messages} of load {self._load.number} did not decode{example}, more than --max-rejected "
                f"{self._limit} allows. The load is withdrawn and nothing of it was published; the next run takes its "
                "messages again. Give a schema that fits, or a higher --max-rejected, which keeps them apart"
            )
