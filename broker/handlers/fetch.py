"""Fetch, v4 to v18.

Behaviour: the answer is sent when `min_bytes` are there, when a partition has an error, or after `max_wait_ms`; a first
batch larger than the limits is returned whole (KIP-74). Records leave as regions of the log's files. While a fetch
waits, an append to one of its partitions has only that one looked at. Old records that are not in memory are looked up
by a thread, so that nobody else waits for the disk.
Version notes: v4 and v5 know no KAFKA_STORAGE_ERROR, v4 to v9 no zstd; v7 fetch sessions (KIP-227,
broker.services.fetch_session); v12 a diverging epoch (KIP-595); from v13 topics have ids (KIP-516).
A client over its quota gets no records, and the time it is to wait (KIP-219).
With the private tag (broker.wire.tags) each partition's answer carries its ids.
"""

from collections.abc import Hashable
from functools import partial

from broker.engine.purgatory import Delayed
from broker.log import leader_epochs
from broker.log.io_jobs import ReadJob
from broker.log.non_blocking_reader import NotCached, look_up
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.now import Now
from broker.record.compression import Codec
from broker.services.context import RequestContext
from broker.services.fetch_session import FetchSession, WantedPartition, wanted
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import INITIAL_EPOCH, READ_COMMITTED, TOPIC_IDS, FetchedPartition, FetchPartition, FetchResponse
from broker.wire.frame import FileRegion

STORAGE_ERROR_VERSION = 6
ZSTD_VERSION = 10

Found = list[tuple[WantedPartition, FetchedPartition]]


def handle(call: RequestContext, now: Now) -> FetchResponse | Delayed[FetchResponse]:
    """What there is, or a Delayed until there is enough."""
    try:
        session = call.services.fetch_sessions.resume(call.request, call.version >= TOPIC_IDS, now)
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    partitions = session.partitions() if session else list(wanted(call.request.partitions).values())
    fetch = _Fetch(call, partitions, session)
    found, enough = fetch.collect()
    if fetch.cold:
        return fetch.look_up()
    if enough or call.request.max_wait_ms <= 0:
        return fetch.answer(found, now)
    return fetch.wait(now.ms + call.request.max_wait_ms)


class _Fetch:
    """One request over the partitions it is about: of a session all that it remembers, else those the request names."""

    def __init__(self, call: RequestContext, partitions: list[WantedPartition], session: FetchSession | None) -> None:
        self._call = call
        self._request = call.request
        self._partitions = partitions
        self._session = session
        self._committed = call.request.isolation_level == READ_COMMITTED
        self._max_bytes = min(call.request.max_bytes, call.services.config.fetch_max_bytes)
        if call.meter is not None:  # more could never leave
            self._max_bytes = min(self._max_bytes, call.meter.fetch_max_bytes)
        self._min_bytes = min(call.request.min_bytes, self._max_bytes)
        self._by_log: dict[PartitionLog, WantedPartition] = {}
        self._places: dict[PartitionLog, tuple[Segment, int]] = {}
        """Where the records of a partition begin, for those that have any."""
        self._available: dict[PartitionLog, int] = {}
        self._bytes = 0  # their sum
        self._touched: PartitionLog | None = None
        self.cold: list[ReadJob] = []
        """What has to be looked for on the disk first."""
        self._left = 0
        """How much of it is still being looked for."""
        self._waits = False
        """Whether the disk is waited for. Only once a thread has read what is there: memory may be too short to keep
        it, and the answer must come all the same."""

    # --- now -----------------------------------------------------------------------------------------------------

    def collect(self) -> tuple[Found, bool]:
        """What there is of each partition, and whether the answer need not wait: enough bytes, or no more to come.

        Partitions of a session that have nothing new are left out.
        """
        generation = self._call.services.metadata.generation
        left = self._max_bytes
        enough = not self._partitions
        found: Found = []
        self._available.clear()
        self._bytes = 0
        for each in self._partitions:
            if self._session is not None and each.has_nothing_new(generation):
                continue
            result = self._read(each, generation, left, first=not self._bytes)
            if isinstance(result.records, FileRegion):
                left = max(left - result.records.length, 0)
                enough = self._note(each, result.records) or enough
            enough = enough or result.error_code != ErrorCode.NONE or result.diverging is not None
            found.append((each, result))
        return found, enough or self._bytes >= self._min_bytes

    def _note(self, each: WantedPartition, records: FileRegion) -> bool:
        """Keep where records were found; True where they are of an older segment, which will not have more."""
        assert each.log is not None
        active = each.log.segments[-1]
        self._places[each.log] = active, records.position
        self._count(each.log, records.length)
        return records.file is not active.log

    def _count(self, log: PartitionLog, size: int) -> None:
        self._bytes += size - self._available.get(log, 0)
        self._available[log] = size

    def _read(self, each: WantedPartition, generation: int, left: int, first: bool) -> FetchedPartition:
        asked = each.asked
        result = FetchedPartition(asked.topic, asked.partition)
        try:
            log = each.log
            if log is None or each.generation != generation:
                log = self._find(each, generation)
            log.check_leader_epoch(asked.current_leader_epoch)
            self._check(log, asked)
            if asked.last_fetched_epoch >= 0:
                result.diverging = _diverging(log, asked)
            if result.diverging is None:
                limit = min(asked.max_bytes, left)
                wants_ids, committed = self._request.wants_ids, self._committed
                read = log.read(asked.fetch_offset, limit, first, wants_ids, committed, self._waits)
                result.records, result.ids, result.aborted = read
        except ApiError as error:
            result.error_code = self._told(error.code)
            return result
        except NotCached as cold:
            self.cold.append(ReadJob(partial(look_up, cold.segment, asked.fetch_offset), self))
            return result
        result.high_watermark = log.high_watermark
        result.last_stable_offset = log.last_stable_offset
        result.log_start_offset = log.log_start_offset
        return result

    def _find(self, each: WantedPartition, generation: int) -> PartitionLog:
        """The partition's log; a session may know a topic that has been deleted since, or made anew (KIP-516)."""
        each.log = None
        try:
            log = self._call.services.log_of(*each.key)
        except ApiError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_ID or each.name is None:
                raise
            if self._call.services.metadata.topic(each.name) is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {each.name} was deleted") from None
            raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {each.name} has another id now") from None
        each.log, each.name, each.generation = log, log.topic, generation
        return log

    def _check(self, log: PartitionLog, asked: FetchPartition) -> None:
        replica = self._request.replica_id
        if replica >= 0:  # no partition has a second replica, so nobody follows; as Kafka tells a stranger
            named = asked.current_leader_epoch >= 0
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if named else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise ApiError(code, f"node {replica} is no replica of {log.name}")
        if self._call.version < ZSTD_VERSION and log.config.compression_type == Codec.ZSTD.name.lower():
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{log.name} is compressed by zstd")

    def _told(self, code: ErrorCode) -> ErrorCode:
        if code == ErrorCode.KAFKA_STORAGE_ERROR and self._call.version < STORAGE_ERROR_VERSION:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # such a client would give up at a code it does not know
        return code

    def answer(self, found: Found, now: Now) -> FetchResponse:
        self._cut(found)
        meter = self._call.meter
        if meter is not None and not meter.may_fetch(sum(result.size for _, result in found), now.ms):
            # As Kafka's: no session is begun, and one that goes on is told nothing, so that nothing is passed over.
            return FetchResponse() if self._session is None else self._session.answer(self._request.session_epoch, [])
        self._count_out(found)
        request = self._request
        if self._session is not None:
            return self._session.answer(request.session_epoch, found)
        response = FetchResponse([result for _, result in found])
        if request.session_epoch == INITIAL_EPOCH:
            by_id = self._call.version >= TOPIC_IDS
            response.session_id = self._call.services.fetch_sessions.open(found, by_id, now)
        return response

    @staticmethod
    def _cut(found: Found) -> None:
        """Once it is known that there is enough: what ends at a limit ends between two batches, where it can."""
        for each, result in found:
            if each.log is not None and isinstance(result.records, FileRegion):
                result.records = each.log.whole_batches(each.asked.fetch_offset, result.records)

    def _count_out(self, found: Found) -> None:
        for each, result in found:
            if result.error_code:
                self._call.services.metrics.failed_fetch(each.log.topic if each.log is not None else None)
            elif each.log is not None and isinstance(result.records, FileRegion):
                each.log.bytes_out += result.records.length

    # --- from the disk -------------------------------------------------------------------------------------------

    def look_up(self) -> Delayed[FetchResponse]:
        """Have threads look for what is not in memory, of all partitions at once; then answer with what there is."""
        self._waits = True
        # They point here: what would point back at them would keep the files open until the collector came by.
        cold, self.cold = self.cold, []
        self._left = len(cold)
        for each in cold:
            self._call.services.logs.syncs.add_job(each)
        return Delayed((self,), None, self._once_found, self._expire, self._found_one)

    def _found_one(self, _: Hashable) -> None:
        self._left -= 1

    def _once_found(self, now: Now) -> FetchResponse | None:
        return None if self._left else self._expire(now)

    # --- later ---------------------------------------------------------------------------------------------------

    def wait(self, deadline_ms: int) -> Delayed[FetchResponse]:
        """Wait for each partition's log."""
        self._waits = True
        self._by_log = {each.log: each for each in self._partitions if each.log is not None}
        return Delayed(self._by_log, deadline_ms, self._try_complete, self._expire, self._touch)

    def _touch(self, log: Hashable) -> None:
        assert isinstance(log, PartitionLog)
        self._touched = log

    def _try_complete(self, now: Now) -> FetchResponse | None:
        log, self._touched = self._touched, None
        if log is None or not self._may_be_enough(log):
            return None  # not touched: nothing has happened since the handler looked
        found, enough = self.collect()
        return self.answer(found, now) if enough else None

    def _expire(self, now: Now) -> FetchResponse:
        return self.answer(self.collect()[0], now)

    def _may_be_enough(self, log: PartitionLog) -> bool:
        """Something happened to this log: whether to collect. Once it is known where its records begin they are
        counted by that place and the log's end, unless some of them may not be seen yet."""
        each = self._by_log[log]
        asked = each.asked
        if log.offline is not None or asked.current_leader_epoch not in (-1, log.leader_epoch):
            return True
        if asked.fetch_offset < log.log_start_offset:
            return True
        end = self._end(log)
        if end <= asked.fetch_offset:
            return False
        if log not in self._places or end < log.log_end_offset:
            return self._look(each, log) or self._bytes >= self._min_bytes
        segment, position = self._places[log]
        self._count(log, min(segment.size - position, asked.max_bytes))
        return segment is not log.segments[-1] or self._bytes >= self._min_bytes

    def _look(self, each: WantedPartition, log: PartitionLog) -> bool:
        """Count by reading; True where there is nothing to wait for."""
        try:
            asked = each.asked
            records = log.read(asked.fetch_offset, asked.max_bytes, True, committed=self._committed).records
        except ApiError:
            return True
        return isinstance(records, FileRegion) and self._note(each, records)

    def _end(self, log: PartitionLog) -> int:
        return log.last_stable_offset if self._committed else log.high_watermark


def _diverging(log: PartitionLog, asked: FetchPartition) -> tuple[int, int] | None:
    """Where the reader's last epoch ended, if that is before what it wants next: it has read what is there no more."""
    epoch, end_offset = leader_epochs.end_of(log.epochs, asked.last_fetched_epoch, log.log_end_offset)
    if epoch < 0 or asked.fetch_offset < log.log_start_offset:
        said = f"{log.name}: where epoch {asked.last_fetched_epoch} ended is not known"
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, said)
    diverges = epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset
    return (epoch, end_offset) if diverges else None
