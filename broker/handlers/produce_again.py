"""The short way of Produces that are like the one before them on their connection (broker.wire.envelope).

Same topic and partition, same acks, other records: what is left to do is judging the batch, appending it and writing
the answer. Those of one turn, from all connections, are appended together: one write a log. Whatever is not plain (a
refusal, a log that went away, a setting that changed) is left to the long way, which finds the log as it was.
"""

from collections.abc import Sequence

from broker.config import ANSWERED_ACKS
from broker.handlers import produce
from broker.handlers.call import Call, Services
from broker.handlers.produce_durable import why_late
from broker.log.judge import judge
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.purgatory import Delayed
from broker.record.batch import NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader
from broker.shortcut import Taken, TakenDone
from broker.wire.envelope import Envelope, envelope_of
from broker.wire.errors import ApiError
from broker.wire.produce import ProduceRequest
from idgen.errors import IdError


class ProduceAgain:
    """Takes the frames of a connection that repeat the envelope, one a turn."""

    __slots__ = ("taken", "log", "services", "correlation_id", "records", "header", "acks", "timeout_ms",
                 "_envelope", "_config", "_zstd")  # fmt: skip

    records: memoryview
    header: BatchHeader

    def __init__(
        self, envelope: Envelope, services: Services, log: PartitionLog, version: int, request: ProduceRequest
    ) -> None:
        self.taken = False
        self.log = log
        self.services = services
        self.correlation_id = 0
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self._envelope = envelope
        self._config = log.config
        self._zstd = version >= produce.ZSTD_VERSION

    def take(self, frame: memoryview, now: Now) -> bool:
        """Take a frame that stays as it is until `together`; False where the long way is to be gone."""
        opened = self._envelope.open(frame)
        config = self._config
        if opened is None or self.log.config is not config:
            return False
        self.correlation_id, records = opened
        try:
            header = judge(records, config, self.services.config, self._zstd)
        except ApiError:
            return False
        if (
            header.attributes & TRANSACTIONAL_BIT
            or header.max_timestamp > now.wall_ms + config.message_timestamp_after_max_ms
        ):
            return False
        self.records, self.header, self.taken = records, header, True
        return True

    def answer(self, correlation_id: int, base_offset: int) -> bytes:
        return self._envelope.reply(correlation_id, base_offset, NO_TIMESTAMP, self.log.log_start_offset)

    def too_late(self, correlation_id: int) -> bytes:
        """What was appended is not on the disk when it has to be answered."""
        self.services.metrics.failed_produce(self.log.topic)
        return self._envelope.refusal(correlation_id, why_late(self.services, self.log, self._envelope.topic))

    def together(self, taken: Sequence[Taken["ProduceAgain"]], now: Now) -> TakenDone:
        """Append what was taken in this turn, and answer it."""
        by_log: dict[PartitionLog, list[Taken[ProduceAgain]]] = {}
        for each in taken:
            each.again.taken = False
            by_log.setdefault(each.again.log, []).append(each)
        done = TakenDone([], [], [])
        for log, requests in by_log.items():
            if len(requests) == 1:
                _append_one(log, requests[0], done, now)
            else:
                _append(log, requests, done, now)
        return done


def _append_one(log: PartitionLog, request: Taken[ProduceAgain], done: TakenDone, now: Now) -> None:
    again = request.again
    services = again.services
    try:
        appended = log.append(again.records, again.header, services.stamp, now)
    except (ApiError, IdError):
        done.refused.append(request)
        return
    services.appended(log, now)
    if again.acks in log.waiting_acks and log.durable_end_offset <= appended.last_offset:
        deadline_ms = now.ms + again.timeout_ms
        done.later.append(([request], _when_on_disk(log, [(request, appended.base_offset)], deadline_ms)))
    else:
        done.answers.append((request, again.answer(again.correlation_id, appended.base_offset)))


def _append(log: PartitionLog, requests: Sequence[Taken[ProduceAgain]], done: TakenDone, now: Now) -> None:
    services = requests[0].again.services
    while requests:
        batches = [(each.again.records, each.again.header) for each in requests]
        try:
            placed = log.append_together(batches, services.stamp, now)
        except (ApiError, IdError):
            done.refused.extend(requests)
            return
        if not placed:  # the first one is a duplicate, or the log is being mended
            _append_one(log, requests[0], done, now)
            requests = requests[1:]
            continue
        services.appended(log, now)
        appended, requests = requests[: len(placed)], requests[len(placed) :]
        waiting: dict[int, list[tuple[Taken[ProduceAgain], int]]] = {}
        for each, (_, header, base_offset, _) in zip(appended, placed, strict=True):
            again = each.again
            if again.acks in log.waiting_acks and log.durable_end_offset <= base_offset + header.last_offset_delta:
                waiting.setdefault(again.timeout_ms, []).append((each, base_offset))
            else:
                done.answers.append((each, again.answer(again.correlation_id, base_offset)))
        for timeout_ms, late in waiting.items():
            done.later.append(([each for each, _ in late], _when_on_disk(log, late, now.ms + timeout_ms)))


def _when_on_disk(
    log: PartitionLog, waiting: Sequence[tuple[Taken[ProduceAgain], int]], deadline_ms: int
) -> Delayed[list[bytes]]:
    """The answers when the log is synced past the last of them, or cannot be any more, or at the deadline."""
    # By then their connections may have sent more.
    asked = [(each.again, each.again.correlation_id, base, each.again.header) for each, base in waiting]
    last_offset = asked[-1][2] + asked[-1][3].last_offset_delta

    def try_complete(now: Now) -> list[bytes] | None:
        return None if log.durable_end_offset <= last_offset and log.offline is None else answers(now)

    def answers(now: Now) -> list[bytes]:
        return [
            again.answer(correlation_id, base_offset)
            if base_offset + header.last_offset_delta < log.durable_end_offset
            else again.too_late(correlation_id)
            for again, correlation_id, base_offset, header in asked
        ]

    return Delayed([log.on_disk], deadline_ms, try_complete, answers)


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
    if log.config.asks_of_records:
        return None
    envelope = envelope_of(frame, call.version, request)
    return None if envelope is None else ProduceAgain(envelope, call.services, log, call.version, request)
