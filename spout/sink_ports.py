"""Requests of a sink to the outside world and their answers, as values; see partition_manager.ports."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from broker.record.compression import Codec
from broker.record.records import BatchRecord, Headers
from partition_manager.ports import Failed, LetterRefused

RECORD_OVERHEAD_BYTES = 40  # of a record without headers in a batch: lengths, deltas and a share of the batch's header


class Output(NamedTuple):
    """A record for a topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def size(self) -> int:
        """Return the bytes of the record in a batch, roughly."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + headers


def records_of(outputs: tuple[Output, ...]) -> list[BatchRecord]:
    """Return the outputs as the records of one batch."""
    return [BatchRecord(number, 0, output.key, output.value, output.headers) for number, output in enumerate(outputs)]


class CountPartitions(NamedTuple):
    """Ask for a topic's number of partitions. Answer: Counted."""

    topic: str


class Produce(NamedTuple):
    """Append the outputs to a partition as one batch.

    Answer: Produced, once all replicas in sync have it, or LetterRefused.

    All outputs name the same topic.
    """

    topic: str
    partition: int
    outputs: tuple[Output, ...]
    codec: Codec = Codec.NONE


class Counted(NamedTuple):
    partitions: int


class Produced(NamedTuple):
    pass


SinkRequest = CountPartitions | Produce
SinkAnswer = Counted | Produced | LetterRefused | Failed


class RecordProducer(Protocol):
    """A writer of topics. It answers Failed if a later attempt may succeed."""

    def ask(self, request: SinkRequest, answer: Callable[[SinkAnswer], None]) -> None: ...

    def close(self) -> None: ...
