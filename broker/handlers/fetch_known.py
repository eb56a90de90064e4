"""The short way of a Fetch that asks for the same partition as one before it on its connection, from another offset on
(broker.wire.fetch_question), where there is enough to be answered at once.

Whatever is not plain is left to the long way, which finds all as it was: an error, records that are not in memory, or
not there yet, aborted transactions, a session that is about more.
"""

from broker.log.non_blocking_reader import NotCached
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.services.context import RequestContext
from broker.wire import fetch
from broker.wire.errors import ApiError
from broker.wire.fetch import FINAL_EPOCH, NO_SESSION_ID, READ_COMMITTED, FetchedPartition, FetchRequest
from broker.wire.fetch_question import FetchQuestion, question_of
from broker.wire.frame import FileRegion, Part, read_request_header
from broker.wire.primitives import skip_tags


class KnownFetch:
    """Answers the frames of a connection that repeat the question."""

    __slots__ = (
        "api_key", "_question", "_services", "_generation", "_log", "_request", "_asked", "_committed", "_by_id",
    )  # fmt: skip

    def __init__(self, question: FetchQuestion, call: RequestContext, log: PartitionLog) -> None:
        self.api_key = fetch.API_KEY
        self._question = question
        self._services = call.services
        self._generation = call.services.metadata.generation
        self._log = log
        self._request: FetchRequest = call.request
        (self._asked,) = call.request.partitions
        self._committed = call.request.isolation_level == READ_COMMITTED
        self._by_id = call.version >= fetch.TOPIC_IDS

    def opens(self, frame: memoryview) -> bool:
        return self._question.open(frame) is not None

    def answer(self, frame: memoryview, now: Now) -> tuple[list[Part], int] | None:
        """The whole answer, or None where the long way is to be gone."""
        opened = self._question.open(frame)
        log = self._log
        if opened is None or log.offline is not None or self._services.metadata.generation != self._generation:
            return None
        correlation_id, epoch, offset = opened
        in_session = self._request.session_id != NO_SESSION_ID
        if offset >= log.high_watermark or in_session == (epoch == FINAL_EPOCH):
            return None
        records = self._read(offset)
        if records is None or (epoch != FINAL_EPOCH and not self._goes_on(epoch, offset, records, now)):
            return None
        log.bytes_out += records.length
        return self._question.reply(
            correlation_id, log.high_watermark, log.last_stable_offset, log.log_start_offset, records
        )

    def _read(self, offset: int) -> FileRegion | None:
        """The records, if they are as many as are asked for and there is nothing more to be said of them."""
        log, request, asked = self._log, self._request, self._asked
        most = min(request.max_bytes, self._services.config.fetch_max_bytes)
        try:
            log.check_leader_epoch(asked.current_leader_epoch)
            found = log.read(offset, min(asked.max_bytes, most), True, False, self._committed, False)
        except (ApiError, NotCached):
            return None
        records = found.records
        if not isinstance(records, FileRegion) or found.aborted:
            return None
        is_enough = records.length >= min(request.min_bytes, most) or records.file is not log.segments[-1].log
        return log.whole_batches(offset, records) if is_enough else None

    def _goes_on(self, epoch: int, offset: int, records: FileRegion, now: Now) -> bool:
        """Take the session one request on, and note what its client is told; False where it is not as it should be."""
        sessions, log, asked = self._services.fetch_sessions, self._log, self._asked
        partition = sessions.sole(self._request.session_id, epoch, (asked.topic, asked.partition))
        if partition is None or partition.log is not log:
            return False
        asked = asked._replace(fetch_offset=offset)
        session = sessions.resume(self._request._replace(session_epoch=epoch, partitions=[asked]), self._by_id, now)
        assert session is not None
        told = FetchedPartition(asked.topic, asked.partition, 0, log.high_watermark, log.last_stable_offset)
        told.log_start_offset, told.records = log.log_start_offset, records
        session.answer(epoch, [(partition, told)])
        return True


def known(call: RequestContext, frame: memoryview) -> KnownFetch | None:
    """The short way for more requests like this one, where there is one."""
    request: FetchRequest = call.request
    if len(request.partitions) != 1 or request.forgotten or not _may_repeat(request):
        return None
    header = read_request_header(frame)
    body = skip_tags(frame, header.body) if call.version >= fetch.FLEXIBLE else header.body
    found = question_of(frame, body, call.version, request)
    if found is None:
        return None
    (asked,) = request.partitions
    try:
        log = call.services.log_of(asked.topic, asked.partition)
    except ApiError:
        return None
    return KnownFetch(found, call, log)


def _may_repeat(request: FetchRequest) -> bool:
    """A request of a session that goes on, or one that has none; not one that begins or ends a session."""
    if request.partitions[0].last_fetched_epoch >= 0:
        return False
    if request.session_epoch == FINAL_EPOCH:
        return request.session_id == NO_SESSION_ID
    return request.session_epoch > 0
