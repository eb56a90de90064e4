"""The outcomes of the validation of a batch: it is ready, it is refused, or its request is postponed."""

from dataclasses import dataclass
from typing import TypeAlias

from broker.log.log_appender import Rewrite
from broker.log.partition_log import PartitionLog
from broker.log.verification import Verification
from broker.record.batch import BatchHeader
from broker.wire.errors import ApiError, ErrorCode


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


@dataclass(frozen=True, slots=True)
class AwaitsVerification(Postponed):
    """Other brokers must be asked whether transactions have these partitions."""

    verifications: tuple[Verification, ...]


class Unverified(Exception):
    """Another broker must be asked first whether a transaction has a partition."""

    def __init__(self, verification: Verification) -> None:
        name = f"{verification.partition[0]}-{verification.partition[1]}"
        super().__init__(
            f"it is not known yet whether {name} is part of a transaction of {verification.transactional_id}"
        )
        self.verification = verification


class VerificationRefused(ApiError):
    """The transaction does not have the batch's partition. When the client is informed, the next batch asks again."""

    def __init__(self, code: ErrorCode, message: str, verification: Verification) -> None:
        super().__init__(code, message)
        self.verification = verification


MUST_OPEN = MustOpen()

Validated: TypeAlias = ApiError | tuple[PartitionLog, memoryview, BatchHeader, Rewrite | None]
"""The error that refuses a batch; or its log, the batch to append, its header, and how it is finished with its ids."""

Outcome: TypeAlias = Validated | Postponed
