"""ListOffsets, v1 to v11.

Behaviour: the first offset whose timestamp is not below the one asked for; -1 latest, -2 earliest, -3 the offset of the
largest timestamp (KIP-734) of the records that are left, where Kafka may name one that was deleted; -4 earliest local,
-5 latest tiered and -6 earliest not uploaded yet (no tiers here: the earliest, and none). A time is not found where its
record may not be seen yet. What is not in memory, or stands in a batch of very many records, is looked for by a thread,
so that nobody else waits.
Version notes: v2 isolation level (latest is then the last stable offset); v4 leader epochs (KIP-320); -3 is known from
v7 on, -4 from v8, -5 from v9, -6 from v11.
With the private tag (broker.wire.tags) the timestamps are ids: the first offset whose id is not below it; the answer
has the tag too, so that a broker which does not know it is not believed to have read ids.
"""

from collections import Counter
from collections.abc import Hashable
from functools import partial
from typing import Any

from broker.engine.purgatory import Delayed
from broker.log import leader_epochs
from broker.log.io_jobs import ReadJob
from broker.log.non_blocking_reader import WouldBlock
from broker.log.partition_log import PartitionLog
from broker.log.search import BLOCKING, IN_THREAD, NONBLOCKING, ReadMode, Search
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.services.context import RequestContext
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import CONSUMER, READ_COMMITTED
from broker.wire.list_offsets import FoundOffset, ListOffsetsRequest, ListOffsetsResponse, WantedOffset

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
NOT_FOUND = -1, -1  # offset, timestamp
_KNOWN_FROM = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
_NEVER = 1 << 15


def handle(call: RequestContext, now: Now) -> ListOffsetsResponse | Delayed[ListOffsetsResponse]:
    lookup = _ListOffsets(call)
    answer = lookup.answer()
    return lookup.look_aside() if lookup.aside else answer


class _ListOffsets:
    """One request. What cannot be found at once a thread looks for, of all partitions at the same time."""

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        self._request: ListOffsetsRequest = call.request
        self.aside: dict[PartitionLog, ReadJob] = {}
        """What a thread looks for."""
        self._left = 0
        self._mode = NONBLOCKING
        """When a thread has looked the answer must come, however long it takes."""

    def answer(self) -> ListOffsetsResponse:
        wanted = self._request.partitions
        asked = Counter((each.topic, each.partition) for each in wanted)
        answers = [self._answer(each, asked[each.topic, each.partition] > 1) for each in wanted]
        return ListOffsetsResponse(answers, self._request.by_id)

    def _answer(self, each: WantedOffset, twice: bool) -> FoundOffset:
        try:
            if twice:
                said = f"{each.topic}-{each.partition} stands in the request more than once"
                raise ApiError(ErrorCode.INVALID_REQUEST, said)
            log = self._call.services.log_of(each.topic, each.partition)
            log.check_leader_epoch(each.current_leader_epoch)
            offset, timestamp = self._find(log, each.timestamp)
        except ApiError as error:
            return FoundOffset(each.topic, each.partition, error.code)
        return FoundOffset(each.topic, each.partition, 0, timestamp, offset, epoch_of(log, each.timestamp, offset))

    def _find(self, log: PartitionLog, wanted: int) -> tuple[int, int]:
        """(offset, timestamp): what a thread has found, if the log has it still, or what can be found now."""
        aside = self.aside.get(log)
        if aside is not None and aside.is_done:
            offset, timestamp = self._seen(log, aside.found)
            if offset < 0 or offset >= log.log_start_offset:
                return offset, timestamp
        try:
            if self._request.by_id:
                return log.offset_of_id(wanted, self._mode), -1
            return find(self._request, self._call.version, log, wanted, self._mode)
        except WouldBlock:
            self.aside[log] = ReadJob(partial(_search_aside, log.search(), wanted, self._request.by_id), self)
            return NOT_FOUND

    def _seen(self, log: PartitionLog, found: Any) -> tuple[int, int]:
        """What a thread has found, as far as who asks may see it."""
        return (log.bounded(found), -1) if self._request.by_id else _visible(self._request, log, found)

    # --- later ---------------------------------------------------------------------------------------------------

    def look_aside(self) -> Delayed[ListOffsetsResponse]:
        self._mode = BLOCKING
        self._left = len(self.aside)
        for each in self.aside.values():
            self._call.services.logs.syncs.add_job(each)
        return Delayed((self,), None, self._once_found, lambda now: self.answer(), self._found_one)

    def _found_one(self, _: Hashable) -> None:
        self._left -= 1

    def _once_found(self, now: Now) -> ListOffsetsResponse | None:
        return None if self._left else self.answer()


def _search_aside(search: Search, wanted: int, by_id: bool) -> object:
    """For a thread."""
    if by_id:
        return search.of_id(wanted, IN_THREAD)
    return search.of_newest(IN_THREAD)[0] if wanted == MAX_TIMESTAMP else search.of_time(wanted, IN_THREAD)


def epoch_of(log: PartitionLog, timestamp: int, offset: int) -> int:
    """The leader epoch an answer names: in which what was found was written, of the log's end the one that is on."""
    if offset < 0:
        return leader_epochs.NO_EPOCH
    return log.leader_epoch if timestamp == LATEST else leader_epochs.epoch_of(log.epochs, offset)


def find(
    request: ListOffsetsRequest, version: int, log: PartitionLog, timestamp: int, mode: ReadMode = NONBLOCKING
) -> tuple[int, int]:
    """(offset, timestamp) of what is asked for; ApiError, WouldBlock."""
    if timestamp < 0 and version < _KNOWN_FROM.get(timestamp, _NEVER):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} means nothing in v{version}")
    if timestamp == LATEST:
        return _end(request, log), -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return NOT_FOUND
    try:
        found = log.offset_of_newest(mode) if timestamp == MAX_TIMESTAMP else log.offset_of_time(timestamp, mode)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{log.name}: {error}") from None
    return _visible(request, log, found)


def _visible(request: ListOffsetsRequest, log: PartitionLog, found: tuple[int, int] | None) -> tuple[int, int]:
    return found if found is not None and found[0] < _end(request, log) else NOT_FOUND


def _end(request: ListOffsetsRequest, log: PartitionLog) -> int:
    """The offset after the last that who asks may see."""
    if request.replica_id != CONSUMER:
        return log.log_end_offset
    return log.last_stable_offset if request.isolation_level == READ_COMMITTED else log.high_watermark
