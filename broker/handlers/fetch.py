"""Fetch, v4 to v18.

Behaviour: the answer is sent when `min_bytes` are available, when a partition has an error, or after `max_wait_ms`. A
first batch larger than the limits is returned whole (KIP-74). Records leave as regions of the log's files. While a
fetch waits, an append to one of its partitions has only that partition read again. Threads look up old records that are
not in memory, so that other connections do not wait for the disk.
A request for many partitions reads them in slices (broker.channel.partition_budget). Each partition is right at the
time it was read; limits, session and quota count the request as a whole.
Version notes: v4 and v5 know no KAFKA_STORAGE_ERROR, v4 to v9 no zstd; v7 fetch sessions (KIP-227,
broker.services.fetch_session); v12 a diverging epoch (KIP-595); from v13 topics have ids (KIP-516).
A client over its quota gets no records, and a throttle time (KIP-219).
With the private tag (broker.wire.tags) each partition's answer carries its ids.
A follower fetches over the listener of brokers: up to the log's end, past the limits of clients. The offset that it
asks for tells what it has, and may move the high watermark. A fetch in its session costs what changed
(broker.services.follower_session).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

from broker.channel.partition_budget import FEW_PARTITIONS, PARTITIONS_AT_ONCE
from broker.log import log_reader
from broker.log.integrity.verify_job import VerifyJob
from broker.log.io_jobs import ReadJob
from broker.log.leader_epochs import NO_EPOCH
from broker.log.log_reader import LARGE_READ_BYTES
from broker.log.non_blocking_reader import NotVerified, look_up
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.now import Now
from broker.security.authorization.acl import Operation
from broker.services.context import RequestContext
from broker.services.fetch_reading import Results, SoFar, Unread, bytes_max, collect, denied, note_fetches
from broker.services.fetch_session import FetchSession, WantedPartition, next_epoch, wanted
from broker.services.follower_session import FollowerSession
from broker.steps import Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError
from broker.wire.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION_ID,
    READ_COMMITTED,
    TOPIC_IDS,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from broker.wire.frame import FileRegion

Answer: TypeAlias = FetchResponse | Delayed[Any]
"""The answer, or what it waits for."""
VERIFIED_ROUNDS = 8
"""Rounds of verification of one request, which mostly needs one, before it waits for the disk in the reactor thread."""


def handle(call: RequestContext, now: Now) -> Answer | Steps[Answer]:
    """Return the answer, or a Delayed while there are too few records; in slices if there are many partitions."""
    request: FetchRequest = call.request
    if request.replica_id >= 0 and call.rights is not None:
        if not call.rights.may_on_cluster(Operation.CLUSTER_ACTION):  # it touches no session, and tells of no offset
            return FetchResponse([denied(wanted) for wanted in request.partitions])
    session = None
    if request.session_id != NO_SESSION_ID or request.session_epoch != FINAL_EPOCH:
        try:
            session = call.services.fetch_sessions.resume(request, call.version >= TOPIC_IDS, now, call.listener)
        except ApiError as error:
            return FetchResponse(error_code=error.code)
    partitions = wanted(request.partitions) if session is None else session.to_read(call.services.hosted.generation)
    budget, number = call.services.partition_budget, len(partitions)
    if number > FEW_PARTITIONS and budget.is_too_small(number):
        return _handle_in_steps(call, session, partitions, now.ms + request.max_wait_ms)
    budget.left -= number
    if request.replica_id >= 0:
        sound = note_fetches(call, session, partitions, now)
        generation = call.services.hosted.generation
        if sound and isinstance(session, FollowerSession) and session.may_wait(partitions, generation):
            return _waiting(call, session, partitions, []).begin(now.ms + request.max_wait_ms)
    results, enough, unread = collect(call, session, partitions, False)
    if unread:
        return _LookingUp(call, session, partitions, now.ms + request.max_wait_ms).begin(unread)
    if enough or request.max_wait_ms <= 0:
        return _answer(call, session, results, now)
    return _waiting(call, session, partitions, results).begin(now.ms + request.max_wait_ms)


def _handle_in_steps(
    call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition], deadline_ms: int
) -> Steps[Answer]:
    now = yield  # the turn has no room even for the first slice
    if call.request.replica_id >= 0:
        for begin in range(0, len(partitions), PARTITIONS_AT_ONCE):
            part = partitions[begin : begin + PARTITIONS_AT_ONCE]
            call.services.partition_budget.left -= len(part)
            note_fetches(call, session, part, now)
            now = yield
    answer = yield from _read_in_steps(call, session, partitions, deadline_ms, False, now)
    return answer


def _read_in_steps(
    call: RequestContext,
    session: FetchSession | None,
    partitions: Sequence[WantedPartition],
    deadline_ms: int,
    waits: bool,
    now: Now,
) -> Steps[Answer]:
    """Read the partitions in slices. Return the answer, or a Delayed while there are too few records."""
    while True:
        results, enough, unread, now = yield from _collect_in_steps(call, session, partitions, waits, now)
        if unread:
            return _LookingUp(call, session, partitions, deadline_ms).begin(unread)
        if enough or deadline_ms <= now.ms:
            return _answer_slices(call, session, results, now)
        waiting = _waiting(call, session, partitions, results)
        if not waiting.may_be_enough():
            return waiting.begin(deadline_ms)
        partitions = _again(call, session, partitions)


def _collect_in_steps(
    call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition], waits: bool, now: Now
) -> Steps[tuple[Results, bool, Unread, Now]]:
    """Collect the partitions in slices. Return the results and the time, with a slice left for many answers."""
    budget = call.services.partition_budget
    so_far = SoFar(call)
    results: Results = []
    unread: Unread = []
    enough = not partitions
    for begin in range(0, len(partitions), PARTITIONS_AT_ONCE):
        if begin:
            now = yield
        part = partitions[begin : begin + PARTITIONS_AT_ONCE]
        budget.left -= len(part)
        part_found, part_enough, part_unread = collect(call, session, part, waits, so_far)
        results += part_found
        unread += part_unread
        enough = enough or part_enough
    if len(partitions) > PARTITIONS_AT_ONCE:
        now = yield
    return results, enough, unread, now


# --- now -------------------------------------------------------------------------------------------------------------


def _answer(call: RequestContext, session: FetchSession | None, results: Results, now: Now) -> FetchResponse:
    request = call.request
    size = 0
    for partition, result in results:
        records = result.records
        if records.__class__ is FileRegion:
            if records.length >= LARGE_READ_BYTES and partition.log is not None:
                # Records cut at a limit end between two batches if possible.
                result.records = records = log_reader.whole_batches(
                    partition.log, partition.requested.fetch_offset, records
                )
            size += records.length
        else:
            size += len(records)
    if call.meter is not None and not call.meter.may_fetch(size, now.ms):
        # No session begins, and a session notes nothing as sent, as in Kafka, so the client misses nothing.
        return FetchResponse() if session is None else session.answer(request.session_epoch, [])
    is_follower = request.replica_id >= 0
    for partition, result in results:
        records = result.records
        if result.error_code:
            call.services.metrics.failed_fetch(partition.log.topic if partition.log is not None else None)
        elif partition.log is not None:
            if is_follower:
                partition.log.bytes_replicated += result.size
            elif records.__class__ is FileRegion:
                partition.log.bytes_out += records.length
    if session is not None:
        return session.answer(request.session_epoch, results)
    response = FetchResponse([result for _, result in results])
    if request.session_epoch == INITIAL_EPOCH:
        sessions = call.services.fetch_sessions
        owner = sessions.owner_of(request, call.listener)
        response.session_id = sessions.open(results, call.version >= TOPIC_IDS, now, owner)
    return response


def _answer_slices(call: RequestContext, session: FetchSession | None, results: Results, now: Now) -> FetchResponse:
    """Return the answer of a request that was read in slices, if no other request of its session came meanwhile."""
    epoch = call.request.session_epoch
    if session is not None and session.epoch != next_epoch(epoch):
        return session.answer(epoch, [])  # refused; the other request may have changed what is asked
    return _answer(call, session, results, now)


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
        self._lookups_left = 0
        self._rounds = 0
        self._waits = False
        """True if the disk was only asked to verify, so that too few records are waited for afterwards."""
        self._delayed: ref[Delayed[Any]] | None = None

    def begin(self, unread: Unread) -> Delayed[Any]:
        # The lookups refer to this request. A reference back would keep files open until the garbage collector runs.
        self._waits = all(isinstance(cold, NotVerified) for cold, _, _ in unread)
        self._add_jobs(unread)
        delayed = self._wait()
        self._delayed = ref(delayed)
        return delayed

    def _wait(self) -> Delayed[Any]:
        return Delayed((self,), None, self._once_found, self._answer, self._found_one, size=len(self._partitions))

    def _add_jobs(self, unread: Unread) -> None:
        self._lookups_left = len(unread)
        self._rounds += 1
        for cold, log, offset in unread:
            if isinstance(cold, NotVerified) and log is not None:
                job: ReadJob = VerifyJob(log, cold.segment, cold.offset, self)
            else:
                job = ReadJob(partial(look_up, cold.segment, offset), self)
            self._call.services.logs.syncs.add_job(job)

    def _found_one(self, _: Hashable) -> None:
        self._lookups_left -= 1

    def _once_found(self, now: Now) -> FetchResponse | Steps[Answer] | None:
        if self._lookups_left:
            return None
        self._partitions = _again(self._call, self._session, self._partitions)
        budget, number = self._call.services.partition_budget, len(self._partitions)
        if budget.is_too_small(number):
            return self._once_found_in_steps(now)
        budget.left -= number
        results, enough, unread = collect(self._call, self._session, self._partitions, False)
        if not unread:
            delayed = self._delayed() if self._delayed is not None else None
            if enough or not self._waits or self._deadline_ms <= now.ms or delayed is None:
                return _answer(self._call, self._session, results, now)
            waiting = _waiting(self._call, self._session, self._partitions, results)
            self._call.services.purgatory.wait_on(delayed, waiting.begin(self._deadline_ms))
            return None
        return None if self._verifies(unread) else self._answer(now)

    def _verifies(self, unread: Unread) -> bool:
        """Return True if threads verify more places now."""
        unverified = [region for region in unread if isinstance(region[0], NotVerified)]
        if not unverified or self._rounds >= VERIFIED_ROUNDS:
            return False
        self._add_jobs(unverified)
        return True

    def _once_found_in_steps(self, now: Now) -> Steps[Answer]:
        call, session, partitions = self._call, self._session, self._partitions
        results, enough, unread, now = yield from _collect_in_steps(call, session, partitions, False, now)
        if unread and self._verifies(unread):
            return self._wait()
        if not unread and (enough or not self._waits or self._deadline_ms <= now.ms):
            return _answer_slices(call, session, results, now)
        if unread:
            answer: Answer = yield from _answer_in_steps(call, session, partitions, now)
        else:
            answer = yield from _read_in_steps(call, session, partitions, self._deadline_ms, True, now)
        return answer

    def _answer(self, now: Now) -> FetchResponse | Steps[Answer]:
        """Return the answer even if it waits for the disk: memory may be too short to keep what a thread has read."""
        return _answer_with_all(self._call, self._session, self._partitions, now)


def _answer_with_all(
    call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition], now: Now
) -> FetchResponse | Steps[Answer]:
    """Return the answer with the records there are, even if it waits for the disk; in slices if it takes many."""
    partitions = _again(call, session, partitions)
    budget, number = call.services.partition_budget, len(partitions)
    if budget.is_too_small(number):
        return _answer_in_steps(call, session, partitions, now)
    budget.left -= number
    return _answer(call, session, collect(call, session, partitions, True)[0], now)


def _answer_in_steps(
    call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition], now: Now
) -> Steps[Answer]:
    results, _, _, now = yield from _collect_in_steps(call, session, partitions, True, now)
    return _answer(call, session, results, now)


# --- later -----------------------------------------------------------------------------------------------------------


class _Waiting:
    """A request that waits for more records, or for its deadline.

    Once it is known where a partition's records begin, they are counted by that place and the log's end.
    """

    def __init__(
        self,
        call: RequestContext,
        session: FetchSession | None,
        partitions: Sequence[WantedPartition],
        results: Results,
    ) -> None:
        self._call = call
        self._session = session
        self._partitions = partitions
        self._is_follower = call.request.replica_id >= 0
        self._committed = call.request.isolation_level == READ_COMMITTED
        self._bytes_min = min(call.request.min_bytes, bytes_max(call))
        self._by_log = self._partitions_by_log()
        self._positions: dict[PartitionLog, tuple[Segment, int]] = {}
        """The newest segment of a log, and the position in it where the records for the client begin."""
        self._available: dict[PartitionLog, int] = {}
        self._bytes = 0  # their sum
        self._touched: PartitionLog | None = None
        self._deadline_ms = 0
        self._note_all(results)

    def _partitions_by_log(self) -> Mapping[PartitionLog, WantedPartition]:
        return {partition.log: partition for partition in self._partitions if partition.log is not None}

    def begin(self, deadline_ms: int) -> Delayed[Any]:
        """Wait for each partition's log."""
        self._deadline_ms = deadline_ms
        size = len(self._partitions)
        return Delayed(self._keys(), deadline_ms, self._try_complete, self._expire, self._touch, size=size)

    def _keys(self) -> Iterable[Hashable]:
        return self._by_log

    def may_be_enough(self) -> bool:
        """Return True if a log that changed after it was read may complete the answer."""
        return any(
            self._may_be_enough(log)
            for log, partition in self._by_log.items()
            if self._has_changed(log, partition.requested)
        )

    def _end_of(self, log: PartitionLog) -> int:
        """Return the end of the offsets that the request sees: a follower's see the log up to its end."""
        if self._is_follower:
            return log.log_end_offset
        return log.last_stable_offset if self._committed else log.high_watermark

    def _has_changed(self, log: PartitionLog, requested: FetchPartition) -> bool:
        """Return True if a log may have something for a client that was at its end."""
        return (
            (log.log_end_offset if self._is_follower else log.high_watermark) > requested.fetch_offset
            or log.offline is not None
            or log.log_start_offset > requested.fetch_offset
            or requested.current_leader_epoch not in (NO_EPOCH, log.leader_epoch)
        )

    def _touch(self, log: Hashable) -> None:
        assert isinstance(log, PartitionLog)
        self._touched = log

    def _try_complete(self, now: Now) -> FetchResponse | Steps[Answer] | None:
        if not self._is_touched():
            return None  # nothing has changed since the handler read
        call, session = self._call, self._session
        partitions = self._partitions = _again(call, session, self._partitions)
        budget, number = call.services.partition_budget, len(partitions)
        if budget.is_too_small(number):
            return _read_in_steps(call, session, partitions, self._deadline_ms, True, now)
        budget.left -= number
        results, enough, _ = collect(call, session, partitions, True)
        if enough:
            return _answer(call, session, results, now)
        self._note_all(results)
        return None

    def _is_touched(self) -> bool:
        """Return True if a log that was touched may complete the answer."""
        log, self._touched = self._touched, None
        return log is not None and self._may_be_enough(log)

    def _expire(self, now: Now) -> FetchResponse | Steps[Answer]:
        return _answer_with_all(self._call, self._session, self._partitions, now)

    def _note_all(self, results: Results) -> None:
        self._available.clear()
        self._bytes = 0
        for partition, result in results:
            if partition.log is None:
                continue
            if isinstance(result.records, FileRegion):
                self._note(partition.log, result.records)
            elif result.records:
                self._count(partition.log, result.size)

    def _note(self, log: PartitionLog, records: FileRegion) -> None:
        if records.file is log.segments.active.log:  # between two slices a new segment may have begun
            self._positions[log] = log.segments.active, records.position
        self._count(log, records.length)

    def _count(self, log: PartitionLog, size: int) -> None:
        self._bytes += size - self._available.get(log, 0)
        self._available[log] = size

    def _may_be_enough(self, log: PartitionLog) -> bool:
        """Return True if the change of this log may complete the answer, so that all partitions must be collected."""
        requested = self._by_log[log].requested
        if log.offline is not None or requested.current_leader_epoch not in (NO_EPOCH, log.leader_epoch):
            return True
        if requested.fetch_offset < log.log_start_offset:
            return True
        end = self._end_of(log)
        if end <= requested.fetch_offset:
            return False
        if self._bytes_min <= 1:
            return True
        if log not in self._positions or end < log.log_end_offset:  # some records may not be seen yet
            return self._read(log, requested) or self._bytes >= self._bytes_min
        segment, position = self._positions[log]
        self._count(log, min(segment.size - position, requested.max_bytes))
        return segment is not log.segments.active or self._bytes >= self._bytes_min

    def _read(self, log: PartitionLog, requested: FetchPartition) -> bool:
        """Count a log's records by reading; return True if the request need not wait any longer."""
        try:
            records = log_reader.read(
                log, requested.fetch_offset, requested.max_bytes, True, committed=self._committed,
                upto=log.log_end_offset if self._is_follower else None,
            ).records  # fmt: skip
        except ApiError:
            return True
        if not isinstance(records, FileRegion):
            return False
        self._note(log, records)
        return records.file is not log.segments.active.log


class _WaitingInSession(_Waiting):
    """A follower's request that waits for its session: it counts the logs that the session was touched for."""

    def __init__(
        self,
        call: RequestContext,
        session: FollowerSession,
        partitions: Sequence[WantedPartition],
        results: Results,
    ) -> None:
        self._followed = session
        super().__init__(call, session, partitions, results)

    def _partitions_by_log(self) -> Mapping[PartitionLog, WantedPartition]:
        return self._followed.by_log

    def _keys(self) -> Iterable[Hashable]:
        return (self._followed,)

    def may_be_enough(self) -> bool:
        return self._is_touched()

    def _touch(self, key: Hashable) -> None:
        """Do nothing, because the session knows its logs that were touched."""

    def _is_touched(self) -> bool:
        may_be_enough = False
        for log in self._followed.take_touched():
            may_be_enough = self._may_be_enough(log) or may_be_enough  # each call counts the bytes of a log
        return may_be_enough

    def _expire(self, now: Now) -> FetchResponse | Steps[Answer]:
        self._followed.wait_over()
        return super()._expire(now)


def _waiting(
    call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition], results: Results
) -> _Waiting:
    if isinstance(session, FollowerSession):
        return _WaitingInSession(call, session, partitions, results)
    return _Waiting(call, session, partitions, results)


def _again(
    call: RequestContext, session: FetchSession | None, partitions: Sequence[WantedPartition]
) -> Sequence[WantedPartition]:
    """Return the partitions to read again. A follower's session reads only those that have changed."""
    return session.to_read(call.services.hosted.generation) if isinstance(session, FollowerSession) else partitions
