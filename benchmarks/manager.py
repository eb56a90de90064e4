"""PartitionManager alone: no log, no broker, no bolts. The peer is storm-kafka 0.9.3's, ported with a sorted set."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from broker.client.records import Record
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

T = TypeVar("T")


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


class _Log:
    """Makes the records of a fetch, and keeps the time that takes out of the figures."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self._left_out = 0.0, 0.0
        self._began = time.perf_counter(), time.process_time()

    def read(self, offset: int, records: int) -> list[Record]:
        """Return the records from `offset` on."""
        return self._untimed(lambda: [record for _, record in self._made(offset, records)])

    def fetch(self, offset: int) -> list[tuple[int, Record]]:
        """Return the records from `offset` on as the port wants them, with their offsets."""
        return self._untimed(lambda: self._made(offset, FETCH))

    def offset_before(self, time: int) -> int:
        return 0

    def _made(self, offset: int, records: int) -> list[tuple[int, Record]]:
        upto = min(self.messages, offset + records)
        return [(each, Record(each, each, each, None, VALUE)) for each in range(offset, upto)]

    def _untimed(self, make: Callable[[], list[T]]) -> list[T]:
        began = time.perf_counter(), time.process_time()
        made = make()
        wall, cpu = self._left_out
        self._left_out = wall + time.perf_counter() - began[0], cpu + time.process_time() - began[1]
        return made

    def figures(self) -> Figures:
        took = time.perf_counter() - self._began[0] - self._left_out[0]
        used = time.process_time() - self._began[1] - self._left_out[1]
        return {"msg/s": self.messages / took, "CPU us/msg": 1e6 * used / self.messages}


def _ours(messages: int) -> Figures:
    config = SpoutConfig(spout_max_attempts=0, spout_fetch_max_records=FETCH)
    manager = PartitionManager("bench", 0, Progress(0), config)
    window, now_ms = _windows(), 0
    log = _Log(messages)
    while manager.pending or manager.emitted < messages:
        emitted = []
        while len(emitted) < WINDOW:
            message = manager.next(now_ms)
            if message is not None:
                emitted.append((message.offset, message.ticket))
                continue
            wanted = manager.wanted()
            if wanted is None or wanted.offset == messages:
                break
            records = log.read(wanted.offset, wanted.max_records)
            manager.fetched(records, wanted.offset + len(records), messages)
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
    return log.figures()


def _storm(messages: int) -> Figures:
    log = _Log(messages)
    manager = storm.PartitionManager(log, "bench", {}, storm.SpoutConfig(force_from_start=True))
    window, windows = _windows(), 0
    while manager.last_completed_offset() < messages or manager.failed:
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
    return log.figures()


@contextmanager
def _open(scale: Scale) -> Iterator[Contenders]:
    messages = scale.of(MESSAGES, WINDOW)
    yield {OURS: lambda: _ours(messages), "storm-kafka 0.9.3, ported": lambda: _storm(messages)}


ROWS = [
    Row(
        "manager",
        "one partition's messages emitted, acked in an order shuffled within 1,000, every tenth failed and retried",
        _open,
    )
]
