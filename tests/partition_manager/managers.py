"""A PartitionManager in a test: made with few settings, fed with records, emitted from."""

import sys

from partition_manager.config import SpoutConfig
from partition_manager.manager import PartitionManager
from partition_manager.progress import Progress
from tests.partition_manager.world import records


def manager_of(start=Progress(0), **settings):
    settings.setdefault("retry_jitter", 0.0)
    return PartitionManager("t", 0, start, SpoutConfig(**{f"spout_{k}": v for k, v in settings.items()}))


def feed(manager, start, end, high_watermark=None):
    """Answer the manager's fetch with every offset from `start` to `end`."""
    wanted = manager.wanted()
    assert wanted is not None and wanted.offset == start
    manager.fetched(records(start, end), end, high_watermark or end)


def emit_all(manager, now_ms=0):
    """Emit everything that is ready; return {offset: ticket}."""
    emitted = {}
    while (message := manager.next(now_ms)) is not None:
        emitted[message.record.offset] = message.ticket
    return emitted


def calls_of(call):
    """Return the number of Python functions that `call` enters."""
    entered = []
    sys.setprofile(lambda frame, event, arg: entered.append(frame.f_code) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(entered)
