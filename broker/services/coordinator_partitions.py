"""The partitions of a coordinator's topic that this node leads, each with its own coordinator.

    lead      absent -> loading -> active     the coordinator reads its records, in slices; then it serves requests
    resign    any    -> absent                it is unloaded, in slices; its waiting requests get NOT_COORDINATOR

A partition whose records cannot be read has failed. It goes offline, and the other partitions are served. A new leader
epoch of a partition that is led changes nothing else: the coordinator goes on, and its requests keep waiting.

Loads and unloads take turns, a slice at a time, so that they delay no request for long. Those of one partition run in
the order in which they were asked for.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from broker.log.keyed_records import Ended, Replayed, replay
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.record.batch import CorruptBatch
from broker.services.coordinator_topic import Answer, CoordinatorPorts, CoordinatorTopic, answer_when_stored
from broker.steps import Pace, Steps
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode

SLICE_EVERY_MS = 10  # a slice takes some 5 ms, so half of the time is left for requests


class LoadState(Enum):
    """The state of a coordinator; a partition without a coordinator is absent."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """Its log is offline or damaged."""
    RESIGNED = "resigned"


class PartitionCoordinator(ABC):
    """The coordinator of one partition. A subclass has its content, and says how to load and unload that."""

    bad_record: ClassVar[type[Exception]]
    """Raised by `replay` for a damaged record."""

    def __init__(self, partition: int, leader_epoch: int) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = LoadState.LOADING
        self.log: PartitionLog | None = None
        """The partition's log; None until it is first needed."""
        self.load_steps: Steps[None] | None = None
        """Its load, while slices of it are left."""
        self.is_unloaded = False

    @abstractmethod
    def replay(self, entry: Replayed | Ended) -> None:
        """Load a record or the end of a transaction. Raise `bad_record`."""

    def prepare(self, pace: Pace, now: Now) -> Steps[Now]:
        """Make what was loaded ready to be served, in slices. Return the time.

        Ends of transactions that come meanwhile are replayed afterwards.
        """
        yield from ()
        return now

    @abstractmethod
    def loaded(self, now: Now) -> None:
        """Begin to serve, because all records were loaded; the state is ACTIVE."""

    def stop_timers(self) -> None:
        """Let no timer change the content any more, because another node coordinates it."""

    @abstractmethod
    def unload(self, pace: Pace, now: Now) -> Steps[None]:
        """Answer the waiting requests with NOT_COORDINATOR, and stop all timers; the state is RESIGNED."""


C = TypeVar("C", bound=PartitionCoordinator)


class CoordinatorPartitions(Generic[C]):
    """The led partitions of `topic`. `make(partition, leader epoch, now)` returns the coordinator of one."""

    def __init__(self, topic: CoordinatorTopic, ports: CoordinatorPorts, make: Callable[[int, int, Now], C]) -> None:
        self.topic = topic
        self._ports = ports
        self._make = make
        self._led: dict[int, C] = {}
        self._jobs: dict[int, deque[Steps[None]]] = {}
        """Loads and unloads that are under way, by partition."""
        self._pace = Pace()
        self._due_ms = 0

    # --- lookup --------------------------------------------------------------------------------------------------

    def find(self, key: str) -> C | ErrorCode:
        """Return the coordinator of a key, or the error: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or
        COORDINATOR_NOT_AVAILABLE if the key's partition is offline."""
        led = self._led.get(self.topic.partition_of(key))
        if led is None:
            return ErrorCode.NOT_COORDINATOR
        log = led.log
        if log is not None and log.offline is None and led.state is LoadState.ACTIVE:
            return led
        return self._check(led) or led

    def _check(self, led: C) -> ErrorCode:
        if led.state is LoadState.LOADING:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if led.log is None and led.state is LoadState.ACTIVE:
            try:
                led.log = self._ports.logs.get(self.topic.name, led.partition)  # made now, if it is new
            except ApiError:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_served = led.state is LoadState.ACTIVE and led.log is not None and led.log.offline is None
        return ErrorCode.NONE if is_served else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def at(self, partition: int) -> C | None:
        """Return the coordinator of a partition that is served, else None."""
        led = self._led.get(partition)
        return led if led is not None and led.state is LoadState.ACTIVE else None

    def __iter__(self) -> Iterator[C]:
        """Iterate over the coordinators that are served. Partitions may come and go meanwhile."""
        return iter([led for led in self._led.values() if led.state is LoadState.ACTIVE])

    def led(self) -> list[C]:
        """Return all coordinators, also those that are loading or have failed."""
        return list(self._led.values())

    @property
    def is_loading(self) -> bool:
        """True if the coordinator of a partition is loading."""
        return any(led.state is LoadState.LOADING for led in self._led.values())

    # --- leadership ----------------------------------------------------------------------------------------------

    def lead(self, partition: int, leader_epoch: int, now: Now) -> None:
        """Coordinate a partition from now on. If it is led already, only note the epoch."""
        led = self._led.get(partition)
        if led is not None:
            led.leader_epoch = max(led.leader_epoch, leader_epoch)
            return
        led = self._led[partition] = self._make(partition, leader_epoch, now)
        self._begin_load(led, 0, now)

    def resign(self, partition: int, leader_epoch: int, now: Now) -> None:
        """Stop coordinating a partition, because another node leads it from this epoch on, or it was deleted.

        An epoch below the one in which it is led changes nothing.
        """
        led = self._led.get(partition)
        if led is None or leader_epoch < led.leader_epoch:
            return
        del self._led[partition]
        if led.load_steps is not None:
            led.load_steps.close()
            self._remove(partition, led.load_steps)
        led.state = LoadState.RESIGNED
        led.stop_timers()
        self._ports.purgatory.touch(led, now)
        self._begin(partition, self._unload(led), now)

    def follow_leaders(self, now: Now) -> None:
        """Lead all partitions that this broker leads now, in their epochs, and resign the others."""
        topic = self._ports.hosted.topic(self.topic.name)
        if topic is None:
            self.resign_all(now)
            return
        for partition, state in enumerate(topic.partitions):
            if state.leader == self._ports.node_id:
                self.lead(partition, state.leader_epoch, now)
            elif partition in self._led:
                self.resign(partition, max(state.leader_epoch, self._led[partition].leader_epoch), now)

    def resign_all(self, now: Now) -> None:
        """Stop coordinating all partitions, because the topic was deleted."""
        for led in self.led():
            self.resign(led.partition, led.leader_epoch, now)

    def load_all(self, now: Now) -> None:
        """Lead all partitions that this broker leads, and load them at once, before requests are served.

        Only a partition whose end must be on the disk first, and is not, is loaded later.
        """
        self.follow_leaders(now)
        while self._jobs:
            self._run_slice(now)

    def load_again(self, partition: int, now: Now) -> None:
        """Load a led partition once more, because its log could not be opened before."""
        led = self._led.get(partition)
        if led is not None:
            self.resign(partition, led.leader_epoch, now)
            self.lead(partition, led.leader_epoch, now)

    # --- slices --------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None if nothing is loaded or unloaded."""
        return self._due_ms if self._jobs else None

    def tick(self, now: Now) -> None:
        """Run a slice of the loads and unloads, if it is due."""
        if self._jobs and self._due_ms <= now.ms:
            self._run_slice(now)

    def _begin(self, partition: int, steps: Steps[None], now: Now) -> None:
        """Begin a load or an unload. A small one is done at once, unless others go on."""
        next(steps)  # up to where it takes the time of its first slice
        self._jobs.setdefault(partition, deque()).append(steps)
        self.tick(now)

    def _run_slice(self, now: Now) -> None:
        """Run loads and unloads until the slice is over."""
        while self._jobs:
            partition, jobs = next(iter(self._jobs.items()))
            steps = jobs[0]
            try:
                steps.send(now)
            except StopIteration:
                self._remove(partition, steps)
            else:
                del self._jobs[partition]
                self._jobs[partition] = jobs  # behind the other partitions
                self._due_ms = now.ms + SLICE_EVERY_MS
                return

    def _remove(self, partition: int, steps: Steps[None]) -> None:
        jobs = self._jobs.get(partition, deque())
        if steps in jobs:
            jobs.remove(steps)
            if not jobs:
                del self._jobs[partition]

    # --- loading -------------------------------------------------------------------------------------------------

    def _begin_load(self, led: C, offset: int, now: Now) -> None:
        led.load_steps = self._load(led, offset)
        self._begin(led.partition, led.load_steps, now)

    def _load(self, led: C, offset: int) -> Steps[None]:
        """Load a partition's records from an offset up to the log's end, and begin to serve when that end is committed.
        """
        now = yield
        logs = self._ports.logs
        log = led.log = logs.find(self.topic.name, led.partition)
        if log is not None and log.offline is None:
            try:
                offset, now = yield from replay(log, offset, led.replay, self._pace, now)
                if offset <= log.high_watermark:
                    now = yield from led.prepare(self._pace, now)
                    offset, now = yield from replay(log, offset, led.replay, self._pace, now)
            except (CorruptBatch, ApiError, led.bad_record) as error:
                self._failed(led, log, error)
        if logs.is_offline(self.topic.name, led.partition):
            led.state = LoadState.FAILED
            yield from self._unload_content(led, now)
        led.load_steps = None
        if led.state is LoadState.FAILED:
            return
        if log is not None and offset > log.high_watermark:
            self._load_later(led, log, offset, now)
            return
        led.state = LoadState.ACTIVE
        led.loaded(now)

    def _load_later(self, led: C, log: PartitionLog, offset: int, now: Now) -> None:
        """Go on when consumers see all that is loaded, because an answer must not tell of more than is committed."""
        settled: Delayed[Now] = Delayed(
            [log.durability.key, led],
            None,
            lambda at: at if log.high_watermark >= offset or log.offline is not None or _is_resigned(led) else None,
            lambda at: at,
        )

        def done(at: Now) -> None:
            if not _is_resigned(led):
                self._begin_load(led, offset, at)

        self._ports.purgatory.watch(settled, done, now, limited=False)

    def _failed(self, led: C, log: PartitionLog, error: Exception) -> None:
        led.state = LoadState.FAILED
        if log.offline is None:
            log.offline = str(error)
        self._ports.report(f"partition {log.name} is offline, and the {self.topic.keeps} it keeps: {error}")

    def _unload(self, led: C) -> Steps[None]:
        now = yield
        yield from self._unload_content(led, now)

    def _unload_content(self, led: C, now: Now) -> Steps[None]:
        if not led.is_unloaded:
            led.is_unloaded = True
            yield from led.unload(self._pace, now)

    # --- the disk ------------------------------------------------------------------------------------------------

    def when_stored(self, partitions: Collection[C], answer: Answer, now: Now) -> Answer | Delayed[Answer]:
        """Return the answer, delayed until these coordinators' partitions are stored as they are now: on all replicas
        in sync, and on the disk if the topic requires it.

        If this fails, or takes longer than offsets.commit.timeout.ms, the answer is COORDINATOR_NOT_AVAILABLE, which
        clients retry. If a coordinator resigns before, it is NOT_COORDINATOR.
        """

        def refusal() -> ErrorCode:
            return ErrorCode.NOT_COORDINATOR if any(map(_is_resigned, partitions)) else ErrorCode.NONE

        logs = [led.log for led in partitions if led.log is not None]
        deadline_ms = now.ms + self._ports.commit_timeout_ms
        return answer_when_stored(self._ports, logs, answer, deadline_ms, partitions, refusal)


def _is_resigned(led: PartitionCoordinator) -> bool:
    return led.state is LoadState.RESIGNED
