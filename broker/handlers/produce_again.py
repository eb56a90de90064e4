"""The short way of a Produce that is like the one before it on its connection (broker.wire.envelope).

Same topic and partition, same acks, other records: what is left to do is judging the batch, appending it and writing
the answer. Whatever is not plain (a refusal, a log that went away, a setting that changed) is left to the long way,
which finds the log as it was.
"""

from broker.config import ANSWERED_ACKS, TopicConfig
from broker.handlers import produce
from broker.handlers.call import Call, Services
from broker.log.judge import judge
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.record.batch import TRANSACTIONAL_BIT
from broker.wire.envelope import Envelope, envelope_of
from broker.wire.errors import ApiError
from broker.wire.produce import ProduceRequest
from idgen.errors import IdError


class ProduceAgain:
    """Answers frames that repeat the envelope; called with each frame of its connection."""

    __slots__ = ("_envelope", "_services", "_log", "_config", "_zstd")

    def __init__(self, envelope: Envelope, services: Services, log: PartitionLog, version: int) -> None:
        self._envelope = envelope
        self._services = services
        self._log = log
        self._config = log.config
        self._zstd = version >= produce.ZSTD_VERSION

    def __call__(self, frame: memoryview, now: Now) -> bytes | None:
        """The whole answer, with its length; None where the long way is to be gone, and nothing was done."""
        opened = self._envelope.open(frame)
        log = self._log
        config = self._config
        if opened is None or log.offline is not None or log.config is not config:
            return None
        correlation_id, records = opened
        services = self._services
        try:
            header = judge(records, config, services.config, self._zstd)
            if header.attributes & TRANSACTIONAL_BIT:
                return None
            if header.max_timestamp > now.wall_ms + config.message_timestamp_after_max_ms:
                return None
            done = log.append(records, header, services.stamp, now)
        except (ApiError, IdError):
            return None
        if not done.duplicate:
            services.appended(log, now)
        return self._envelope.reply(correlation_id, done.base_offset, -1, log.log_start_offset)


def _plain(config: TopicConfig) -> bool:
    """Whether batches of this topic are appended as they come, and answered at once."""
    return not (config.asks_of_records or config.waiting_acks)


def again(call: Call, frame: memoryview) -> ProduceAgain | None:
    """The short way for more requests like this one, where there is one."""
    request: ProduceRequest = call.request
    if request.acks not in ANSWERED_ACKS or request.transactional_id is not None:
        return None  # one that is refused for its acks would else be taken the second time
    if len(request.partitions) != 1:
        return None
    each = request.partitions[0]
    try:
        log = call.services.log_of(each.topic, each.partition)
    except ApiError:
        return None
    if not _plain(log.config):
        return None
    envelope = envelope_of(frame, call.version, request)
    return None if envelope is None else ProduceAgain(envelope, call.services, log, call.version)
