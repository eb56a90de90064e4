"""The short way of Produces that are like the one before them on their connection (broker.wire.envelope).

Same topic and partition, same acks, other records: what is left to do is judging the batch, appending it and writing
the answer. Those of one turn, from all connections, are appended together: one write a log. Whatever is not plain (a
refusal, a log that went away, a setting that changed) is left to the long way, which finds the log as it was.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

from broker.config import ANSWERED_ACKS
from broker.handlers import produce
from broker.handlers.call import Call, Services
from broker.handlers.produce_alike import Alike, Asked
from broker.handlers.produce_durable import why_late
from broker.log.judge import is_plain, look_closer
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.purgatory import Delayed
from broker.record.batch import HEADER, NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader
from broker.shortcut import Taken, TakenDone
from broker.wire.envelope import Envelope, envelope_of
from broker.wire.errors import ApiError
from broker.wire.produce import ProduceRequest
from idgen.errors import IdError

# Where frames as long as the one before are not like it, to make ready for more of them gains nothing. Twice as many
# pass each time before it is done again, up to so many: what a producer does now is not what it does in an hour.
ALIKE_PAUSE_MAX = 255


class ProduceAgain:
    """Reads the frames of one connection that repeat its envelope."""

    __slots__ = (
        "log", "services", "acks", "timeout_ms", "reply", "_envelope", "_config", "_zstd", "_size", "_alike",
        "_pause", "_passing",
    )  # fmt: skip

    def __init__(
        self, envelope: Envelope, services: Services, log: PartitionLog, version: int, request: ProduceRequest
    ) -> None:
        self.log = log
        self.services = services
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.reply = envelope.reply
        self._envelope = envelope
        self._config = log.config
        self._zstd = version >= produce.ZSTD_VERSION
        self._size = 0  # of the frame before
        self._alike: Alike | None = None
        self._pause = self._passing = 0

    def read(self, taken: Taken, now: Now) -> Asked | None:
        """What the request asks for; None where the long way is to be gone."""
        frame, config, alike = taken[2], self._config, self._alike
        if self.log.config is not config:
            return None
        newest_max_ms = now.wall_ms + config.message_timestamp_after_max_ms
        if alike is not None and len(frame) == alike.size:
            asked = alike.read(taken, newest_max_ms)
            if asked is not None:
                return asked
        return self._judged(taken, newest_max_ms)

    def _judged(self, taken: Taken, newest_max_ms: int) -> Asked | None:
        """The same, with all rules asked."""
        frame = taken[2]
        opened = self._envelope.open(frame)
        if opened is None:
            return None
        correlation_id, batch, fields = opened
        if is_plain(batch, fields, self._config, self.services.config):
            header = tuple.__new__(BatchHeader, fields)  # as `_make`, at half its price
        else:
            try:
                header = look_closer(batch, self._config, self.services.config, self._zstd)
            except ApiError:
                return None
        if header.attributes & TRANSACTIONAL_BIT or header.max_timestamp > newest_max_ms:
            return None
        if len(frame) != self._size:
            self._size = len(frame)
        elif self._passing:
            self._passing -= 1
        else:
            self._passing = self._pause = min(2 * self._pause + 1, ALIKE_PAUSE_MAX)
            self._alike = Alike(frame, *self._envelope.records_span(frame), header)
        return taken, correlation_id, batch, header

    def too_late(self, correlation_id: int) -> bytes:
        """What was appended is not on the disk when it has to be answered."""
        self.services.metrics.failed_produce(self.log.topic)
        return self._envelope.refusal(correlation_id, why_late(self.services, self.log, self._envelope.topic))

    def together(self, taken: Sequence[Taken], now: Now) -> TakenDone:
        """Append what was taken in this turn, and answer it."""
        done = TakenDone([], [], [])
        by_log: dict[PartitionLog, list[Asked]] = {}
        for each in taken:
            again: ProduceAgain = each[1]
            try:
                asked = again.read(each, now)
            except Exception:
                asked = None  # on the long way it is this connection's alone, and may not be met
                self.services.report_fault("reading a Produce on its short way")
            if asked is None:
                done.refused.append(each)
            elif (alike := by_log.get(again.log)) is None:
                by_log[again.log] = [asked]
            else:
                alike.append(asked)
        waiting: dict[tuple[PartitionLog | None, int], list[_Late]] = {}
        for log, alike in by_log.items():
            _append(log, alike, done, waiting, self.services, now)
        for (_, timeout_ms), late in waiting.items():
            done.later.append(([each[0] for each in late], _when_on_disk(late, now.ms + timeout_ms)))
        return done


_NO_FRAME = memoryview(b"")
_Late: TypeAlias = tuple[Taken, int, int, int]
"""A request whose answer waits for the disk: its correlation id, base offset and last offset."""


def _append(
    log: PartitionLog,
    asked: list[Asked],
    done: TakenDone,
    waiting: dict[tuple[PartitionLog | None, int], list[_Late]],
    services: Services,
    now: Now,
) -> None:
    """Append to one log, with as few writes as can be."""
    while asked:
        placed: list[tuple[int, int]]
        try:
            placed = log.append_together([each[2:] for each in asked], services.stamp, now) if len(asked) > 1 else []
            if not placed:  # it is alone, or a duplicate, or the log is being mended
                _, _, batch, header = asked[0]
                alone = log.append(batch, header, services.stamp, now)
                placed = [(alone.base_offset, alone.last_offset)]
        except (ApiError, IdError):
            done.refused.extend([each[0] for each in asked])
            return
        services.appended(log, now)
        durable_end, waiting_acks, log_start_offset = log.durable_end_offset, log.waiting_acks, log.log_start_offset
        for (taken, correlation_id, _, _), (base_offset, last_offset) in zip(asked, placed, strict=False):
            again: ProduceAgain = taken[1]
            if again.acks in waiting_acks and durable_end <= last_offset:
                # One round of the journal is for all its logs; else each log has a sync of its own.
                key = (None if log.journal is not None else log, again.timeout_ms)
                waits = (taken[0], again, _NO_FRAME)  # the frame need not be kept until then
                waiting.setdefault(key, []).append((waits, correlation_id, base_offset, last_offset))
            else:
                done.answers.append((taken, again.reply(correlation_id, base_offset, NO_TIMESTAMP, log_start_offset)))
        asked = asked[len(placed) :]


def _when_on_disk(late: Sequence[_Late], deadline_ms: int) -> Delayed[list[bytes]]:
    """The answers when the last of them is on the disk, or cannot be any more."""
    synced = 0

    def try_complete(now: Now) -> list[bytes] | None:
        nonlocal synced
        for (_, again, _), _, _, last_offset in islice(late, synced, None):
            log = again.log
            if log.durable_end_offset <= last_offset and log.offline is None:
                return None
            synced += 1
        return answers(now)

    def answers(now: Now) -> list[bytes]:
        return [
            again.reply(correlation_id, base_offset, NO_TIMESTAMP, again.log.log_start_offset)
            if last_offset < again.log.durable_end_offset
            else again.too_late(correlation_id)
            for (_, again, _), correlation_id, base_offset, last_offset in late
        ]

    return Delayed({again.log.on_disk for (_, again, _), _, _, _ in late}, deadline_ms, try_complete, answers)


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
    envelope = envelope_of(frame, call.version, request, HEADER)
    return None if envelope is None else ProduceAgain(envelope, call.services, log, call.version, request)
