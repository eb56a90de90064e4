"""The Produce requests of one turn: their batches are staged, then written together, one write for each log.

    stage     a handler validates a batch and adds it to its log's
    commit    each log appends its staged batches; every request whose batches all have a result is settled

Batches of one log are appended in the order they were staged, so the order of a connection's requests, and of a
producer's batches, is kept. A batch without ids (the id clock is behind, the high-water mark is being raised) is not
written. It is held with its request, then staged and validated again, because log and topic may have changed. A batch
whose ids would come too late is refused: after the request's timeout, or after `flakelog.max.id.wait.ms`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from broker.log.disk_watch import DiskWatch
from broker.log.log_appender import (
    NOTHING_APPENDED,
    Appended,
    IdSource,
    Rewrite,
    append,
    append_batches,
    find_duplicate,
)
from broker.log.partition_log import PartitionLog
from broker.log.validation.open_job import OpenJob
from broker.log.validation.record_check import Budget
from broker.log.validation.topic_rules import RecordsRefused
from broker.metadata.image import Image
from broker.metrics import Metrics
from broker.now import Now
from broker.produce.outcome import Postponed, Validated, VerificationRefused
from broker.record.batch import NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, BatchHeader
from broker.replication.partition import Partition
from broker.replication.stored_end import ACKS_ALL, StoredEnd, counts_copies, late
from broker.security.authorization.rights import Rights
from broker.stamping.clock_waits import ClockWaits
from broker.stamping.id_stamper import LEAD_RETRY_MS, IdStamper
from broker.steps import Steps
from broker.wire.codec import Codec
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.produce import NO_OFFSET, PartitionResult, ProduceRequest
from broker.wire.produce_template import ProduceTemplate
from broker.wire.templates import Template
from idgen.errors import IdError, LeadExhausted, SequenceExhausted

_record = tuple.__new__  # as PartitionResult(...), at half its price


class StagedProduce:
    """A Produce request that the handler has accepted, with the results of its partitions.

    `results` are in the request's order, None for a partition whose batch is not appended yet; `unsettled` counts
    those. The engine sets `conn`, `codec`, `template`, `correlation_id` and `began_ns`, which it needs for the answer.
    """

    __slots__ = (
        "version", "client_id", "request", "acks", "results", "unsettled", "originals", "unstored", "failure", "adapt",
        "opened", "conn", "codec", "template", "reply", "correlation_id", "began_ns", "held_until_ms",
        "steps", "rights",
    )  # fmt: skip

    conn: Any
    codec: Codec
    correlation_id: int
    began_ns: int

    def __init__(
        self,
        version: int,
        client_id: str | None,
        request: ProduceRequest,
        number: int,
        opened: OpenJob | None = None,
        rights: Rights | None = None,
    ) -> None:
        """`number`: its partitions. `request` may lack the records, because `stage` gets them as an argument."""
        self.version = version
        self.client_id = client_id
        self.request = request
        self.acks = request.acks
        self.results: list[PartitionResult | None] = [None] * number
        self.unsettled = number
        self.originals: dict[int, memoryview] | None = None
        """By a partition's index, its batch as the producer sent it, if the topic's rules have changed it."""
        self.rights = rights
        """The rights of the client; None without an authorizer."""
        self.opened = opened
        """The job in which a thread has opened the records; None if the reactor thread checks them."""
        self.unstored: list[tuple[StoredEnd, int]] | None = None
        """What the answer waits for: the ends of batches that are not on the disk or on all replicas in sync, each with
        its partition's index."""
        self.failure: Exception | None = None
        """An unexpected exception while a batch was appended."""
        self.adapt: Callable[[Any], Any] | None = None
        """Changes the response before it is encoded (broker.fault_injection)."""
        self.template: Template | None = None
        """The template that encodes the answer when all partitions have results."""
        self.reply: bytes | None = None
        """One partition: the whole answer, encoded by the template at once, unless the batch is stored too late."""
        self.held_until_ms: int | None = None
        """When the request is refused if it still has no ids, on the monotonic clock; None if it never was held."""
        self.steps: Steps[Postponed | None] | None = None
        """Stages the batches of a request for many partitions, in slices, unless it is postponed; None if they are
        staged already."""

    def keep_original(self, index: int, batch: memoryview) -> None:
        """Keep the batch of a partition as the producer sent it, because the topic's rules have changed it."""
        if self.originals is None:
            self.originals = {}
        self.originals[index] = batch

    def settle(self, index: int, error: ApiError, **more: Any) -> None:
        """Settle one partition with an error."""
        topic, partition, *_ = self.request.partitions[index]
        self.results[index] = PartitionResult(topic, partition, error.code, message=error.message, **more)
        self.unsettled -= 1

    def late(self, index: int, error: ApiError) -> None:
        """Turn a result into an error, because its batch is in the log but may not be stored as its acks ask."""
        before = self.results[index]
        assert before is not None
        self.reply = None
        self.results[index] = before._replace(
            error_code=error.code, message=error.message, base_offset=NO_OFFSET, runs=()
        )


StagedBatch: TypeAlias = tuple[memoryview, BatchHeader, StagedProduce, int, Rewrite | None]
"""A valid batch and its header, its request, its partition's index there, and how it is finished once it has ids."""

Held: TypeAlias = tuple[StagedProduce, int, memoryview]
"""A batch to be staged again: its request, its partition's index there, and its bytes."""


class ProduceTurn:
    """The requests and batches staged since the last commit."""

    def __init__(
        self,
        metadata: Image,
        metrics: Metrics,
        id_stamper: IdStamper,
        clock_waits: ClockWaits,
        disk: DiskWatch,
        max_wait_ms: int,
        partition_of: Callable[[PartitionLog], Partition | None],
    ) -> None:
        """`max_wait_ms` is the longest time that a request is held."""
        self._metadata = metadata
        self._metrics = metrics
        self._id_stamper = id_stamper
        self._clock_waits = clock_waits
        self._disk = disk
        self._max_wait_ms = max_wait_ms
        self._partition_of = partition_of
        self.by_log: defaultdict[PartitionLog, list[StagedBatch]] = defaultdict(list)
        """The valid batches of each log, in the order they were staged."""
        self.requests: list[StagedProduce] = []
        """The staged requests that are not answered yet, in the order they came."""
        self.budget = Budget(None)
        """The work that the records of one request may take here; the handler sets it for each request."""
        self.reserved: dict[PartitionLog, OpenJob] = {}
        """The logs that take no batch except those of a job, because the job has ids for them."""
        self._held: list[Held] = []
        self._appended: list[PartitionLog] = []
        self.retry_wall_ms: int | None = None
        """The wall-clock time to stage the held batches again, None if no batch is held."""

    def drop(self, conn: Any) -> None:
        """Forget the requests of a connection that is closed."""
        self.requests = [staged for staged in self.requests if staged.conn is not conn]
        self._held = [held for held in self._held if held[0].conn is not conn]
        for log, batches in self.by_log.items():
            self.by_log[log] = [batch for batch in batches if batch[2].conn is not conn]

    def stage(self, staged: StagedProduce, index: int, validated: Validated) -> None:
        """Stage the batch of one partition that `validate_batch` has validated, or refuse it."""
        if isinstance(validated, tuple):
            log, batch, header, rewrite = validated
            self.by_log[log].append((batch, header, staged, index, rewrite))
        elif isinstance(validated, RecordsRefused):
            self.refuse(staged, index, validated, record_errors=validated.record_errors)
        else:
            if isinstance(validated, VerificationRefused):
                validated.verification.ask_again()
            self.refuse(staged, index, validated)

    def refuse(self, staged: StagedProduce, index: int, error: ApiError, **more: Any) -> None:
        """Settle one partition with an error, and count it."""
        topic = self._metadata.topic(staged.request.partitions[index][0])
        self._metrics.failed_produce(topic.name if topic is not None else None)
        staged.settle(index, error, **more)

    def take_held(self) -> list[Held]:
        """Return the batches to be staged again, in their order."""
        held, self._held = self._held, []
        self.retry_wall_ms = None
        return held

    def take_appended(self) -> list[PartitionLog]:
        """Return the logs that the last commits have made longer."""
        appended, self._appended = self._appended, []
        return appended

    def commit(self, now: Now) -> list[StagedProduce]:
        """Append the staged batches. Return the requests to answer, in the order of each connection's requests."""
        by_log, self.by_log = self.by_log, defaultdict(list)
        ids = self._id_stamper.source()
        for log, batches in by_log.items():
            self._append(log, batches, ids, now)
        staged, self.requests = self.requests, []
        if not self._held:
            return staged
        # Answers leave in the order of a connection's requests. So a request that waits for ids keeps back all later
        # ones of its connection, though their batches are in the log already.
        settled, blocked = [], set()
        for request in staged:
            if request.unsettled or request.conn in blocked:
                blocked.add(request.conn)
                self.requests.append(request)
            else:
                settled.append(request)
        return settled

    def _append(self, log: PartitionLog, batches: list[StagedBatch], ids: IdSource, now: Now) -> None:
        """Append to one log with as few writes as possible."""
        # `append_batches` writes as many batches from the front as one write can take. Nothing written means that the
        # first one needs `append`, which knows duplicates, or finishes a batch with its ids (`Rewrite`). An error is
        # that of the first batch, so this batch is refused alone, and the loop continues behind it.
        if self._disk.full_since_ms is not None:
            self._refuse_full(log, batches)
            return
        end_offset = log.log_end_offset
        done = 0
        while done < len(batches):
            rest: Sequence[StagedBatch] = batches[done:] if done else batches
            try:
                offsets, runs = NOTHING_APPENDED if rest[0][4] else append_batches(log, rest, ids, now)
                if not offsets:
                    rest, offsets, runs = _append_one(log, rest[0], ids, now)
                _settle(log, rest, offsets, runs)
                done += len(offsets)
            except SequenceExhausted as error:
                if ids is not self._id_stamper and self._id_stamper.ahead is not None:
                    ids = self._id_stamper  # for logs ahead of the clock it has another worker
                    continue
                self._hold(log, batches[done:], error.retry_at_ms - now.wall_ms, error, now)
                break
            except LeadExhausted as error:
                self._hold(log, batches[done:], LEAD_RETRY_MS, error, now)
                break
            except ApiError as error:
                self.refuse(*batches[done][2:4], error)
                done += 1
            except IdError as error:
                self.refuse(*batches[done][2:4], ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
                done += 1
            except Exception as error:
                for _, _, staged, index, _ in batches[done:]:
                    staged.failure = error
                    staged.unsettled -= 1
                break
        if log.log_end_offset > end_offset:
            self._appended.append(log)

    def _refuse_full(self, log: PartitionLog, batches: Sequence[StagedBatch]) -> None:
        """Refuse batches because the disk is full, so that they leave its last bytes to the writes that free space.

        A batch that the log has already is answered with its place, because it needs no space.
        """
        reason = f"{log.name}: the disk of {self._disk.location} is full; messages are taken again when it has space"
        for batch in batches:
            first = None
            with suppress(ApiError):  # the batch before it may have been refused for the full disk
                log.check_online()
                first = find_duplicate(log, batch[1])
            if first is None:
                self.refuse(*batch[2:4], ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason))
            else:
                _settle(log, *_placed(batch, first))

    def _hold(
        self, log: PartitionLog, batches: Sequence[StagedBatch], wait_ms: int, error: IdError, now: Now
    ) -> None:
        """Keep batches that have no ids for `wait_ms`. Copy their bytes, because frames are invalid after the turn.

        A batch is refused instead if the wait is too long for its request, or if another batch of its request is in the
        log, because that request must be answered. The client then sends the refused batch again.
        """
        self._clock_waits.refused(log, now)
        holds = False
        for batch, _, staged, index, _ in batches:
            if any(result is not None and not result.error_code for result in staged.results):
                self.refuse(staged, index, ApiError(ErrorCode.REQUEST_TIMED_OUT, "ids have run ahead of the clock"))
            elif now.ms + wait_ms > self._held_until_ms(staged, now):
                self.refuse(staged, index, late(self._partition_of(log), self._why_late(log, error, now)))
            else:
                sent = batch if staged.originals is None else staged.originals.get(index, batch)
                self._held.append((staged, index, memoryview(bytearray(sent))))
                holds = True
        retry_wall_ms = now.wall_ms + wait_ms
        if holds and (self.retry_wall_ms is None or retry_wall_ms < self.retry_wall_ms):
            self.retry_wall_ms = retry_wall_ms

    def _held_until_ms(self, staged: StagedProduce, now: Now) -> int:
        """Return until when a request may be held, from the first time that it had no ids."""
        if staged.held_until_ms is None:
            staged.held_until_ms = now.ms + min(max(staged.request.timeout_ms, 0), self._max_wait_ms)
        return staged.held_until_ms

    def _why_late(self, log: PartitionLog, error: IdError, now: Now) -> str:
        if isinstance(error, SequenceExhausted) and self._id_stamper.wait_ms(log.last_id, now.wall_ms):
            return self._clock_waits.why(log, now)
        return f"{log.name}: {error}"


def _append_one(
    log: PartitionLog, staged_batch: StagedBatch, ids: IdSource, now: Now
) -> tuple[Sequence[StagedBatch], Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
    """Append a batch that may be a duplicate, or that contains its ids. Return it with its offsets and ids."""
    batch, header, _, _, rewrite = staged_batch
    return _placed(staged_batch, append(log, batch, header, ids, now, rewrite))


def _placed(
    staged_batch: StagedBatch, appended: Appended
) -> tuple[Sequence[StagedBatch], Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
    """Return a batch with its offsets and ids, as `_settle` takes them."""
    batch, header, staged, index, rewrite = staged_batch
    if appended.duplicate and header.attributes & TIMESTAMP_TYPE_BIT:
        header = header._replace(max_timestamp=appended.timestamp_ms)
    offsets = ((appended.base_offset, appended.last_offset),)
    return ((batch, header, staged, index, rewrite),), offsets, appended.runs


def _settle(
    log: PartitionLog,
    batches: Sequence[StagedBatch],
    offsets: Sequence[tuple[int, int]],
    runs: Sequence[tuple[int, int]],
) -> None:
    """Set the results of appended batches; `runs` are the ids of all of them."""
    start_offset, durable_end, waiting_acks = log.log_start_offset, log.durability.end_offset, log.waiting_acks
    replicated_to = log.replicated_to
    first_offset = offsets[0][0]
    for (_, header, staged, index, _), (base_offset, last_offset) in zip(batches, offsets, strict=False):
        staged.unsettled -= 1
        append_ms = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_BIT else NO_TIMESTAMP
        template = staged.template
        on_disk = durable_end <= last_offset and staged.acks in waiting_acks
        on_replicas = replicated_to <= last_offset and staged.acks == ACKS_ALL
        if type(template) is ProduceTemplate:  # nearly always; isinstance costs twice as much
            staged.reply = template.encode_reply(staged.correlation_id, base_offset, append_ms, start_offset)
            if not on_disk and not on_replicas:
                continue
        request = staged.request
        topic, partition, *_ = request.partitions[index]
        ids = part_of(runs, base_offset - first_offset, last_offset + 1 - first_offset) if request.wants_ids else ()
        staged.results[index] = _record(
            PartitionResult, (topic, partition, 0, base_offset, append_ms, start_offset, None, (), ids, None)
        )
        if on_disk or on_replicas:
            on_replicas = on_replicas or counts_copies(log, staged.acks)
            waiting = StoredEnd(log, last_offset + 1, on_disk, on_replicas), index
            if staged.unstored is None:
                staged.unstored = [waiting]
            else:
                staged.unstored.append(waiting)


def part_of(runs: Sequence[tuple[int, int]], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return ids number `start` to `end` - 1 of some runs (first id, count), as runs."""
    part = []
    for first, count in runs:
        low, high = max(start, 0), min(end, count)
        if low < high:
            part.append((first + low, high - low))
        start, end = start - count, end - count
    return tuple(part)
