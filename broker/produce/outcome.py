"""The outcomes of the validation of a batch: it is ready, it is refused, or its request is postponed."""

from dataclasses import dataclass
from typing import TypeAlias

from broker.log.log_appender import Rewrite
from broker.log.partition_log import PartitionLog
from broker.record.batch import BatchHeader
from broker.wire.errors import ApiError


class Postponed:
    """The request cannot be staged yet. Nothing of it was staged, and the engine executes it again later."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MustOpen(Postponed):
    """The records cost more to check than the reactor thread may spend, so a thread must open them first."""


@dataclass(frozen=True, slots=True)
class LogReserved(Postponed):
    """A thread stamps a batch of another connection for the log; batches that come later must wait for it."""

    log: PartitionLog


@dataclass(frozen=True, slots=True)
class WithoutIds(Postponed):
    """There are no ids before `retry_wall_ms` (Unix ms)."""

    retry_wall_ms: int


MUST_OPEN = MustOpen()

Validated: TypeAlias = ApiError | tuple[PartitionLog, memoryview, BatchHeader, Rewrite | None]
"""The error that refuses a batch; or its log, the batch to append, its header, and how it is finished with its ids."""

Outcome: TypeAlias = Validated | Postponed
