"""A row of the table of errors, and the values and the disk failures that several rows use."""

from collections.abc import Callable
from typing import NamedTuple

from broker.engine.api_table import APIS
from broker.wire.errors import ErrorCode as E
from tests.broker.any_api import KEYS, World

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
NOWHERE = "nowhere"
ELSEWHERE = {"elsewhere": True, "inside": True}
FAR_AHEAD_MS = 1 << 52
LONG = "x" * 4_097  # longer than offset.metadata.max.bytes, 4,096


class Case(NamedTuple):
    """An expected error. `ask` takes a World and returns the answer whose first error is checked; `settings` are the
    broker's. With `elsewhere` the broker is one of a cluster whose controller is another."""

    api: str
    code: E
    ask: Callable[[World], object]
    oldest: int = 0
    newest: int = 99
    kafka: E | None = None
    inside: bool = False
    elsewhere: bool = False
    settings: dict = {}

    @property
    def kafkas(self):
        return self.code if self.kafka is None else self.kafka

    @property
    def versions(self):
        """Return the lowest and the highest version that the broker serves and that know the code."""
        api = APIS[KEYS[self.api]]
        ends = max(self.oldest, api.oldest), min(self.newest, api.newest)
        assert ends[0] <= ends[1], self
        return sorted(set(ends))


def offline(world, topic=None):
    """Take a topic offline, as a disk failure does; return its name."""
    topic = topic or world.topic
    for log in world.broker.services.logs.all():
        if log.topic == topic:
            log.offline = "a sync failed"
    return topic


def full(world):
    """Fill the broker's disk."""
    world.broker.storage.free_bytes = 0
    return world
