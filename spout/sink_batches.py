"""The batches of a sink: each tuple's record on its way to the topic, until the broker has it or has refused it.

A partition has one batch on its way at a time, so its records keep the order of the tuples. Records that come meanwhile
make up its next batch. So batches are small while the broker answers fast, and grow under load.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from partition_manager.ports import Failed, LetterRefused
from spout.api import Tuple
from spout.partitioner import partition_of
from spout.sink_config import SinkConfig
from spout.sink_ports import Counted, CountPartitions, Output, Produce, Produced, SinkAnswer, SinkRequest


class Held(NamedTuple):
    """A record, and the tuple to ack when the broker has it."""

    output: Output
    tup: Tuple


class Outcome(NamedTuple):
    """Tuples to ack, or to fail for `error`. If it `passes`, the broker cannot be reached: no tuple is to blame."""

    acked: tuple[Tuple, ...] = ()
    failed: tuple[Tuple, ...] = ()
    error: str = ""
    passes: bool = False


class SinkBatches:
    """The records of one sink task for one topic."""

    def __init__(self, topic: str, config: SinkConfig) -> None:
        self.held_bytes = 0
        self._topic = topic
        self._config = config
        self._numbers = count(1)
        self._turns = count()
        self._partitions: int | None = None
        self._counting = False
        self._unplaced: deque[Held] = deque()  # until the number of partitions is known
        self._waiting: dict[int, deque[Held]] = {}
        self._alone: dict[int, int] = {}  # first records of a partition that go one by one
        self._sent: dict[int, tuple[int, list[Held]]] = {}  # by the request's number

    @property
    def is_full(self) -> bool:
        """Return True if no further record may be held."""
        return self.held_bytes >= self._config.sink_held_bytes

    def add(self, output: Output, tup: Tuple) -> None:
        """Hold the record of a tuple. `take` returns the request that sends it."""
        self.held_bytes += output.size
        held = Held(output, tup)
        if self._partitions is None:
            self._unplaced.append(held)
        else:
            self._enqueue(held, self._partitions)

    def take(self) -> list[tuple[int, SinkRequest]]:
        """Return the requests to send, each with its number: a batch of each partition that has none on its way."""
        if self._unplaced and not self._counting:
            self._counting = True
            return [(0, CountPartitions(self._topic))]
        taken: list[tuple[int, SinkRequest]] = []
        busy = {partition for partition, _ in self._sent.values()}
        for partition in [number for number in self._waiting if number not in busy]:
            batch = list(self._next_batch(partition))
            number = next(self._numbers)
            self._sent[number] = partition, batch
            outputs = tuple(held.output for held in batch)
            taken.append((number, Produce(self._topic, partition, outputs, self._config.codec)))
        return taken

    def answered(self, number: int, answer: SinkAnswer) -> Outcome:
        """Process an answer; return the tuples that it settles.

        If the topic refuses a batch, its records are sent one by one, so that only those at fault fail.
        """
        if number == 0:
            return self._counted(answer)
        partition, batch = self._sent.pop(number)
        if isinstance(answer, LetterRefused) and len(batch) > 1:
            self._waiting.setdefault(partition, deque()).extendleft(reversed(batch))
            self._alone[partition] = self._alone.get(partition, 0) + len(batch)
            return Outcome()
        self.held_bytes -= sum(held.output.size for held in batch)
        tuples = tuple(held.tup for held in batch)
        if isinstance(answer, Produced):
            return Outcome(acked=tuples)
        self._partitions = None  # it may have changed, and the next batch looks it up
        return _failure(tuples, answer)

    # --- internals

    def _counted(self, answer: SinkAnswer) -> Outcome:
        self._counting = False
        unplaced, self._unplaced = self._unplaced, deque()
        if isinstance(answer, Counted):
            self._partitions = answer.partitions
            for held in unplaced:
                self._enqueue(held, answer.partitions)
            return Outcome()
        self.held_bytes -= sum(held.output.size for held in unplaced)
        return _failure(tuple(held.tup for held in unplaced), answer)

    def _enqueue(self, held: Held, partitions: int) -> None:
        turn = next(self._turns) if held.output.key is None else 0
        partition = partition_of(held.output.key, partitions, turn, self._config.sink_partitioner)
        self._waiting.setdefault(partition, deque()).append(held)

    def _next_batch(self, partition: int) -> Iterator[Held]:
        waiting, size = self._waiting[partition], 0
        alone = self._alone.pop(partition, 0)
        if alone > 1:
            self._alone[partition] = alone - 1
        while waiting and size < self._config.sink_batch_bytes:
            size += waiting[0].output.size
            yield waiting.popleft()
            if alone:
                break
        if not waiting:
            del self._waiting[partition]


def _failure(tuples: tuple[Tuple, ...], answer: SinkAnswer) -> Outcome:
    assert isinstance(answer, (Failed, LetterRefused)), f"no answer to this request: {answer}"
    return Outcome(failed=tuples, error=answer.error, passes=isinstance(answer, Failed))
