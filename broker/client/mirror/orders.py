"""Orders to mirrors: to pause, and to go on. They outlive the processes of a mirror.

    topic   __flakelog_mirror_orders, compacted, on the target
    key     the mirror's name
    value   {"v": 1, "state": "paused", "at_ms"}; null (a tombstone) lets the mirror go on
"""

import json
from collections.abc import Iterable

from broker.client.mirror.figures import PAUSED

TOPIC = "__flakelog_mirror_orders"
TOPIC_CONFIGS = {"cleanup.policy": "compact"}
VERSION = 1


def pause_order(now_ms: int) -> bytes:
    """Return the value of an order to pause."""
    return json.dumps({"v": VERSION, "state": PAUSED, "at_ms": now_ms}, separators=(",", ":")).encode()


class Orders:
    """The names of the mirrors that are to pause, by the records of the topic."""

    def __init__(self) -> None:
        self.paused: set[str] = set()

    def read(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Follow (key, value) pairs in the order of the log. A value of another version is no order."""
        for key, value in records:
            name = (key or b"").decode(errors="replace")
            if value is None:
                self.paused.discard(name)
            elif _is_pause(value):
                self.paused.add(name)


def _is_pause(value: bytes) -> bool:
    try:
        order = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return isinstance(order, dict) and order.get("v") == VERSION and order.get("state") == PAUSED
