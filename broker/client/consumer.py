"""SHELL (a thread with an event loop): the Consumer, for programs without an event loop.

The loop's thread fetches ahead. The program's thread hands out the records that are prepared, and runs the callbacks.
"""

import asyncio
import atexit
import os
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from broker.client.async_consumer import ASKED_TWICE, HOUSEKEEPING_SECONDS, positions_to_commit, records_to_return
from broker.client.checked_arguments import check_number
from broker.client.consumer_config import ConsumerConfig
from broker.client.consumer_core import OnReset
from broker.client.consumer_engine import ASSIGNED, CLOSED, LOST, REVOKED, ConsumerEngine
from broker.client.consumer_figures import ConsumerFigures
from broker.client.errors import ClientError
from broker.client.group_protocol import Partition
from broker.client.group_requests import GroupIdentity
from broker.client.log_record import Record
from broker.client.offset_spec import AtId, AtTime, Earliest, Latest, OffsetSpec
from broker.client.old_spellings import RenamedAttribute
from broker.client.records import OnPoison
from broker.client.security.client_security import Security
from broker.client.subscription import Topics, check_offset, subscription

P = ParamSpec("P")
T = TypeVar("T")

OnRebalance = Callable[[frozenset[Partition]], object]
_now = time.monotonic


class Consumer:
    """A consumer of any broker of Kafka's protocol: an iterator of records, each with its Snowflake id.

        with Consumer("127.0.0.1:9092", "greetings", group="readers") as consumer:
            for record in consumer:
                print(record.id, record.value)

    **Topics.** `topics` is one name, several names, or a pattern made by `re.compile`. A pattern reads all topics whose
    whole name matches, also those created later.

    **Groups.** Consumers with the same `group` share the partitions (KIP-429), and go on where the group has committed.
    Without a group, a consumer reads all partitions, or those of `partitions`, and commits nothing. Where nothing is
    committed, it begins at `start`: `Earliest()`, `Latest()`, `AtOffset(n)`, `AtTime(ms)`, `AtId(id)` or `Last(n)`.

    **Commits.** A record counts as processed when the program asks for the next one. By default the consumer commits
    processed records every five seconds, and at the end of the `with` block. With
    `config=ConsumerConfig(auto_commit_interval_ms=None)`, only `commit` does. If an exception leaves the block, the
    records handed out last are not committed, and come again. The same holds if a program ends without a `close`.
    After a crash, all records since the last commit come again.

    **Security.** `security` has properties of Kafka's clients, such as `security.protocol` and `sasl.jaas.config`.

    **Waits.** The iterator ends after `timeout_ms` without a record, also while the group shares out its partitions.
    By default it waits for ever. One thread at a time may wait for a record. Any thread, or a signal handler, may call
    `close`: then the iterator ends. The program has to ask for a record every `max.poll.interval.ms`, or the group
    gives its partitions to others.

    **Callbacks.** `on_assigned` gets new partitions, `on_revoked` those to hand over, which may still be committed, and
    `on_lost` those that another member may own already, all as (topic, partition) pairs. `on_poison` gets each
    PoisonBatch that is skipped, and `on_reset` each Gap: a partition that goes on elsewhere, because its log no longer
    has the position. All run in the program's thread, while it waits for a record.

    **Errors.** The first record asked for raises Unreachable or BrokerError if a broker or topic is not there. Later
    failures are logged and tried again. Methods raise ClientError and its subclasses, or ValueError for an argument
    that cannot work.
    """

    def __init__(
        self,
        servers: str,
        topics: Topics,
        *,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
        start: OffsetSpec = Earliest(),
        timeout_ms: int | None = None,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
        on_poison: OnPoison | None = None,
        on_reset: OnReset | None = None,
        config: ConsumerConfig | None = None,
        security: Security = None,
    ) -> None:
        config = ConsumerConfig() if config is None else config
        if timeout_ms is not None:
            check_number("timeout_ms", timeout_ms)
        self._engine = ConsumerEngine(
            servers, subscription(topics, partitions, group), group, start, config, security=security
        )
        self._on_poison = on_poison
        self._on_reset = on_reset
        self._timeout_ms = timeout_ms
        self._callbacks = {ASSIGNED: on_assigned, REVOKED: on_revoked, LOST: on_lost}
        self._records_max = config.max_poll_records
        self._housekeeping = 0.0
        self._process = os.getpid()
        self._is_closed = False
        self._asking = Lock()
        self._waiting: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=_serve, args=(self._loop,), name=f"consumer {group or ''}", daemon=True)
        self._thread.start()
        self._abandoned = weakref.finalize(self, _abandon, self._loop, self._engine)
        self._abandoned.atexit = False  # at the program's end, _close_all closes the consumer and waits
        _open.add(self)

    def _call(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on the loop, and wait for it. An exception here, such as Ctrl-C, cancels it."""
        if os.getpid() != self._process:
            raise ClientError("the consumer belongs to the process that made it: make one after a fork")
        if self._is_closed:
            raise ClientError(CLOSED)
        return self._run(work, *args, **kwargs)

    def _run(self, work: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        future: Future[T] = Future()
        self._waiting.add(future)
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work(*args, **kwargs)))
            tasks[0].add_done_callback(partial(_pass_on, future))

        try:
            self._schedule(begin)
            return future.result()
        except CancelledError:
            raise ClientError(CLOSED) from None
        finally:
            self._waiting.discard(future)
            if not future.done():
                self._schedule(lambda: [task.cancel() for task in tasks])

    def _schedule(self, call: Callable[[], object]) -> None:
        """Call a function on the loop. Raise ClientError if another thread has closed it."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            raise ClientError(CLOSED) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and not self._is_closed and os.getpid() == self._process:
            self._engine.core.give_back()
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record; end after `timeout_ms` without one."""
        if not self._asking.acquire(blocking=False):
            raise ClientError(ASKED_TWICE)
        try:
            if _now() < self._housekeeping:
                record = self._engine.core.hand()
                if record is not None:
                    return record
            until = None if self._timeout_ms is None else _now() + self._timeout_ms / 1000
            while not self._is_closed and self._prepare_next(until):
                self._housekeeping = _now() + HOUSEKEEPING_SECONDS
                record = self._engine.core.hand()
                if record is not None:
                    return record
            raise StopIteration
        finally:
            self._asking.release()

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record]:
        """Return the next records, at most `max_records`; none if none came within the timeout."""
        check_number("timeout_ms", timeout_ms)
        records_max = self._records_max if max_records is None else records_to_return(max_records)
        if not self._asking.acquire(blocking=False):
            raise ClientError(ASKED_TWICE)
        try:
            self._prepare(records_max, _now() + timeout_ms / 1000)
            return self._engine.core.hand_all(records_max)
        finally:
            self._asking.release()

    def _end_turn(self) -> None:
        """Check for rebalances, commits and a fork before the next record."""
        self._housekeeping = 0.0

    def _prepare_next(self, until_s: float | None) -> bool:
        """Prepare records for the iterator. Return False if none come until then, or `close` is called meanwhile."""
        try:
            return self._prepare(self._records_max, until_s)
        except ClientError:
            if self._is_closed:
                return False
            raise

    def _prepare(self, records_max: int, until_s: float | None) -> bool:
        while True:
            step = self._call(self._engine.step, records_max, until_s)
            for batch in self._engine.take_poison():
                if self._on_poison is not None:
                    self._on_poison(batch)
            while (reset := self._engine.core.take_reset()) is not None:
                if self._on_reset is not None:
                    self._on_reset(reset)
            if isinstance(step, bool):
                return step
            callback = self._callbacks[step.kind]
            if callback is not None:
                callback(step.partitions)
            self._call(self._engine.settle, step)

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        """Commit the positions of all partitions, or these: {(topic, partition): next offset}. Raise CommitFailed.

        A position is the offset after the last record that the program got, so call it when that is processed.
        """
        self._call(self._engine.offsets.commit, positions_to_commit(self._engine, offsets))

    def committed(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """Return what the group has committed for these partitions or all owned ones."""
        return self._call(self._engine.committed, self.assignment if partitions is None else partitions)

    def position(self, topic: str, partition: int) -> int | None:
        """Return the offset after the last record handed out, None while it is not known."""
        return self._call(self._engine.position, (topic, partition))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at `offset`."""
        self._call(self._engine.seek, (topic, partition), check_offset((topic, partition), offset))

    def seek_to_time(self, time_ms: int, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record at or after a time, Unix ms, in these partitions or all owned ones."""
        self._call(self._engine.seek_to, AtTime(check_number("time_ms", time_ms)), partitions)

    def seek_to_id(self, id: int, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record whose id is at least `id`. Raise Unsupported if the broker keeps no ids."""
        self._call(self._engine.seek_to, AtId(check_number("id", id)), partitions)

    def seek_to_start(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the first record of the log."""
        self._call(self._engine.seek_to, Earliest(), partitions)

    def seek_to_end(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go on at the end of the log."""
        self._call(self._engine.seek_to, Latest(), partitions)

    def seek_to_committed(self, partitions: Iterable[Partition] | None = None) -> None:
        """Go back to what the group has committed, for example after a transaction was aborted. Raise CommitFailed.

        A partition of which the group has committed nothing begins at `start`.
        """
        self._call(self._engine.seek_to_committed, partitions)

    def pause(self, partitions: Iterable[Partition] | None = None) -> None:
        """Hold back the records of these partitions or all owned ones. The group is served as before."""
        self._call(self._engine.pause, partitions)

    def resume(self, partitions: Iterable[Partition] | None = None) -> None:
        """End the pause of these partitions or all owned ones."""
        self._call(self._engine.resume, partitions)

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that the consumer owns, as (topic, partition). The first record asked for begins to join."""
        return self._engine.core.owned

    @property
    def paused(self) -> frozenset[Partition]:
        """The partitions that are paused."""
        return self._engine.core.paused

    @property
    def identity(self) -> GroupIdentity:
        """The member of the group, for `Producer.send_offsets`. Raise CommitFailed without a group."""
        return self._engine.offsets.identity

    @property
    def uncommitted(self) -> dict[Partition, int]:
        """The positions that are not committed yet, {(topic, partition): next offset}, for `Producer.send_offsets`.

        `commit` stores these. A position is the offset after the last record that the program got.
        """
        return {key: committed.offset for key, committed in self._engine.core.to_commit().items()}

    positions = RenamedAttribute("uncommitted")

    def figures(self) -> ConsumerFigures:
        """Return requests and their times, records and bytes, and each partition's position and lag."""
        return self._engine.figures()

    def close(self) -> None:
        """Commit the processed records if commits are by time, and leave the group. Harmless if repeated."""
        if self._is_closed or os.getpid() != self._process:
            return
        self._is_closed = True
        self._abandoned.detach()
        _open.discard(self)
        try:
            self._run(self._engine.close)
        finally:
            self._run(_end_tasks)
            self._schedule(self._loop.stop)
            self._thread.join()
            for future in list(self._waiting):  # calls that came too late for the loop
                future.cancel()


_open: "weakref.WeakSet[Consumer]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the consumers that the program left open, without a commit of the records it received last."""
    for consumer in list(_open):
        consumer.__exit__(SystemExit, SystemExit(), None)


def _forbid_in_child() -> None:
    """Make the next record asked for in a forked child raise ClientError: the parent hands out those fetched ahead."""
    for consumer in list(_open):
        consumer._end_turn()


os.register_at_fork(after_in_child=_forbid_in_child)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a consumer's loop until it is stopped."""
    loop.run_forever()
    loop.close()


def _abandon(loop: asyncio.AbstractEventLoop, engine: ConsumerEngine) -> None:
    """Close a consumer that Python has collected. Do not wait, because collections happen in any thread."""

    async def close() -> None:
        engine.core.give_back()
        await engine.close()
        await _end_tasks()
        loop.stop()

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: loop.create_task(close()))


async def _end_tasks() -> None:
    """Cancel the calls that other threads wait for."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _pass_on(future: Future[T], task: "asyncio.Task[T]") -> None:
    """Give the outcome of a task to the thread that waits for it."""
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
