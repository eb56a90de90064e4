"""Fetch, v4 to v18.

Behaviour: the answer is sent when `min_bytes` are available, when a partition has an error, or after `max_wait_ms`. A
first batch larger than the limits is returned whole (KIP-74). Records leave as regions of the log's files. While a
fetch waits, an append to one of its partitions has only that partition read again. Threads look up old records that are
not in memory, so that other connections do not wait for the disk.
Version notes: v4 and v5 know no KAFKA_STORAGE_ERROR, v4 to v9 no zstd; v7 fetch sessions (KIP-227,
broker.services.fetch_session); v12 a diverging epoch (KIP-595); from v13 topics have ids (KIP-516).
A client over its quota gets no records, and a throttle time (KIP-219).
With the private tag (broker.wire.tags) each partition's answer carries its ids.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TypeAlias
from weakref import ref

from broker.engine.purgatory import Delayed
from broker.log import leader_epochs, log_reader
from broker.log.integrity.verify_job import VerifyJob
from broker.log.io_jobs import ReadJob
from broker.log.leader_epochs import NO_EPOCH
from broker.log.log_reader import EMPTY, LARGE_READ_BYTES
from broker.log.non_blocking_reader import NotCached, NotVerified, look_up
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.now import Now
from broker.record.compression import Codec
from broker.services.context import RequestContext
from broker.services.fetch_session import FetchSession, WantedPartition, wanted, with_news
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION_ID,
    READ_COMMITTED,
    TOPIC_IDS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from broker.wire.frame import FileRegion

STORAGE_ERROR_VERSION = 6
ZSTD_VERSION = 10

Found: TypeAlias = list[tuple[WantedPartition, FetchedPartition]]
Unread: TypeAlias = list[tuple[NotCached, PartitionLog | None, int]]
"""Logs, each with an offset whose place has to be looked up on the disk, or verified, first."""

VERIFIED_ROUNDS = 8
"""Rounds of verification of one request, which mostly needs one, before it waits for the disk in the reactor thread."""


def handle(call: RequestContext, now: Now) -> FetchResponse | Delayed[FetchResponse]:
    """Return the answer, or a Delayed while there are too few records."""
    request: FetchRequest = call.request
    session = None
    if request.session_id != NO_SESSION_ID or request.session_epoch != FINAL_EPOCH:
        try:
            session = call.services.fetch_sessions.resume(request, call.version >= TOPIC_IDS, now)
        except ApiError as error:
            return FetchResponse(error_code=error.code)
    partitions = wanted(request.partitions) if session is None else session.partitions()
    found, enough, unread = _collect(call, session, partitions, False)
    if unread:
        return _LookingUp(call, session, partitions, now.ms + request.max_wait_ms).begin(unread)
    if enough or request.max_wait_ms <= 0:
        return _answer(call, session, found, now)
    return _Waiting(call, session, partitions, found).begin(now.ms + request.max_wait_ms)


# --- now -------------------------------------------------------------------------------------------------------------


def _collect(
    call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition], waits: bool
) -> tuple[Found, bool, Unread]:
    """Return the answer of each partition, True if the request need not wait (enough bytes, an error, or records of an
    older segment), and the places that are not in memory.

    With `waits` the disk is read in this thread, so no place is missing. Partitions of a session that have nothing new
    are left out.
    """
    request: FetchRequest = call.request
    generation = call.services.metadata.generation
    wants_ids, committed = request.wants_ids, request.isolation_level == READ_COMMITTED
    has_rules = request.replica_id >= 0 or call.version < ZSTD_VERSION
    left = _bytes_max(call)
    bytes_min = min(request.min_bytes, left)
    size = 0
    enough = not partitions
    found: Found = []
    unread: Unread = []
    for each in partitions if session is None else with_news(partitions, generation):
        asked = each.asked
        topic, partition, offset, limit, leader_epoch, last_epoch, _ = asked
        diverging = None
        try:
            log = each.log
            if log is None or each.generation != generation:
                log = _find(call, each, generation)
            if leader_epoch != NO_EPOCH:
                log.check_leader_epoch(leader_epoch)
            if has_rules:
                _check(call, log, asked)
            if last_epoch >= 0 and (diverging := _diverging(log, asked)) is not None:
                records, ids, aborted = EMPTY, None, None
            else:
                records, ids, aborted = log_reader.read(
                    log, offset, limit if limit < left else left, not size, wants_ids, committed, waits
                )
        except ApiError as error:
            result = FetchedPartition(topic, partition, _told(call, error.code))
            enough = True
        except NotCached as cold:
            unread.append((cold, each.log, offset))
            continue
        else:
            result = FetchedPartition(
                topic, partition, 0, log.high_watermark, log.last_stable_offset, log.log_start_offset, aborted, records,
                ids, diverging,
            )  # fmt: skip
            if records.__class__ is FileRegion:
                length = records.length
                size += length
                left = left - length if left > length else 0
                # No records will be added to an older segment.
                enough = enough or records.file is not log.segments.active.log
            elif diverging is not None:
                enough = True
        found.append((each, result))
    return found, enough or size >= bytes_min, unread


def _bytes_max(call: RequestContext) -> int:
    most, limit = call.services.config.fetch_max_bytes, call.request.max_bytes
    if limit < most:
        most = limit
    return most if call.meter is None else min(most, call.meter.fetch_max_bytes)  # more could never leave


def _find(call: RequestContext, each: WantedPartition, generation: int) -> PartitionLog:
    """Return the partition's log; a session may know a topic that was deleted since, or made anew (KIP-516)."""
    each.log = None
    try:
        log = call.services.log_of(each.asked.topic, each.asked.partition)
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_ID or each.name is None:
            raise
        if call.services.metadata.topic(each.name) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {each.name} was deleted") from None
        raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {each.name} has another id now") from None
    each.log, each.name, each.generation = log, log.topic, generation
    return log


def _check(call: RequestContext, log: PartitionLog, asked: FetchPartition) -> None:
    replica = call.request.replica_id
    if replica >= 0:  # a partition has no followers; the error is the one that Kafka has for strangers
        named = asked.current_leader_epoch >= 0
        code = ErrorCode.UNKNOWN_LEADER_EPOCH if named else ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise ApiError(code, f"node {replica} is no replica of {log.name}")
    if call.version < ZSTD_VERSION and log.config.compression_type == Codec.ZSTD.name.lower():
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{log.name} is compressed by zstd")


def _told(call: RequestContext, code: ErrorCode) -> ErrorCode:
    if code == ErrorCode.KAFKA_STORAGE_ERROR and call.version < STORAGE_ERROR_VERSION:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # such a client would give up at a code it does not know
    return code


def _diverging(log: PartitionLog, asked: FetchPartition) -> tuple[int, int] | None:
    """Return the end of the epoch that the client read last, if the epoch ended before the fetch offset (KIP-595).

    The client has then read records that the log has lost.
    """
    epoch, end_offset = leader_epochs.end_of(log.epochs, asked.last_fetched_epoch, log.log_end_offset)
    if epoch < 0 or asked.fetch_offset < log.log_start_offset:
        said = f"{log.name}: where epoch {asked.last_fetched_epoch} ended is not known"
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, said)
    diverges = epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset
    return (epoch, end_offset) if diverges else None


def _answer(call: RequestContext, session: FetchSession | None, found: Found, now: Now) -> FetchResponse:
    request = call.request
    size = 0
    for each, result in found:
        records = result.records
        if records.__class__ is FileRegion:
            if records.length >= LARGE_READ_BYTES and each.log is not None:
                # Records cut at a limit end between two batches if possible.
                result.records = records = log_reader.whole_batches(each.log, each.asked.fetch_offset, records)
            size += records.length
    if call.meter is not None and not call.meter.may_fetch(size, now.ms):
        # No session begins, and a session notes nothing as sent, as in Kafka, so the client misses nothing.
        return FetchResponse() if session is None else session.answer(request.session_epoch, [])
    for each, result in found:
        records = result.records
        if result.error_code:
            call.services.metrics.failed_fetch(each.log.topic if each.log is not None else None)
        elif records.__class__ is FileRegion and each.log is not None:
            each.log.bytes_out += records.length
    if session is not None:
        return session.answer(request.session_epoch, found)
    response = FetchResponse([result for _, result in found])
    if request.session_epoch == INITIAL_EPOCH:
        response.session_id = call.services.fetch_sessions.open(found, call.version >= TOPIC_IDS, now)
    return response


# --- from the disk ---------------------------------------------------------------------------------------------------


class _LookingUp:
    """A request for which threads look up or verify places on the disk, of all partitions at the same time."""

    def __init__(
        self,
        call: RequestContext,
        session: FetchSession | None,
        partitions: Sequence[WantedPartition],
        deadline_ms: int,
    ) -> None:
        self._call = call
        self._session = session
        self._partitions = partitions
        self._deadline_ms = deadline_ms
        self._left = 0
        self._rounds = 0
        self._waits = False
        """True if the disk was only asked to verify, so that too few records are waited for afterwards."""
        self._delayed: ref[Delayed[FetchResponse]] | None = None

    def begin(self, unread: Unread) -> Delayed[FetchResponse]:
        # The lookups refer to this request. A reference back would keep files open until the garbage collector runs.
        self._waits = all(isinstance(cold, NotVerified) for cold, _, _ in unread)
        self._add_jobs(unread)
        delayed = Delayed((self,), None, self._once_found, self._answer, self._found_one)
        self._delayed = ref(delayed)
        return delayed

    def _add_jobs(self, unread: Unread) -> None:
        self._left = len(unread)
        self._rounds += 1
        for cold, log, offset in unread:
            if isinstance(cold, NotVerified) and log is not None:
                job: ReadJob = VerifyJob(log, cold.segment, cold.offset, self)
            else:
                job = ReadJob(partial(look_up, cold.segment, offset), self)
            self._call.services.logs.syncs.add_job(job)

    def _found_one(self, _: Hashable) -> None:
        self._left -= 1

    def _once_found(self, now: Now) -> FetchResponse | None:
        if self._left:
            return None
        found, enough, unread = _collect(self._call, self._session, self._partitions, False)
        if not unread:
            delayed = self._delayed() if self._delayed is not None else None
            if enough or not self._waits or self._deadline_ms <= now.ms or delayed is None:
                return _answer(self._call, self._session, found, now)
            waiting = _Waiting(self._call, self._session, self._partitions, found)
            self._call.services.purgatory.wait_on(delayed, waiting.begin(self._deadline_ms))
            return None
        unverified = [each for each in unread if isinstance(each[0], NotVerified)]
        if unverified and self._rounds < VERIFIED_ROUNDS:
            self._add_jobs(unverified)
            return None
        return self._answer(now)

    def _answer(self, now: Now) -> FetchResponse:
        """Return the answer even if it waits for the disk: memory may be too short to keep what a thread has read."""
        return _answer(self._call, self._session, _collect(self._call, self._session, self._partitions, True)[0], now)


# --- later -----------------------------------------------------------------------------------------------------------


class _Waiting:
    """A request that waits for more records, or for its deadline.

    Once it is known where a partition's records begin, they are counted by that place and the log's end.
    """

    def __init__(
        self, call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition], found: Found
    ) -> None:
        self._call = call
        self._session = session
        self._partitions = partitions
        self._committed = call.request.isolation_level == READ_COMMITTED
        self._bytes_min = min(call.request.min_bytes, _bytes_max(call))
        self._by_log = {each.log: each for each in partitions if each.log is not None}
        self._places: dict[PartitionLog, tuple[Segment, int]] = {}
        """The newest segment of a log, and the place in it where the records for the client begin."""
        self._available: dict[PartitionLog, int] = {}
        self._bytes = 0  # their sum
        self._touched: PartitionLog | None = None
        self._note_all(found)

    def begin(self, deadline_ms: int) -> Delayed[FetchResponse]:
        """Wait for each partition's log."""
        return Delayed(self._by_log, deadline_ms, self._try_complete, self._expire, self._touch)

    def _touch(self, log: Hashable) -> None:
        assert isinstance(log, PartitionLog)
        self._touched = log

    def _try_complete(self, now: Now) -> FetchResponse | None:
        log, self._touched = self._touched, None
        if log is None or not self._may_be_enough(log):
            return None  # not touched: nothing has changed since the handler read
        found, enough, _ = _collect(self._call, self._session, self._partitions, True)
        if enough:
            return _answer(self._call, self._session, found, now)
        self._note_all(found)
        return None

    def _expire(self, now: Now) -> FetchResponse:
        return _answer(self._call, self._session, _collect(self._call, self._session, self._partitions, True)[0], now)

    def _note_all(self, found: Found) -> None:
        self._available.clear()
        self._bytes = 0
        for each, result in found:
            if each.log is not None and isinstance(result.records, FileRegion):
                self._note(each.log, result.records)

    def _note(self, log: PartitionLog, records: FileRegion) -> None:
        self._places[log] = log.segments.active, records.position
        self._count(log, records.length)

    def _count(self, log: PartitionLog, size: int) -> None:
        self._bytes += size - self._available.get(log, 0)
        self._available[log] = size

    def _may_be_enough(self, log: PartitionLog) -> bool:
        """Return True if the change of this log may complete the answer, so that all partitions must be collected."""
        asked = self._by_log[log].asked
        if log.offline is not None or asked.current_leader_epoch not in (NO_EPOCH, log.leader_epoch):
            return True
        if asked.fetch_offset < log.log_start_offset:
            return True
        end = log.last_stable_offset if self._committed else log.high_watermark
        if end <= asked.fetch_offset:
            return False
        if log not in self._places or end < log.log_end_offset:  # some records may not be seen yet
            return self._look(log, asked) or self._bytes >= self._bytes_min
        segment, position = self._places[log]
        self._count(log, min(segment.size - position, asked.max_bytes))
        return segment is not log.segments.active or self._bytes >= self._bytes_min

    def _look(self, log: PartitionLog, asked: FetchPartition) -> bool:
        """Count a log's records by reading; return True if the request need not wait any longer."""
        try:
            records = log_reader.read(log, asked.fetch_offset, asked.max_bytes, True, committed=self._committed).records
        except ApiError:
            return True
        if not isinstance(records, FileRegion):
            return False
        self._note(log, records)
        return records.file is not log.segments.active.log
