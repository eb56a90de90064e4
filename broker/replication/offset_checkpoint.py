"""The high watermarks of a broker's logs, in Kafka's `replication-offset-checkpoint` text format.

    0                 version of the file
    2                 number of entries
    flights 0 1250    topic, partition, offset
    flights 1 77

The file is replaced whole each `replica.high.watermark.checkpoint.interval.ms`, and at a stop. An old offset in it is
safe: records below it are on every replica in sync. So the file needs no CRC, and a start without it takes the start
of each log, until a leader says more (rule R4).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from broker.log.partition_log import PartitionLog

FILE = "replication-offset-checkpoint"
_VERSION = 0


class OffsetCheckpointDamaged(ValueError):
    """The file exists and cannot be read. The message says what to do."""


def encode(logs: Iterable[PartitionLog], unopened: Mapping[tuple[str, int], int] = MappingProxyType({})) -> bytes:
    """Return the file's bytes, with the present high watermark of each log, and with those of logs that are not open.
    """
    offsets = {**unopened, **{(log.topic, log.partition): log.high_watermark for log in logs}}
    entries = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    lines = [str(_VERSION), str(len(offsets)), *entries]
    return "".join(line + "\n" for line in lines).encode()


def decode(data: bytes) -> dict[tuple[str, int], int]:
    """Return the offsets by topic and partition. Raise OffsetCheckpointDamaged."""
    try:
        version, number, *lines = data.decode("ascii").splitlines()
        entries = [line.split(" ") for line in lines]
        offsets = {(topic, _number(partition)): _number(offset) for topic, partition, offset in entries}
        if _number(version) != _VERSION or not _number(number) == len(entries) == len(offsets):
            raise ValueError(f"version {version} with {number} entries; it has {len(offsets)}, and the version is 0")
    except ValueError as error:
        raise OffsetCheckpointDamaged(
            f"{FILE} is damaged: {error}. It is written anew, and the leaders tell how far the logs are replicated"
        ) from None
    return offsets


def _number(text: str) -> int:
    """Return a number as Kafka writes it. Raise ValueError for what else int() takes, a sign for example."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no number")
    return int(text)


def restore(log: PartitionLog, offsets: Mapping[tuple[str, int], int]) -> None:
    """Give a log that was just opened its high watermark: at most its end, and at least its start.

    Without an entry that is its start. A log whose only copy this is gets its end back when it is led.
    """
    offset = offsets.get((log.topic, log.partition), log.log_start_offset)
    log.move_replicated_to(min(offset, log.log_end_offset))
