"""Progress as the metadata string of a committed group offset (Kafka allows 4,096 characters).

    f1;<topic id>;<ranges>          f1;b2s5SXVDQ0dSbXlJcGhZcg;BAAC

The committed offset is the watermark. `f1` names this format. The topic id is the topic's UUID in URL-safe base64, or
empty. The ranges are the done ranges above the watermark, ascending, as whole numbers in turn: the distance from the
end of the range before (from the offset at first), and the length of the range. Both are at least 1, so one less is
written. A number is written in digits of five bits, the lowest first, as characters of URL-safe base64: each has the
digit, plus 32 if another digit follows.

A range of short distances takes two characters. RANGES_MAX ranges always fit if they lie within SPAN_MAX offsets.
"""

import string
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from typing import NamedTuple
from uuid import UUID

from partition_manager.progress import Progress

METADATA_CHARACTERS_MAX = 4_096  # offset.metadata.max.bytes of a broker by default; Kafka counts characters
RANGES_MAX = 500
"""Most ranges of a partition whose progress is kept in group offsets: 1,000 numbers of four digits always fit."""
SPAN_MAX = 1 << 25  # 1,001 numbers of which one has five digits sum up to more

_FORMAT = "f1"
_DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_MORE = 32
_NUMBER_BITS_MAX = 65  # offsets have 63 bits


class BadMetadata(ValueError):
    """Metadata of this format that cannot be read."""


class CommittedProgress(NamedTuple):
    """What a committed offset says. `topic_id` is str(UUID), or "" if it is not known."""

    progress: Progress
    topic_id: str


def encode_metadata(progress: Progress, topic_id: str) -> str:
    """Encode all ranges of `progress`, and the topic's id. The result may be too long: see `fits`."""
    name = urlsafe_b64encode(UUID(topic_id).bytes).decode().rstrip("=") if topic_id else ""
    numbers = []
    end = progress.offset
    for start, next_end in progress.done:
        numbers += [_number(start - end - 1), _number(next_end - start - 1)]
        end = next_end
    return f"{_FORMAT};{name};{''.join(numbers)}"


def fits(progress: Progress, topic_id: str) -> bool:
    """Return True if the metadata of `progress` is not too long for a broker."""
    return len(encode_metadata(progress, topic_id)) <= METADATA_CHARACTERS_MAX


def decode_metadata(offset: int, metadata: str) -> CommittedProgress | None:
    """Decode the progress committed at `offset`. Return None if the metadata is not of this format.

    Empty metadata, which other clients commit, is the offset without ranges. Raise BadMetadata if it begins as this
    format and cannot be read.
    """
    if not metadata:
        return CommittedProgress(Progress(offset), "")
    if not metadata.startswith(_FORMAT + ";"):
        return None
    try:
        _, name, text = metadata.split(";")
        topic_id = str(UUID(bytes=urlsafe_b64decode(name + "=="))) if name else ""
        numbers = _numbers(text)
    except (ValueError, KeyError, BadBase64) as error:
        raise BadMetadata(f"committed metadata cannot be read: {error}: {metadata[:100]!r}") from None
    ranges = []
    end = offset
    for distance, length in zip(numbers[::2], numbers[1::2], strict=True):
        start = end + distance + 1
        end = start + length + 1
        ranges.append((start, end))
    return CommittedProgress(Progress(offset, tuple(ranges)), topic_id)


def _number(value: int) -> str:
    out = []
    while value >= _MORE:
        out.append(_DIGITS[value % _MORE + _MORE])
        value //= _MORE
    out.append(_DIGITS[value])
    return "".join(out)


def _numbers(text: str) -> list[int]:
    numbers = []
    value = bits = 0
    for character in text:
        digit = _VALUES[character]
        value |= digit % _MORE << bits
        bits += 5
        if bits > _NUMBER_BITS_MAX:
            raise ValueError("a number is too long")
        if digit < _MORE:
            numbers.append(value)
            value = bits = 0
    if bits or len(numbers) % 2:
        raise ValueError("it ends in the middle of a range")
    return numbers
