"""ListOffsets, v1 to v11.

Behaviour: the first offset whose timestamp is not below the requested one; -1 latest, -2 earliest, -3 the offset of the
largest timestamp (KIP-734) of the records that exist, where Kafka may name a deleted one; -4 earliest local, -5 latest
tiered and -6 earliest not uploaded yet (no tiers here: the earliest, and none). A time is not found if the client may
not see its record yet. Threads search places that are not in memory and batches of very many records, so that other
connections do not wait. A request for many partitions is executed in slices (broker.channel.partition_budget).
A consumer sees offsets below the high watermark, a follower the log's end. While a new leader does not know the high
watermark the error is OFFSET_NOT_AVAILABLE (KIP-207).
Version notes: v2 isolation level (latest is then the last stable offset); v4 leader epochs (KIP-320); v5
OFFSET_NOT_AVAILABLE; -3 is known from
v7 on, -4 from v8, -5 from v9, -6 from v11.
With the private tag (broker.wire.tags) the timestamps are ids: the first offset whose id is not below it; the answer
has the tag too, because a broker that does not know the tag would have read the ids as timestamps.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

from broker.channel.partition_budget import FEW_PARTITIONS, PARTITIONS_AT_ONCE
from broker.log import leader_epochs, log_reader
from broker.log.io_jobs import ReadJob
from broker.log.non_blocking_reader import WouldBlock
from broker.log.partition_log import PartitionLog
from broker.log.search import BLOCKING, IN_THREAD, NONBLOCKING, ReadMode, Search
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.replication.partition import Partition
from broker.security.authorization.acl import Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED
from broker.services.context import RequestContext
from broker.steps import Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import CONSUMER, READ_COMMITTED
from broker.wire.list_offsets import FoundOffset, ListOffsetsRequest, ListOffsetsResponse, WantedOffset

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
NOT_FOUND = -1, -1  # offset, timestamp
OFFSET_NOT_AVAILABLE_VERSION = 5
_KNOWN_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
_NEVER = 1 << 15
_log_end_offset = attrgetter("log_end_offset")
_high_watermark = attrgetter("high_watermark")
_last_stable_offset = attrgetter("last_stable_offset")
_record = tuple.__new__  # as FoundOffset(...), at half its price
Answer: TypeAlias = ListOffsetsResponse | Delayed[Any]
"""The answer, or what it waits for."""
NOTHING_SEARCHED: Mapping[PartitionLog, ReadJob] = {}


def handle(
    call: RequestContext,
    now: Now,
    mode: ReadMode = NONBLOCKING,
    searched: Mapping[PartitionLog, ReadJob] = NOTHING_SEARCHED,
) -> Answer | Steps[Answer]:
    """Return the offsets, or a Delayed if some cannot be searched in this mode, so that threads have to do it.

    Work in slices if there are many partitions. `searched` has what threads have found.
    """
    wanted = call.request.partitions
    budget, number = call.services.partition_budget, len(wanted)
    # A request that threads have searched for is no new one.
    if budget.is_too_small(number) and (number > FEW_PARTITIONS or searched is not NOTHING_SEARCHED):
        return _handle_in_steps(call, mode, searched)
    budget.left -= number
    offsets: list[FoundOffset] = []
    unread: list[tuple[PartitionLog, int]] = []
    _find_offsets(call, wanted, _repeated(wanted) if number > 1 else (), mode, searched, offsets, unread)
    return _Aside(call, unread).search() if unread else _record(ListOffsetsResponse, (offsets, call.request.by_id))


def _handle_in_steps(call: RequestContext, mode: ReadMode, searched: Mapping[PartitionLog, ReadJob]) -> Steps[Answer]:
    """Find the offsets in slices. The first slice finds only the repeated partitions."""
    wanted, budget = call.request.partitions, call.services.partition_budget
    offsets: list[FoundOffset] = []
    unread: list[tuple[PartitionLog, int]] = []
    repeated = _repeated(wanted)
    for begin in range(0, len(wanted), PARTITIONS_AT_ONCE):
        yield
        part = wanted[begin : begin + PARTITIONS_AT_ONCE]
        budget.left -= len(part)
        _find_offsets(call, part, repeated, mode, searched, offsets, unread)
    return _Aside(call, unread).search() if unread else ListOffsetsResponse(offsets, call.request.by_id)


def _find_offsets(
    call: RequestContext,
    wanted: Iterable[WantedOffset],
    repeated: Collection[tuple[str, int]],
    mode: ReadMode,
    searched: Mapping[PartitionLog, ReadJob],
    offsets: list[FoundOffset],
    unread: list[tuple[PartitionLog, int]],
) -> None:
    """Add the offset of each partition to `offsets`, or its log to `unread`."""
    replica_id, isolation_level, _, by_id = call.request
    log_of, end_of = call.services.log_of, _end_for(replica_id, isolation_level)
    replication, rights = call.services.replication, call.rights
    for topic, partition, timestamp, leader_epoch in wanted:
        try:
            if rights is not None and not rights.may(Operation.DESCRIBE, ResourceType.TOPIC, topic):
                raise AUTHORIZATION_FAILED[ResourceType.TOPIC]
            if repeated and (topic, partition) in repeated:
                reason = f"{topic}-{partition} stands in the request more than once"
                raise ApiError(ErrorCode.INVALID_REQUEST, reason)
            log = log_of(topic, partition)
            if leader_epoch != leader_epochs.NO_EPOCH:
                log.check_leader_epoch(leader_epoch)
            if timestamp == LATEST and not by_id:
                offset, found_ms, epoch = end_of(log), -1, log.leader_epoch
            else:
                offset, found_ms = _find(call, log, timestamp, mode, searched.get(log))
                epoch = _epoch_of(log, timestamp, offset)
            if replication is not None and replica_id == CONSUMER:
                _check_known(replication.partition_of(log), timestamp, offset, call)
        except ApiError as error:
            offsets.append(FoundOffset(topic, partition, error.code))
        except WouldBlock:
            unread.append((log, timestamp))
        else:
            offsets.append(_record(FoundOffset, (topic, partition, 0, found_ms, offset, epoch)))


def _check_known(partition: Partition | None, timestamp: int, offset: int, call: RequestContext) -> None:
    """Raise ApiError OFFSET_NOT_AVAILABLE if a new leader does not know yet whether an offset is right (KIP-207).

    That is so for the latest offset, and for a time or an id that it does not find among the records that it knows to
    be committed. Older clients do not know that error. As in Kafka they get LEADER_NOT_AVAILABLE.
    """
    if partition is None or partition.knows_high_watermark:
        return
    if not call.request.by_id and timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING):
        return
    if timestamp != LATEST and 0 <= offset < partition.log.high_watermark:
        return
    is_known = call.version >= OFFSET_NOT_AVAILABLE_VERSION
    code = ErrorCode.OFFSET_NOT_AVAILABLE if is_known else ErrorCode.LEADER_NOT_AVAILABLE
    raise ApiError(code, f"{partition.log.name}: its new leader does not know yet what is committed")


def _repeated(wanted: Iterable[WantedOffset]) -> Collection[tuple[str, int]]:
    """Return the partitions that a request names more than once."""
    times = Counter((partition.topic, partition.partition) for partition in wanted)
    return [key for key, number in times.items() if number > 1]


class _Aside:
    """A request for which threads search logs, all at the same time."""

    def __init__(self, call: RequestContext, unread: Iterable[tuple[PartitionLog, int]]) -> None:
        self._call = call
        by_id = call.request.by_id
        self._searches = {
            log: ReadJob(partial(_search_aside, log_reader.search(log), wanted, by_id), self) for log, wanted in unread
        }
        self._searches_left = len(self._searches)

    def search(self) -> Delayed[Any]:
        for search in self._searches.values():
            self._call.services.logs.syncs.add_job(search)
        size = len(self._call.request.partitions)
        return Delayed((self,), None, self._once_found, self._answer, self._found_one, size=size)

    def _found_one(self, _: Hashable) -> None:
        self._searches_left -= 1

    def _once_found(self, now: Now) -> Answer | Steps[Answer] | None:
        return None if self._searches_left else self._answer(now)

    def _answer(self, now: Now) -> Answer | Steps[Answer]:
        """Return the answer, however long it takes, because threads have searched."""
        return handle(self._call, now, BLOCKING, self._searches)


def _search_aside(search: Search, wanted: int, by_id: bool) -> object:
    """Search a log in a worker thread."""
    if by_id:
        return search.of_id(wanted, IN_THREAD)
    return search.of_newest(IN_THREAD)[0] if wanted == MAX_TIMESTAMP else search.of_time(wanted, IN_THREAD)


def _epoch_of(log: PartitionLog, timestamp: int, offset: int) -> int:
    """Return the leader epoch in which the record at `offset` was written; for the log's end the current one."""
    if offset < 0:
        return leader_epochs.NO_EPOCH
    return log.leader_epoch if timestamp == LATEST else leader_epochs.epoch_of(log.epochs, offset)


def _find(
    call: RequestContext, log: PartitionLog, wanted: int, mode: ReadMode, searched: ReadJob | None
) -> tuple[int, int]:
    """Return the (offset, timestamp) that a thread has found, if the log still has that offset; else search now.

    Raise ApiError, or WouldBlock.
    """
    request = call.request
    if searched is not None and searched.is_done:
        offset, found_ms = _seen(request, log, searched.result)
        if offset < 0 or offset >= log.log_start_offset:
            return offset, found_ms
    if request.by_id:
        return log_reader.offset_of_id(log, wanted, mode), -1
    if wanted < 0 and call.version < _KNOWN_FROM.get(wanted, _NEVER):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {wanted} means nothing in v{call.version}")
    if wanted == EARLIEST or wanted == EARLIEST_LOCAL:
        return log.log_start_offset, -1
    if wanted == LATEST_TIERED or wanted == EARLIEST_PENDING:
        return NOT_FOUND
    try:
        if wanted == MAX_TIMESTAMP:
            newest = log_reader.offset_of_newest(log, mode)
        else:
            newest = log_reader.offset_of_time(log, wanted, mode)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{log.name}: {error}") from None
    return _visible(request, log, newest)


def _seen(request: ListOffsetsRequest, log: PartitionLog, newest: Any) -> tuple[int, int]:
    """Return the result of a thread's search, bounded by the offsets that the client may see."""
    return (log_reader.bounded(log, newest), -1) if request.by_id else _visible(request, log, newest)


def _visible(
    request: ListOffsetsRequest, log: PartitionLog, offset_and_time: tuple[int, int] | None
) -> tuple[int, int]:
    end = _end_for(request.replica_id, request.isolation_level)(log)
    return offset_and_time if offset_and_time is not None and offset_and_time[0] < end else NOT_FOUND


def _end_for(replica_id: int, isolation_level: int) -> Callable[[PartitionLog], int]:
    """Return a function from a log to the offset after the last one that the client may see."""
    if replica_id != CONSUMER:
        return _log_end_offset
    return _last_stable_offset if isolation_level == READ_COMMITTED else _high_watermark
