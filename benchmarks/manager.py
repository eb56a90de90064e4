"""PartitionManager alone: no log, no broker, no bolts. The peer is storm-kafka 0.9.3's, ported with a sorted set."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from broker.client.records import LogRecord
from partition_manager.config import SpoutConfig
from partition_manager.manager import PartitionManager
from partition_manager.progress import Progress
from tests.partition_manager import storm_0_9_3 as storm

MESSAGES = 1_000_000
WINDOW = 1_000
FETCH = 2_000
FAILING = 0.1
WINDOW_MS = 10
COMMIT_EVERY = 200  # windows: 2 s
VALUE = bytes(100)
SEED = 1


def _windows() -> Callable[[], tuple[list[int], list[bool]]]:
    """Return a function that returns the order of a window's acks, and which of them are failures instead."""
    chance = random.Random(SEED)
    orders = [chance.sample(range(WINDOW), WINDOW) for _ in range(20)]
    failures = [[chance.random() < FAILING for _ in range(WINDOW)] for _ in range(23)]
    turn = iter(range(10**9))

    def window() -> tuple[list[int], list[bool]]:
        number = next(turn)
        return orders[number % len(orders)], failures[number % len(failures)]

    return window


def _ours(records: list[LogRecord]) -> Figures:
    config = SpoutConfig(spout_max_attempts=0, spout_fetch_max_records=FETCH)
    manager = PartitionManager("bench", 0, Progress(0), config)
    window, now_ms, end = _windows(), 0, len(records)
    began = time.perf_counter(), time.process_time()
    while manager.pending or manager.emitted < end:
        emitted = []
        while len(emitted) < WINDOW:
            message = manager.next(now_ms)
            if message is None:
                wanted = manager.wanted()
                if wanted is None or wanted.offset == end:
                    break
                upto = min(end, wanted.offset + wanted.max_records)
                manager.fetched(records[wanted.offset : upto], upto, end)
            else:
                emitted.append((message.record.offset, message.ticket))
        order, failures = window()
        acks = []
        for index in order:
            if index >= len(emitted):
                continue
            if failures[index]:
                manager.fail(*emitted[index], now_ms, "ValueError: no")
            else:
                acks.append(emitted[index])
        manager.ack_many(acks)
        now_ms += WINDOW_MS
        if now_ms % (WINDOW_MS * COMMIT_EVERY) == 0 and (progress := manager.commit()) is not None:
            manager.stored(progress)
    return _figures(end, began)


def _storm(messages: list[tuple[int, LogRecord]]) -> Figures:
    config = storm.SpoutConfig(force_from_start=True)
    manager = storm.PartitionManager(_StormLog(messages), "bench", {}, config)
    window, windows, end = _windows(), 0, len(messages)
    began = time.perf_counter(), time.process_time()
    while manager.last_completed_offset() < end or manager.failed:
        emitted: list[storm.KafkaMessageId] = []
        while len(emitted) < WINDOW:
            if manager.next(lambda values, id: emitted.append(id)) is storm.EmitState.NO_EMITTED:
                break
        order, failures = window()
        for index in order:
            if index < len(emitted):
                (manager.fail if failures[index] else manager.ack)(emitted[index].offset)
        windows += 1
        if windows % COMMIT_EVERY == 0:
            manager.commit()
    return _figures(end, began)


def _figures(messages: int, began: tuple[float, float]) -> Figures:
    took, used = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"msg/s": messages / took, "CPU us/msg": 1e6 * used / messages}


class _StormLog(storm.Log):
    """A log whose fetch costs a slice, as ours does in this row."""

    def __init__(self, messages: list[tuple[int, LogRecord]]) -> None:
        super().__init__(())
        self.messages = messages

    def fetch(self, offset: int) -> list[tuple[int, LogRecord]]:
        return self.messages[offset : offset + FETCH]


@contextmanager
def _open(scale: Scale) -> Iterator[Contenders]:
    records = [LogRecord(offset, offset, offset, None, VALUE) for offset in range(scale.of(MESSAGES, WINDOW))]
    messages = [(record.offset, record) for record in records]
    yield {OURS: lambda: _ours(records), "storm-kafka 0.9.3, ported": lambda: _storm(messages)}


ROWS = [
    Row(
        "manager",
        "one partition's messages emitted, acked in an order shuffled within 1,000, every tenth failed and retried",
        _open,
    )
]
