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
from spout.run import rare_collections
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
V = TypeVar("V")


class _World:
    """The log and the bolts: makes the records of a fetch and the outcomes of a window.

    The figures leave out the time that takes, because it is not the manager's.
    """

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self._chance = random.Random(SEED)
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

    def outcomes(self, emitted: list[T]) -> tuple[list[T], list[T]]:
        """Return the messages of a window that are acked, in a random order, and those that fail."""
        return self._untimed(lambda: self._outcomes(emitted))

    def _outcomes(self, emitted: list[T]) -> tuple[list[T], list[T]]:
        self._chance.shuffle(emitted)
        acked: list[T] = []
        failed: list[T] = []
        for message in emitted:
            (failed if self._chance.random() < FAILING else acked).append(message)
        return acked, failed

    def _made(self, offset: int, records: int) -> list[tuple[int, Record]]:
        upto = min(self.messages, offset + records)
        return [(at, Record(at, at, at, None, VALUE)) for at in range(offset, upto)]

    def _untimed(self, make: Callable[[], V]) -> V:
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
    world, now_ms = _World(messages), 0
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
            records = world.read(wanted.offset, wanted.max_records)
            manager.fetched(records, wanted.offset + len(records), messages)
        acked, failed = world.outcomes(emitted)
        for offset, ticket in failed:
            manager.fail(offset, ticket, now_ms, "ValueError: no")
        manager.ack_many(acked)
        now_ms += WINDOW_MS
        if now_ms % (WINDOW_MS * COMMIT_EVERY) == 0 and (progress := manager.commit()) is not None:
            manager.stored(progress)
    return world.figures()


def _storm(messages: int) -> Figures:
    world = _World(messages)
    manager = storm.PartitionManager(world, "bench", {}, storm.SpoutConfig(force_from_start=True))
    windows = 0
    while manager.last_completed_offset() < messages or manager.failed:
        emitted: list[storm.KafkaMessageId] = []
        while len(emitted) < WINDOW:
            if manager.next(lambda values, id: emitted.append(id)) is storm.EmitState.NO_EMITTED:
                break
        acked, failed = world.outcomes(emitted)
        for message in failed:
            manager.fail(message.offset)
        for message in acked:
            manager.ack(message.offset)
        windows += 1
        if windows % COMMIT_EVERY == 0:
            manager.commit()
    return world.figures()


@contextmanager
def _open(scale: Scale) -> Iterator[Contenders]:
    messages = scale.of(MESSAGES, WINDOW)
    with rare_collections():  # as under `spout.run`, for both
        yield {OURS: lambda: _ours(messages), "storm-kafka 0.9.3, ported": lambda: _storm(messages)}


ROWS = [
    Row(
        "manager",
        "one partition's messages emitted, acked in an order shuffled within 1,000, every tenth failed and retried",
        _open,
    )
]
