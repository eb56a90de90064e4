"""SHELL (sockets, a log): reads a range of the log in a Spark task.

This module runs on executors, so neither it nor its imports use Twisted, kazoo, librdkafka or pyspark (a contract in
setup.cfg).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from spark_bridge.reading.arrow_decode import NO_TURN
from spark_bridge.reading.kept_clients import CLIENTS
from spark_bridge.reading.network import Address, ReadClient
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_fetch import RangeFetch
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.skipped import SkippedBatch

_log = logging.getLogger(__name__)


def read_range(
    within: OffsetRange,
    columns: Sequence[str],
    servers: Sequence[Address],
    settings: ReadSettings = ReadSettings(),
    topic_id: str | None = None,
    on_skipped: Callable[[SkippedBatch], object] | None = None,
    on_lost: Callable[[OffsetRange, str], object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all records of `within`, or raise an exception; see RangeFetch. Log the batches that are left out.

    With `settings.fail_on_data_loss` false, missing offsets are passed to `on_lost` with the reason; by default to
    `warn_of_loss`.
    The process keeps the client for its next range.
    """
    with CLIENTS.lend(servers, settings) as client:
        yield from range_of(within, columns, client, settings, topic_id, on_skipped, on_lost)


def range_of(
    within: OffsetRange,
    columns: Sequence[str],
    client: ReadClient,
    settings: ReadSettings,
    topic_id: str | None = None,
    on_skipped: Callable[[SkippedBatch], object] | None = None,
    on_lost: Callable[[OffsetRange, str], object] | None = None,
    large_turn: AbstractContextManager[object] = NO_TURN,
    on_wait: Callable[[str], object] = lambda reason: None,
) -> Iterator[pa.RecordBatch]:
    """Yield as `read_range` does, by a client whose connections stay open. For the last two arguments see RangeFetch.
    """

    def skipped(batch: SkippedBatch) -> None:
        _log.warning("left out %s", batch)
        if on_skipped is not None:
            on_skipped(batch)

    on_lost = on_lost or warn_of_loss
    return RangeFetch(within, columns, client, settings, topic_id, skipped, on_lost, large_turn, on_wait).batches()


def warn_of_loss(within: OffsetRange, reason: str) -> None:
    _log.warning("flakelog: lost %d offsets, %s, because failOnDataLoss=false: %s", within.offsets, within, reason)
