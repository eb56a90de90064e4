"""The short way of ListOffsets that ask of the same partition as one before them on their connection, for the same
place or another (broker.wire.list_offsets_question): Spark's connector asks where a partition begins and ends with
each poll.

What is not plain, an error or a place on a disk first of all, is left to the long way.
"""

from broker.handlers.list_offsets import epoch_of, find
from broker.log.non_blocking_reader import WouldBlock
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.services.context import RequestContext
from broker.wire import list_offsets
from broker.wire.errors import ApiError
from broker.wire.frame import Part
from broker.wire.list_offsets import ListOffsetsRequest
from broker.wire.list_offsets_question import Question, question_of


class KnownListOffsets:
    """Answers the frames of a connection that repeat the question."""

    __slots__ = ("api_key", "_question", "_metadata", "_generation", "_log", "_version", "_request", "_leader_epoch")

    def __init__(self, question: Question, call: RequestContext, log: PartitionLog) -> None:
        self.api_key = list_offsets.API_KEY
        self._question = question
        self._metadata = call.services.metadata
        self._generation = call.services.metadata.generation
        self._log = log
        self._version = call.version
        self._request: ListOffsetsRequest = call.request
        self._leader_epoch = self._request.partitions[0].current_leader_epoch

    def opens(self, frame: memoryview) -> bool:
        return self._question.open(frame) is not None

    def answer(self, frame: memoryview, now: Now) -> tuple[list[Part], int] | None:
        """The whole answer, or None where the long way is to be gone."""
        opened = self._question.open(frame)
        log = self._log
        if opened is None or log.offline is not None or self._metadata.generation != self._generation:
            return None
        correlation_id, asked = opened
        try:
            log.check_leader_epoch(self._leader_epoch)
            offset, timestamp = find(self._request, self._version, log, asked)
        except (ApiError, WouldBlock):
            return None
        reply = self._question.reply(correlation_id, timestamp, offset, epoch_of(log, asked, offset))
        return [reply], len(reply)


def known(call: RequestContext, frame: memoryview) -> KnownListOffsets | None:
    """The short way for more requests like this one, where there is one."""
    found = question_of(frame, call.version, call.request)
    if found is None:
        return None
    (wanted,) = call.request.partitions
    try:
        log = call.services.log_of(wanted.topic, wanted.partition)
    except ApiError:
        return None
    return KnownListOffsets(found, call, log)
