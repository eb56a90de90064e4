"""The synced position of each log: one file for all logs, `checkpoint`, which is replaced whole.

An entry says that the log and its ids are synced up to a position, and describes the log at that position. Recovery
reads only the part past it. Recovery reports damage below it and does not repair it. The entry keeps the last id even
when the log is emptied.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from broker.log import json_lines
from broker.log.leader_epochs import NO_EPOCH

FILE = "checkpoint"
_VERSION = 1
REMEDY = (
    "It says how far each log is on the disk. Put it back from a copy. Without one, `flakelog check --new-checkpoint` "
    "says what a start would cut, and begins a new one"
)
UNCOUNTED = -1
"""The number of producers at a position to which a truncation has lowered the checkpoint."""


class CheckpointDamaged(ValueError):
    """The checkpoint cannot be read, or is missing beside data. Callers must not treat it as an empty one."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The position up to which one log is synced: offsets below `offset`, in files up to these sizes."""

    offset: int
    log_start_offset: int
    last_id: int
    segment: int
    """Base offset of the segment that `offset` belongs to."""
    log_bytes: int
    id_bytes: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    producers: int
    """Number of producers in the snapshot at `offset`; 0 means that no snapshot file exists.

    UNCOUNTED means that there may be producers, and no snapshot. Recovery then replays the headers of all batches.
    """
    index_bytes: int = 0
    time_index_bytes: int = 0
    txn_index_bytes: int = 0
    """Synced bytes of the three index files. Bytes past them carry no checksum, so recovery never reads them."""
    topic_id: str = ""
    """The topic's id in hexadecimal, because a topic recreated under the same name has a new id."""
    cleaned_offset: int = 0
    """Offset up to which a compacted log is cleaned. If it is too low after a start, that part is cleaned again."""
    decided_offset: int = 0
    """Every transaction with records below this offset has its marker synced too."""
    leader_epoch: int = NO_EPOCH
    """The leader epoch of the last offset below `offset`; NO_EPOCH if it is not known."""
    journal_from: int = 0
    """Number of the first journal file whose entries of this log count. Older files may have entries of a cut part.

    The file has it only for logs that were cut since the last clean stop.
    """


_NAMES = tuple(field.name for field in fields(LogPosition))
_WRITTEN = _NAMES[:-1]


def encode(positions: Mapping[str, LogPosition]) -> bytes:
    """Return the file's bytes: a line of JSON per log, sorted by name, then a line with the CRC-32C of those."""
    lines = [{"version": _VERSION, "logs": len(positions)}]
    return json_lines.encode(lines + [_as_dict(name, positions[name]) for name in sorted(positions)])


def _as_dict(log: str, position: LogPosition) -> dict[str, Any]:
    """Return the fields as `dataclasses.asdict` does, in a fifth of the time; a checkpoint has thousands of logs."""
    written: dict[str, Any] = {"log": log} | {name: getattr(position, name) for name in _WRITTEN}
    if position.journal_from:
        written["journal_from"] = position.journal_from
    return written


def decode(data: bytes) -> dict[str, LogPosition]:
    """Return the positions by directory name. Raise CheckpointDamaged with the reason if the file is damaged."""
    try:
        first, *lines = json_lines.decode(data)
        version, number = first["version"], first["logs"]
        positions = {
            line["log"]: LogPosition(**{name: line[name] for name in _NAMES if name in line}) for line in lines
        }
    except json_lines.CrcMismatch as error:
        raise CheckpointDamaged(f"{FILE}: {error}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointDamaged(f"{FILE}: its CRC holds, but this program did not write it: {error!r}") from None
    if version != _VERSION or number != len(positions):
        raise CheckpointDamaged(f"{FILE}: version {version} with {number} logs; this program reads {_VERSION}")
    return positions
