"""The start of a stream's next batch in a partition, and data loss.

Like the connector, a stream reports as data loss: a partition that is gone, a log that ends before the stream's
position, a log that starts after it (retention removed unread offsets), and a new partition that does not start at 0.
"""

from collections.abc import Iterator
from typing import NamedTuple

from spark_bridge.selection.stream_offsets import Positions, flattened, position


class Loss(NamedTuple):
    """Data loss: the reason, and how many offsets are known to be lost."""

    reason: str
    offsets: int


def begin_of(name: str, next_offset: int | None, first: int, last: int) -> tuple[int, Loss | None]:
    """Return the next offset to read of the partition `name`, and the loss before it if there is one.

    `next_offset` is the stream's position, None for a new partition. The partition has the offsets `first` to `last`,
    exclusive. After a loss the stream begins at the nearest offset that exists.
    """
    if next_offset is None:
        begin = min(first, last)
        if not begin:
            return begin, None
        return begin, Loss(f"{name} is new to the stream and starts at offset {begin}, not at 0", begin)
    if last < next_offset:
        return last, Loss(f"{name} ends at offset {last}, but the stream has read it to {next_offset}", 0)
    if first > next_offset:
        begin = min(first, last)
        missing = begin - next_offset
        if not missing:
            return next_offset, None
        return begin, Loss(f"{name} has lost the unread offsets {next_offset} to {begin - 1} ({missing})", missing)
    return next_offset, None


def gone(before: Positions, latest: Positions) -> Iterator[Loss]:
    """Yield the loss of each partition that the stream has read and that no longer exists."""
    for topic, partition, offset in flattened(before):
        if position(latest, topic, partition) is None:
            yield Loss(f"{topic}-{partition} is gone; the stream has read it to offset {offset}", 0)
