"""The messages of Spark's rows: values of 100 B without keys, and keys and values of 20 to 180 B.

Most users have messages of the second kind, in which no length follows from another.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.apache import Peer
from benchmarks.consumers import VALUE_BYTES
from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch

BATCH_MESSAGES = 1_000
LEAST_BYTES, SIZES = 20, 161  # 20 to 180 B
KEY_STEP, VALUE_STEP = 7_907, 7_919  # primes, so that neighbours differ


class Shape(NamedTuple):
    """Messages of one kind, by their numbers."""

    about: str
    has_keys: bool
    share: float
    """How many messages a topic has, compared with one of 100 B, so that both have as many bytes."""

    def columns(self) -> list[str]:
        """Return SQL for the columns of a write, made from `id`."""
        if not self.has_keys:
            return [f"lpad(cast(id as string), {VALUE_BYTES}, 'x') as value"]
        steps = {"key": KEY_STEP, "value": VALUE_STEP}
        return [
            f"lpad(cast(id as string), cast({LEAST_BYTES} + id * {step} % {SIZES} as int), 'x') as {name}"
            for name, step in steps.items()
        ]

    def batch(self) -> list[BatchRecord]:
        """Return the records of a batch."""
        if not self.has_keys:
            return [BatchRecord(n, n, None, b"x" * VALUE_BYTES) for n in range(BATCH_MESSAGES)]
        return [BatchRecord(n, n, _text(n, KEY_STEP), _text(n, VALUE_STEP)) for n in range(BATCH_MESSAGES)]

    def value_bytes(self, messages: int) -> int:
        """Return the bytes of the values of so many messages, in whole batches."""
        return sum(len(message.value or b"") for message in self.batch()) * (messages // BATCH_MESSAGES)


CONSTANT = Shape("100 B", False, 1.0)
VARIED = Shape("20 to 180 B", True, 0.5)


def _text(number: int, step: int) -> bytes:
    return b"%d" % number + b"x" * (LEAST_BYTES + number * step % SIZES - len(str(number)))


def fill(peer: Peer, topic: str, shape: Shape, messages: int, shares: Sequence[int]) -> int:
    """Fill a topic with batches, each partition with its share, and return the number of messages."""
    batch = encode_batch(shape.batch(), base_timestamp_ms=time.time_ns() // 1_000_000)
    wanted = int(messages * shape.share)
    batches = [max(wanted * share // sum(shares) // BATCH_MESSAGES, 1) for share in shares]
    with Client(peer.address) as client:
        for partition, number in enumerate(batches):
            for _ in range(number):
                client.produce(topic, partition, batch, acks=1)
    return sum(batches) * BATCH_MESSAGES
