"""Topics in the hand-written codecs: a name, or in the newest versions of Produce and Fetch an id (KIP-516).

Messages group their partitions in arrays by topic.
"""

from functools import lru_cache
from typing import Protocol, TypeVar
from uuid import UUID

from broker.wire.errors import WireError
from broker.wire.primitives import Buffer, read_string, string

_ID_BYTES = 16


class _Named(Protocol):
    @property
    def topic(self) -> str | UUID: ...


_Item = TypeVar("_Item", bound=_Named)


def read_topic(data: Buffer, position: int, flexible: bool, by_id: bool) -> tuple[str | UUID, int]:
    if not by_id:
        name, position = read_string(data, position, flexible)
        return name or "", position
    end = position + _ID_BYTES
    if end > len(data):
        raise WireError(f"a topic id at byte {position} runs past the end ({len(data)})")
    return _id_of(bytes(data[position:end])), end


@lru_cache(maxsize=1_024)  # the messages of a client name the same topics again and again
def _id_of(data: bytes) -> UUID:
    return UUID(bytes=data)


def topic(value: str | UUID, flexible: bool, by_id: bool) -> bytes:
    if by_id:
        assert isinstance(value, UUID), f"this version names topics by id, not {value!r}"
        return value.bytes
    assert isinstance(value, str), f"this version names topics by name, not {value!r}"
    return string(value, flexible)


def by_topic(items: list[_Item]) -> list[tuple[str | UUID, list[_Item]]]:
    """Group items by topic in their order. The fast path for a single item, the usual case, makes no dictionary.

    Items of one topic mostly follow each other. So only another topic than the last one is looked up: the hash of an id
    takes a call.
    """
    if len(items) == 1:
        return [(items[0].topic, items)]
    grouped: dict[str | UUID, list[_Item]] = {}
    topic: str | UUID | None = None
    of_topic: list[_Item] = []
    for item in items:
        if item.topic is not topic:
            topic = item.topic
            of_topic = grouped.setdefault(topic, [])
        of_topic.append(item)
    return list(grouped.items())
