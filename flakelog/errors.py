"""The errors that Flakelog raises. All are subclasses of `FlakelogError`, and each message says what would be right.

    FlakelogError
      ClientError                 of Client, Producer, Consumer and Admin
        Unreachable               no broker answers
        NotAuthenticated          TLS or a login failed, and a retry would meet the same
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
      CorruptBatch, InvalidScheme, InvalidSetting, InvalidStart, InvalidTopics, SchemeError, TopologyError
                                  also ValueErrors
      ClusterError                of reads, loads and replays: a broker refuses a request, or does not answer
      OptionError, SelectionError, ManifestError
                                  of reads, loads and replays: a request that is not possible; also ValueErrors
      DataLoss                    the log does not have all of the range
      ReadFailed                  a range could not be read; another attempt may succeed
      StorageError                a place for files that cannot be used
      LoadError                   a load that is not possible
      ReplayError                 a replay that does not match its manifest

Errors of reads, loads and replays are loaded when they are first used; some need the extra `arrow`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from broker.client.errors import (
    BadAnswer,
    BrokerError,
    ClientError,
    CommitFailed,
    GroupRefused,
    InvalidTopics,
    MissingId,
    MustAbort,
    NotAuthenticated,
    ProduceError,
    ProducerFenced,
    QueueFull,
    TopicRecreated,
    TryAgain,
    Unreachable,
    Unsupported,
)
from broker.client.offset_spec import InvalidStart
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
from spout.scheme import InvalidScheme, SchemeError
from spout.topology import TopologyError

if TYPE_CHECKING:
    from spark_bridge.load.load import LoadError
    from spark_bridge.output.storage import StorageError
    from spark_bridge.reading.network import ClusterError
    from spark_bridge.reading.range_cursor import DataLoss
    from spark_bridge.reading.range_fetch import ReadFailed
    from spark_bridge.replay.receipt import ReplayError
    from spark_bridge.selection.manifest import ManifestError
    from spark_bridge.selection.option_table import OptionError
    from spark_bridge.selection.selector import SelectionError

_HOMES = {
    "ClusterError": "spark_bridge.reading.network",
    "DataLoss": "spark_bridge.reading.range_cursor",
    "LoadError": "spark_bridge.load.load",
    "ManifestError": "spark_bridge.selection.manifest",
    "OptionError": "spark_bridge.selection.option_table",
    "ReadFailed": "spark_bridge.reading.range_fetch",
    "ReplayError": "spark_bridge.replay.receipt",
    "SelectionError": "spark_bridge.selection.selector",
    "StorageError": "spark_bridge.output.storage",
}

__all__ = [
    "BadAnswer",
    "BrokerError",
    "ClientError",
    "ClockMovedBackwards",
    "ClusterError",
    "CommitFailed",
    "CoordinationError",
    "CoordinatorUnavailable",
    "CorruptBatch",
    "DataLoss",
    "ErrorCode",
    "Fenced",
    "FlakelogError",
    "GroupRefused",
    "IdError",
    "IdServiceError",
    "IdServiceUnreachable",
    "InvalidCount",
    "InvalidId",
    "InvalidScheme",
    "InvalidSetting",
    "InvalidStart",
    "InvalidTimeRange",
    "InvalidTopics",
    "InvalidUserAgent",
    "LayoutExhausted",
    "LayoutMismatch",
    "LeadExhausted",
    "LoadError",
    "ManifestError",
    "MissingId",
    "MustAbort",
    "NoWorkerNumber",
    "NotAuthenticated",
    "OptionError",
    "ProduceError",
    "ProducerFenced",
    "QueueFull",
    "ReadFailed",
    "ReplayError",
    "SchemeError",
    "SelectionError",
    "SequenceExhausted",
    "StorageError",
    "TooManyCalls",
    "TopicRecreated",
    "TopologyError",
    "TryAgain",
    "Unreachable",
    "Unsupported",
    "WorkerIdsExhausted",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"flakelog.errors has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, without those whose extra is not installed: `help` loads each name."""
    return [name for name in __all__ if name not in _HOMES or find_spec("pyarrow") is not None]
