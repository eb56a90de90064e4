"""How far each log is known to be on the disk: one file for all, `checkpoint`, replaced whole.

An entry says that both the log and its ids are synced up to a position, and what the log was like there. Recovery reads
only what lies past it. Damage below it is not repaired but named. The last id stays here when a log is emptied.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from crc32c import crc32c

FILE = "checkpoint"
_VERSION = 1


class CheckpointDamaged(ValueError):
    """The checkpoint is there but cannot be read; it is never taken for an empty one."""


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in one log up to which it is synced: offsets below `offset`, in files up to these sizes."""

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
    """How many producers the snapshot at `offset` has; 0: there is no snapshot file."""
    index_bytes: int = 0
    time_index_bytes: int = 0
    txn_index_bytes: int = 0
    """What lies past these was not synced and carries no check of its own, so it is never looked at."""
    topic_id: str = ""
    """The topic's, in hexadecimal: a topic made anew under the same name has another."""
    cleaned_offset: int = 0
    """How far a compacted log is cleaned; a start that finds it too low cleans that part once more."""
    decided_offset: int = 0
    """Of transactions with records below it the markers are synced too."""


_NAMES = tuple(field.name for field in fields(LogPosition))


def encode(positions: Mapping[str, LogPosition]) -> bytes:
    """The file: a line of JSON per log, by directory name, and a last line with the CRC-32C of what is above it."""
    lines = [json.dumps({"version": _VERSION, "logs": len(positions)})]
    lines += [json.dumps({"log": name} | _as_dict(positions[name])) for name in sorted(positions)]
    body = "".join(line + "\n" for line in lines).encode()
    return body + f"{crc32c(body):08x}\n".encode()


def _as_dict(position: LogPosition) -> dict[str, int | str]:
    """As `dataclasses.asdict` has it, in a fifth of the time: there are thousands of them."""
    return {name: getattr(position, name) for name in _NAMES}


def decode(data: bytes) -> dict[str, LogPosition]:
    """The positions by directory name; CheckpointDamaged names what is wrong."""
    body, check = data[:-9], data[-9:]
    if check != f"{crc32c(body):08x}\n".encode():
        raise CheckpointDamaged(f"{FILE}: its CRC does not hold")
    try:
        first, *lines = [json.loads(line) for line in body.decode().splitlines()]
        version, number = first["version"], first["logs"]
        positions = {
            line["log"]: LogPosition(**{name: line[name] for name in _NAMES if name in line}) for line in lines
        }
    except (ValueError, LookupError, TypeError) as error:
        raise CheckpointDamaged(f"{FILE}: its CRC holds, but this program did not write it: {error!r}") from None
    if version != _VERSION or number != len(positions):
        raise CheckpointDamaged(f"{FILE}: version {version} with {number} logs; this program reads {_VERSION}")
    return positions
