"""The format of the journal's files: a header, then rounds of records.

    0       8           12      16
    +-------+-----------+-------+
    | magic | version   | check |
    | 8     | u32 = 2   | u32   |
    +-------+-----------+-------+

A file has its header before it has its name, so no crash leaves a file without it. Another version, or a file that
begins with anything else, refuses the start, because the file may have records that clients rely on. Files of version
1 have no headers of rounds. Files of version 0 begin with a record. Both are read too.

A round begins with a header. It has the number of the file that the round before was written to, and the size of that
file once it was synced: bytes below that size were on the disk before this round was written.

    0       8             16       24      28
    +-------+-------------+--------+-------+
    | magic | number of   | synced | check |
    | 8     | a file, u64 | u64    | u32   |
    +-------+-------------+--------+-------+

Its records follow. A record has the batches of one write, and all their ids.

    0       4        8          24          28        32                    32 + 12 * number
    +-------+--------+----------+-----------+---------+---------------------+---------+
    | check | length | topic id | partition | number  | runs: first id i64, | batches |
    | u32   | u32    | 16 bytes | i32       | of runs | number of ids u32   |         |
    +-------+--------+----------+-----------+---------+---------------------+---------+

Each check is the CRC-32C of the other bytes of its header or record. A record's length counts everything after itself.
A file ends in zeros, which the next rounds overwrite. The check of a record of zeros fails.

A crash may leave any part of the last round, even its last record without its first. So a record with a wrong check
before a valid one may be torn. A later round names the bytes that were synced before it. If one of these cannot be
read, the disk has lost it: that is a `Damage`, and the reader goes on after it. No round names the bytes of the very
last one, so the reader takes damage there for a torn round.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias
from uuid import UUID

from crc32c import crc32c

from broker.log.storage.port import Buffer, File
from broker.record.batch import HEADER_BYTES

SUFFIX = ".journal"
DAMAGED = ".damaged"
"""Added to the name of a damaged file once its records are in the logs, so that no start reads it again."""

MAGIC, ROUND_MAGIC = b"FLAKEJNL", b"JNLROUND"
VERSION, ROUNDLESS_VERSION = 2, 1
_VERSIONED = struct.Struct(">8sI")
_ROUND = struct.Struct(">8sQQ")
_RUN = struct.Struct(">qI")
_HEAD = struct.Struct(">I16siI")  # length, topic id, partition, number of runs
_CHECK_BYTES = _LENGTH_BYTES = 4
JOURNAL_HEADER_BYTES = _VERSIONED.size + _CHECK_BYTES
ROUND_HEADER_BYTES = _ROUND.size + _CHECK_BYTES
_SCAN_BYTES = 256 << 10

_NAME = re.compile(rf"([0-9]{{20}}){re.escape(SUFFIX)}({re.escape(DAMAGED)})?")

Key: TypeAlias = tuple[UUID, int]
"""Topic id and partition, so that a topic recreated under an old name never gets the old topic's records."""


class JournalUnreadable(ValueError):
    """A journal of another version, or one whose header is damaged. The message names the file and the remedy."""


class JournalRecord(NamedTuple):
    """A record of a file: its log, the position of its first byte and all its bytes."""

    key: Key
    position: int
    data: memoryview

    @property
    def runs(self) -> Iterator[tuple[int, int]]:
        """The (first id, number of ids) of its runs."""
        return _RUN.iter_unpack(self.data[_CHECK_BYTES + _HEAD.size : self.batches_at])

    @property
    def batches_at(self) -> int:
        """The position of the first batch in `data`."""
        return _CHECK_BYTES + _HEAD.size + int(_HEAD.unpack_from(self.data, _CHECK_BYTES)[-1]) * _RUN.size


class Damage(NamedTuple):
    """Bytes `start` to `end` of a file that were synced and cannot be read. `key` is the log that they seem to name."""

    start: int
    end: int
    key: Key | None


# --- names -----------------------------------------------------------------------------------------------------------


def name_of(number: int) -> str:
    """Return the name of the file with this number."""
    return f"{number:020d}{SUFFIX}"


def number_of(name: str) -> int | None:
    """Return the number in the name of a journal file, None if the name is none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and not match[2] else None


def damaged_number_of(name: str) -> int | None:
    """Return the number in the name of a damaged file that was set aside, None if the name is none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and match[2] else None


# --- writing ---------------------------------------------------------------------------------------------------------


def header_of(version: int) -> bytes:
    """Return the header of a journal file."""
    return _with_check(_VERSIONED.pack(MAGIC, version))


def round_header(number: int, synced_bytes: int) -> bytes:
    """Return the header of a round. The file with this number has `synced_bytes` on the disk before it."""
    return _with_check(_ROUND.pack(ROUND_MAGIC, number, synced_bytes))


def _with_check(data: bytes) -> bytes:
    return data + crc32c(data).to_bytes(_CHECK_BYTES, "big")


def record_head(topic_id: bytes, partition: int, batches: Buffer, runs: Sequence[tuple[int, int]]) -> bytes:
    """Return the bytes of a record before its batches."""
    length = _HEAD.size - _LENGTH_BYTES + len(runs) * _RUN.size + len(batches)
    checked = _HEAD.pack(length, topic_id, partition, len(runs))
    for run in runs:
        checked += _RUN.pack(*run)
    return crc32c(batches, crc32c(checked)).to_bytes(_CHECK_BYTES, "big") + checked


# --- reading ---------------------------------------------------------------------------------------------------------


def version_of(name: str, file: File) -> int:
    """Return the version of a file. Raise JournalUnreadable if it is a newer one, or if the file has no header."""
    header = file.read(0, JOURNAL_HEADER_BYTES)
    if header.startswith(MAGIC) and header == _with_check(header[: _VERSIONED.size]):
        version = int(_VERSIONED.unpack_from(header)[1])
        if version not in (ROUNDLESS_VERSION, VERSION):
            raise JournalUnreadable(
                f"{name} is a journal of version {version}; this program reads versions 0 to {VERSION}. Start the "
                f"version of Flakelog that wrote it, and stop it cleanly: then no journal is left"
            )
        return version
    if _record(file, 0) is not None:
        return 0
    raise JournalUnreadable(
        f"{name} begins with {header.hex() or 'nothing'}, which is no header of a journal; it should be "
        f"{header_of(VERSION).hex()} (version {VERSION}). Restore the file from a copy. Without it, messages are "
        f"lost that were answered after the last checkpoint; to start all the same, move it to another directory"
    )


def first_position(version: int) -> int:
    """Return the position of the first round or record."""
    return JOURNAL_HEADER_BYTES if version else 0


def synced_by(file: File, version: int) -> tuple[int, int] | None:
    """Return the (number, synced bytes) of a file that the first round names, None if it names none."""
    return _round(file, first_position(version)) if version == VERSION else None


def read_records(file: File, version: int, number: int, synced_bytes: int = 0) -> Iterator[JournalRecord | Damage]:
    """Yield the records of a file, and the damage among them. End before the round that a crash has torn.

    `synced_bytes` are the bytes that another file calls synced.
    """
    position = first_position(version)
    while True:
        if _round(file, position) is not None:
            position += ROUND_HEADER_BYTES
        elif (data := _record(file, position)) is not None:
            yield JournalRecord(_key_in(data), position, data)
            position += len(data)
        else:
            end = _next_round(file, position + 1, number) or synced_bytes
            if end <= position:
                return
            start, position = position, _resumed(file, position, end)
            yield Damage(start, position, _key_at(file, start))


def _resumed(file: File, position: int, end: int) -> int:
    """Return the position after damaged bytes, at most `end`: that of the next record or round that can be read.

    It is found if the damaged bytes have the size of a round's header, or if a record's length is not damaged.
    """
    for size in (ROUND_HEADER_BYTES, _size_at(file, position)):
        after = position + size
        if size and after < end and (_record(file, after) is not None or _round(file, after) is not None):
            return after
    return end


def _next_round(file: File, position: int, number: int) -> int | None:
    """Return the position of the next header of a round of this file, None if the file has no further one.

    Batches may have the bytes of a header, but its synced bytes are another number than its position.
    """
    while True:
        chunk = file.read(position, _SCAN_BYTES)
        at = chunk.find(ROUND_MAGIC)
        while at >= 0:
            if _round(file, position + at) == (number, position + at):
                return position + at
            at = chunk.find(ROUND_MAGIC, at + 1)
        if len(chunk) < _SCAN_BYTES:
            return None
        position += len(chunk) - len(ROUND_MAGIC) + 1


def _round(file: File, position: int) -> tuple[int, int] | None:
    """Return what the header of a round at `position` says: (number, synced bytes). Return None if none is there."""
    header = file.read(position, ROUND_HEADER_BYTES)
    if not header.startswith(ROUND_MAGIC) or header != _with_check(header[: _ROUND.size]):
        return None
    _, number, synced_bytes = _ROUND.unpack_from(header)
    return number, synced_bytes


def _record(file: File, position: int) -> memoryview | None:
    """Return a record's bytes, None if the check fails or the file ends before."""
    size = _size_at(file, position)
    if not size:
        return None
    data = memoryview(file.read(position, size))
    return data if crc32c(data[_CHECK_BYTES:]).to_bytes(_CHECK_BYTES, "big") == data[:_CHECK_BYTES] else None


def _key_in(data: Buffer) -> Key:
    _, topic_id, partition, _ = _HEAD.unpack_from(data, _CHECK_BYTES)
    return UUID(bytes=topic_id), partition


def _key_at(file: File, position: int) -> Key | None:
    data = file.read(position, _CHECK_BYTES + _HEAD.size)
    return _key_in(data) if len(data) == _CHECK_BYTES + _HEAD.size else None


def _size_at(file: File, position: int) -> int:
    """Return the size of the record at `position` by its length, 0 if that is too small or exceeds the file.

    A torn write may announce four gigabytes, so the length is checked before that many bytes are read.
    """
    bytes_left = file.size - position
    if bytes_left < _CHECK_BYTES + _LENGTH_BYTES:
        return 0
    length = int.from_bytes(file.read(position + _CHECK_BYTES, _LENGTH_BYTES), "big")
    size = _CHECK_BYTES + _LENGTH_BYTES + length
    return size if _CHECK_BYTES + _HEAD.size + HEADER_BYTES <= size <= bytes_left else 0
