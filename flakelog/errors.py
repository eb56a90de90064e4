"""The errors that Flakelog raises. All are subclasses of `FlakelogError`, and each message says what would be right.

    FlakelogError
      ClientError                 of Client, Producer, Consumer and Admin
        Unreachable               no broker answers
        BrokerError               a broker refused a request; `code` is an `ErrorCode`
        BadAnswer, Unsupported    the broker speaks another protocol or lacks a version
        MissingId, TopicRecreated
        ProduceError
          QueueFull
        GroupRefused, CommitFailed
        TryAgain                  a transaction: the same call succeeds later
        MustAbort                 a transaction: abort it, then repeat its records
        ProducerFenced            a transaction: another producer has taken the transactional id
      IdError                     of Snowflake and the id clients; idgen.errors says what cures each
      IdServiceUnreachable        also a ConnectionError
      CoordinationError           of ZooKeeper or the directory that keeps worker numbers
      CorruptBatch, InvalidSetting, InvalidStart, InvalidTopics, SchemeError, TopologyError      also ValueErrors

Loads and replays raise other subclasses of `FlakelogError`.
"""

from broker.client.errors import (
    BadAnswer,
    BrokerError,
    ClientError,
    CommitFailed,
    GroupRefused,
    InvalidTopics,
    MissingId,
    MustAbort,
    ProduceError,
    ProducerFenced,
    QueueFull,
    TopicRecreated,
    TryAgain,
    Unreachable,
    Unsupported,
)
from broker.record.batch import CorruptBatch
from broker.wire.errors import ErrorCode
from coordination.errors import FlakelogError
from coordination.port import CoordinationError, CoordinatorUnavailable
from idgen.client.core import IdServiceError, IdServiceUnreachable, TooManyCalls
from idgen.errors import (
    ClockMovedBackwards,
    Fenced,
    IdError,
    InvalidCount,
    InvalidId,
    InvalidTimeRange,
    InvalidUserAgent,
    LayoutExhausted,
    LayoutMismatch,
    LeadExhausted,
    NoWorkerNumber,
    SequenceExhausted,
    WorkerIdsExhausted,
)
from idgen.settings import InvalidSetting
from partition_manager.start_offset import InvalidStart
from spout.scheme import SchemeError
from spout.topology import TopologyError

__all__ = [
    "BadAnswer",
    "BrokerError",
    "ClientError",
    "ClockMovedBackwards",
    "CommitFailed",
    "CoordinationError",
    "CoordinatorUnavailable",
    "CorruptBatch",
    "ErrorCode",
    "Fenced",
    "FlakelogError",
    "GroupRefused",
    "IdError",
    "IdServiceError",
    "IdServiceUnreachable",
    "InvalidCount",
    "InvalidId",
    "InvalidSetting",
    "InvalidStart",
    "InvalidTimeRange",
    "InvalidTopics",
    "InvalidUserAgent",
    "LayoutExhausted",
    "LayoutMismatch",
    "LeadExhausted",
    "MissingId",
    "MustAbort",
    "NoWorkerNumber",
    "ProduceError",
    "ProducerFenced",
    "QueueFull",
    "SchemeError",
    "SequenceExhausted",
    "TooManyCalls",
    "TopicRecreated",
    "TopologyError",
    "TryAgain",
    "Unreachable",
    "Unsupported",
    "WorkerIdsExhausted",
]
