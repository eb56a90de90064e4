"""One pass over the partitions of a Fetch: what each can be answered now."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from broker.log import leader_epochs, log_reader
from broker.log.leader_epochs import NO_EPOCH
from broker.log.log_reader import EMPTY, ReadResult
from broker.log.non_blocking_reader import NotCached
from broker.log.partition_log import PartitionLog
from broker.log.storage.port import StorageError
from broker.now import Now
from broker.produce.current_leader import ELSEWHERE, current_leader
from broker.record.compression import Codec
from broker.replication.partition import Partition
from broker.security.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, Rights
from broker.services.context import RequestContext
from broker.services.fetch_session import FetchSession, WantedPartition
from broker.services.follower_session import FollowerSession
from broker.wire.current_leader import CurrentLeader
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import (
    CURRENT_LEADERS,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    IdRegion,
)
from broker.wire.frame import FileRegion
from broker.wire.tags import NO_ID

STORAGE_ERROR_VERSION = 6
ZSTD_VERSION = 10

FEW_ENTRIES_BYTES = 1_024
"""So many bytes of an id index are sent with the answer, and more from the file."""

FindLed: TypeAlias = Callable[[PartitionLog], Partition | None]
"""Returns the leader's view of a log's partition."""
Results: TypeAlias = list[tuple[WantedPartition, FetchedPartition]]
Unread: TypeAlias = list[tuple[NotCached, PartitionLog | None, int]]
"""Logs, each with an offset whose position has to be looked up on the disk, or verified, first."""


class SoFar:
    """What the earlier slices of a request have used of its limit of bytes."""

    __slots__ = ("bytes_left", "size", "bytes_min")

    def __init__(self, call: RequestContext) -> None:
        self.bytes_left = bytes_max(call)
        self.size = 0
        self.bytes_min = min(call.request.min_bytes, self.bytes_left)


def collect(
    call: RequestContext,
    session: FetchSession | None,
    partitions: Sequence[WantedPartition],
    waits: bool,
    so_far: SoFar | None = None,
) -> tuple[Results, bool, Unread]:
    """Return the answer of each partition, True if the request need not wait (enough bytes, an error, or records of an
    older segment), and the positions that are not in memory.

    With `waits` the disk is read in this thread, so no position is missing. Partitions of a session without news
    are left out. `so_far` counts the bytes of a request that is read in slices.
    """
    request: FetchRequest = call.request
    generation = call.services.hosted.generation
    wants_ids, committed = request.wants_ids, request.isolation_level == READ_COMMITTED
    is_follower, rights = request.replica_id >= 0, call.rights
    find_led = _led_partitions(call)
    granted = () if rights is None or rights.granted_generation != rights.authorizer.generation else rights.granted
    if so_far is None:
        bytes_left, size = bytes_max(call), 0
        bytes_min = min(request.min_bytes, bytes_left)
    else:
        bytes_left, size, bytes_min = so_far.bytes_left, so_far.size, so_far.bytes_min
    enough = not partitions and session is None
    results, unread = Results(), Unread()
    for wanted in partitions if session is None else session.with_news(partitions, generation):
        requested = topic, partition, offset, limit, leader_epoch, last_epoch, _ = wanted.requested
        diverging, limit = None, limit if limit < bytes_left else bytes_left
        try:
            if rights is not None and (is_follower or topic not in granted):
                _check_rights(call, rights, wanted)
            log = wanted.log
            if log is None or wanted.generation != generation or (is_follower and log.offline is not None):
                log = _find(call, wanted, generation)
            if leader_epoch != NO_EPOCH and leader_epoch != log.leader_epoch:
                log.check_leader_epoch(leader_epoch)
            if is_follower:
                _led_for(call, find_led, log, requested)
            if call.version < ZSTD_VERSION:
                _check_compression(log)
            if last_epoch >= 0 and (diverging := _diverging(log, requested, is_follower)) is not None:
                records, ids, aborted = EMPTY, None, None
            elif is_follower:
                records, ids, aborted = _read_to_end(log, offset, limit, not size, wants_ids, waits)
            else:
                records, ids, aborted = log_reader.read(log, offset, limit, not size, wants_ids, committed, waits)
        except ApiError as error:
            result, enough = _refused(call, error, wanted), True
        except NotCached as cold:
            unread.append((cold, wanted.log, offset))
            continue
        else:
            high_watermark, stable = log.readable_ends
            result = FetchedPartition(
                topic, partition, 0, high_watermark, stable, log.log_start_offset, aborted, records, ids, diverging
            )
            length = records.length if records.__class__ is FileRegion else len(records)
            size, bytes_left = size + length, bytes_left - length if bytes_left > length else 0
            if records.__class__ is FileRegion:
                # No records will be added to an older segment.
                enough = enough or records.file is not log.segments.active.log
            elif diverging is not None:
                enough = True
            if is_follower and wants_ids and (diverging is not None or log.log_start_offset == log.log_end_offset):
                result.last_id = _last_id_at_start(log)
        results.append((wanted, result))
    if so_far is not None:
        so_far.bytes_left, so_far.size = bytes_left, size
    return results, enough or size >= bytes_min, unread


def _check_rights(call: RequestContext, rights: Rights, wanted: WantedPartition) -> None:
    """Raise ApiError unless the client is a broker that follows, or may read the topic.

    An id that no topic has is answered as unknown.
    """
    if call.request.replica_id >= 0:
        is_allowed = rights.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
    else:
        named = wanted.requested.topic
        topic = None if isinstance(named, str) else call.services.metadata.topic(named)
        name = named if isinstance(named, str) else topic.name if topic is not None else None
        is_allowed = name is None or rights.may_on_topic(Operation.READ, named, name)
    if not is_allowed:
        raise AUTHORIZATION_FAILED[ResourceType.TOPIC]


def denied(requested: FetchPartition) -> FetchedPartition:
    """Return the answer for a partition that the client has no right to."""
    code = AUTHORIZATION_FAILED[ResourceType.TOPIC].code
    return FetchedPartition(requested.topic, requested.partition, error_code=code)


def _read_to_end(
    log: PartitionLog, offset: int, limit: int, at_least_one: bool, wants_ids: bool, waits: bool
) -> ReadResult:
    """Read up to the log's end, for a follower.

    The newest write comes from memory, if it is small. The places of the last writes are known without a search.
    """
    newest = log.newest_write
    if newest is not None and newest.base_offset == offset >= log.log_start_offset and len(newest.records) <= limit:
        return ReadResult(newest.records, newest.ids if wants_ids else None)
    segment = log.segments.active
    regions = segment.writes_from(offset, limit) if offset >= log.log_start_offset else None
    if regions is not None:
        records, ids = regions
        with suppress(StorageError):  # the reader below names what cannot be read
            return ReadResult(records, IdRegion(segment.base_offset, _few_entries(ids)) if wants_ids else None)
    return log_reader.read(log, offset, limit, at_least_one, wants_ids, False, waits, log.log_end_offset)


def _few_entries(region: FileRegion) -> bytes | FileRegion:
    """Return the entries themselves if they are few, because to send a region of them takes two calls of the system."""
    return region.file.read(region.position, region.length) if region.length <= FEW_ENTRIES_BYTES else region


def bytes_max(call: RequestContext) -> int:
    most, limit = call.services.config.fetch_max_bytes, call.request.max_bytes
    if limit < most or call.request.replica_id >= 0:
        most = limit
    return most if call.meter is None else min(most, call.meter.fetch_max_bytes)  # more could never leave


def _find(call: RequestContext, wanted: WantedPartition, generation: int) -> PartitionLog:
    """Return the partition's log; a session may know a topic that was deleted since, or made anew (KIP-516)."""
    wanted.log = None
    try:
        log = call.services.log_of(wanted.requested.topic, wanted.requested.partition)
    except ApiError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_ID or wanted.name is None:
            raise
        if call.services.metadata.topic(wanted.name) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {wanted.name} was deleted") from None
        raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"topic {wanted.name} has another id now") from None
    wanted.log, wanted.name, wanted.generation = log, log.topic, generation
    return log


def _check_compression(log: PartitionLog) -> None:
    if log.config.compression_type == Codec.ZSTD.name.lower():
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"{log.name} is compressed by zstd")


def _finds_none(log: PartitionLog) -> None:
    """Return None, because the client is no follower."""


def _led_partitions(call: RequestContext) -> FindLed:
    """Return what finds the leader's view of a log's partition for a follower.

    Followers come over listeners of brokers only, so that it finds none for other clients.
    """
    services = call.services
    if call.request.replica_id < 0 or services.replication is None or not services.serves_brokers(call.listener):
        return _finds_none
    return services.replication.partition_of


def _led_for(call: RequestContext, find_led: FindLed, log: PartitionLog, requested: FetchPartition) -> Partition:
    """Return the leader's view of a partition for a follower; raise ApiError if it is none of the partition's.

    The errors are those that Kafka has for strangers, and for an earlier life of the follower.
    """
    request = call.request
    replica_id, partition = request.replica_id, find_led(log)
    follower = None if partition is None else partition.followers.get(replica_id)
    if partition is not None and follower is not None:
        if follower.broker_epoch > request.replica_epoch:
            partition.follower(replica_id, request.replica_epoch)  # raises, unless the follower names no life
        return partition
    named = requested.current_leader_epoch >= 0
    code = ErrorCode.UNKNOWN_LEADER_EPOCH if named else ErrorCode.NOT_LEADER_OR_FOLLOWER
    raise ApiError(code, f"node {replica_id} is no replica of {log.name}")


def note_fetches(
    call: RequestContext, session: FetchSession | None, partitions: Iterable[WantedPartition], now: Now
) -> bool:
    """Note that a follower has all records below the offsets that it fetches from. Return False if one is refused.

    If that moves a high watermark, or if deleted records are gone from another replica, the requests that wait for it
    are answered. An offset that is out of range, or that lies past the end of an epoch (KIP-595), says nothing.
    `collect` answers the errors.
    """
    services, request = call.services, call.request
    generation, find_led = services.hosted.generation, _led_partitions(call)
    all_sound = True
    for wanted in session.to_note(partitions) if isinstance(session, FollowerSession) else partitions:
        requested = wanted.requested
        offset = requested.fetch_offset
        try:
            log = wanted.log
            if log is None or wanted.generation != generation or log.offline is not None:
                log = _find(call, wanted, generation)
            if requested.current_leader_epoch != log.leader_epoch:
                log.check_leader_epoch(requested.current_leader_epoch)
            partition = _led_for(call, find_led, log, requested)
            if not log.log_start_offset <= offset <= log.log_end_offset:
                continue
            if requested.last_fetched_epoch >= 0 and _diverging(log, requested, True) is not None:
                continue
            start_offset, life = requested.log_start_offset, request.replica_epoch
            assert services.replication is not None
            services.replication.fetched(partition, request.replica_id, offset, start_offset, life, now)
        except ApiError:
            all_sound = False
            continue
        if isinstance(session, FollowerSession):
            session.noted(wanted, log, partition)
    return all_sound


def _refused(call: RequestContext, error: ApiError, wanted: WantedPartition) -> FetchedPartition:
    topic, partition, *_ = wanted.requested
    refused = FetchedPartition(topic, partition, _code_for(call, error.code), leader=_leader(call, error, wanted))
    if error.code == ErrorCode.OFFSET_OUT_OF_RANGE and call.request.replica_id >= 0 and wanted.log is not None:
        refused.log_start_offset = wanted.log.log_start_offset  # the follower may have to begin anew there
        refused.last_id = _last_id_at_start(wanted.log) if call.request.wants_ids else NO_ID
    return refused


def _last_id_at_start(log: PartitionLog) -> int:
    """Return the last id before the log's start, which the log of a follower that begins there must know (rule I7).

    Return NO_ID if a later record is committed: a follower is in sync only once it has that record, and its id.
    """
    if log.log_start_offset == log.log_end_offset:
        return log.last_id
    if log.log_start_offset < log.high_watermark:
        return NO_ID
    runs = log_reader.ids_of(log, log.log_start_offset, log.log_end_offset)
    return runs[0][0] - 1 if runs else log.last_id


def _code_for(call: RequestContext, code: ErrorCode) -> ErrorCode:
    if code == ErrorCode.KAFKA_STORAGE_ERROR and call.version < STORAGE_ERROR_VERSION:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # such a client would give up at a code it does not know
    return code


def _leader(call: RequestContext, error: ApiError, wanted: WantedPartition) -> CurrentLeader | None:
    """Return the leader that a client should fetch from, in place of this broker (KIP-951)."""
    if call.services.is_alone or call.version < CURRENT_LEADERS or error.code not in ELSEWHERE:
        return None
    requested = wanted.requested
    return current_leader(call.services.metadata, requested.topic, requested.partition, call.listener)


def _diverging(log: PartitionLog, requested: FetchPartition, is_follower: bool) -> tuple[int, int] | None:
    """Return the end of the epoch that the client read last, if the epoch ended before the fetch offset (KIP-595).

    The client has then read records that the log has lost. A follower's log may leave the leader's in other ways too.
    """
    last_epoch, offset = requested.last_fetched_epoch, requested.fetch_offset
    newest_epoch, newest_start = log.epochs[-1] if log.epochs else (NO_EPOCH, 0)
    if last_epoch == newest_epoch and max(newest_start, log.log_start_offset) <= offset <= log.log_end_offset:
        return None  # nearly always
    if is_follower:
        start_offset, end_offset = log.log_start_offset, log.log_end_offset
        diverging = leader_epochs.divergence(log.epochs, last_epoch, offset, start_offset, end_offset)
        if diverging is None or diverging[0] >= 0:
            return diverging
    epoch, end_offset = leader_epochs.end_of(log.epochs, last_epoch, log.log_end_offset)
    if epoch < 0 or offset < log.log_start_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{log.name}: where epoch {last_epoch} ended is not known")
    diverges = epoch < last_epoch or end_offset < offset
    return (epoch, end_offset) if diverges else None
