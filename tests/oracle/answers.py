"""Answers to Produce read by hand, field by field, as far as the oracle must look inside them."""

import struct
from typing import NamedTuple

FLEXIBLE, TOPIC_IDS = 9, 13
IDS_TAG = 61_890
RUN = struct.Struct(">qi")


class NoAnswer(Exception):
    """These bytes are no answer to Produce of that version."""


class Result(NamedTuple):
    """The answer for one partition. The topic is its name, or its id from v13 on; `runs` are (first id, how many)."""

    topic: bytes
    partition: int
    error_code: int
    base_offset: int
    append_ms: int
    start_offset: int
    errors: tuple
    message: bytes | None
    runs: tuple
    other_tags: tuple


class Cursor:
    """Reads a message from its start."""

    def __init__(self, data, flexible):
        self._data, self._at, self._flexible = data, 0, flexible

    def unpack(self, layout):
        values = struct.unpack_from(">" + layout, self._data, self._at)
        self._at += struct.calcsize(">" + layout)
        return values

    def uvarint(self):
        number = shift = 0
        while True:
            (byte,) = self.unpack("B")
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def length(self, layout="i"):
        return self.uvarint() - 1 if self._flexible else self.unpack(layout)[0]

    def take(self, size):
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def string(self):
        size = self.length("h")
        return None if size < 0 else self.take(size)

    def tags(self):
        """{tag: its bytes}; nothing before the flexible versions."""
        number = self.uvarint() if self._flexible else 0
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(number)}

    @property
    def at_end(self):
        return self._at == len(self._data)


def results_of(version, answer):
    """Return the results in an answer to Produce, and the fields around them. The answer comes without its length
    field. NoAnswer: the bytes are no answer of that version."""
    try:
        return _results_of(version, answer)
    except (struct.error, OverflowError, AssertionError) as error:
        raise NoAnswer(str(error)) from None


def _results_of(version, answer):
    cursor = Cursor(answer, version >= FLEXIBLE)
    (correlation_id,) = cursor.unpack("i")
    header_tags = cursor.tags()
    results = []
    for _ in range(cursor.length()):
        topic = cursor.take(16) if version >= TOPIC_IDS else cursor.string()
        for _ in range(cursor.length()):
            results.append(_result(version, cursor, topic))
        cursor.tags()
    around = correlation_id, header_tags, cursor.unpack("i"), cursor.tags()
    assert cursor.at_end
    return results, around


def _result(version, cursor, topic):
    partition, code, base_offset, append_ms = cursor.unpack("ihqq")
    start_offset = cursor.unpack("q")[0] if version >= 5 else None
    errors, message = (), None
    if version >= 8:
        errors = tuple((cursor.unpack("i"), cursor.string(), cursor.tags()) for _ in range(cursor.length()))
        message = cursor.string()
    tags = cursor.tags()
    runs = tuple(RUN.iter_unpack(tags.pop(IDS_TAG, b"")))
    return Result(
        topic, partition, code, base_offset, append_ms, start_offset, errors, message, runs, tuple(tags.items())
    )  # fmt: skip


def split(data):
    """Answers one by one, without their length fields; the last may be cut short."""
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : end]
        at = end
