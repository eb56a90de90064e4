"""Names of the files that a job writes."""

import hashlib
import re

from spark_bridge.reading.offset_range import OffsetRange

TOPIC_CHARACTERS_MAX = 140
"""The longest name of a topic in a file's name. File systems allow 255 bytes: up to 58 for the rest of the name, and up
to 49 while the file is written."""
_HASH_CHARACTERS = 16
_RANGE_PATTERN = r"-\d{5,}-\d{20}-\d{20}(?:-c(\d+))?\.parquet"


def file_name(range_: OffsetRange, chain: int = 0) -> str:
    """Return a file name that depends only on the range and the chain of loads; names sort in the order of the ranges.

    A long name of a topic is cut, and has a hash at its end.
    """
    again = f"-c{chain}" if chain else ""
    return f"{_short(range_.topic)}-{range_.partition:05d}-{range_.start:020d}-{range_.end:020d}{again}.parquet"


def chain_of(topic: str, name: str) -> int | None:
    """Return the chain of loads that a file of this topic belongs to, None for other files."""
    match = re.fullmatch(re.escape(_short(topic)) + _RANGE_PATTERN, name)
    return None if match is None else int(match[1] or 0)


def is_file_of(topic: str, name: str) -> bool:
    """Return True if a name is that of a file of this topic, and not of one whose name begins alike."""
    return chain_of(topic, name) is not None


def _short(topic: str) -> str:
    if len(topic) <= TOPIC_CHARACTERS_MAX:
        return topic
    digest = hashlib.sha256(topic.encode()).hexdigest()[:_HASH_CHARACTERS]
    return f"{topic[:TOPIC_CHARACTERS_MAX - _HASH_CHARACTERS - 1]}-{digest}"
