"""A task's turn in a step.

A spout's: its poll, then as many tuples as the inboxes of its receivers take. A bolt's: its tick if that is due, then
tuples of its inbox, for a limited time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from spout.acker import TIMEOUT, Failed, Tree
from spout.api import Bolt, Report, Tuple
from spout.background_collector import ThreadWork
from spout.collector import SpoutCollector, WorkCollector
from spout.config import TopologyConfig
from spout.engine_spout import EngineSpout
from spout.task import LATENCY_BUCKETS, Task
from spout.work import Interruption, Mode, mode_of, result_fault

BATCH = 100  # maximum tuples or next_tuple calls of one task before the next task's turn: keeps a step short
BATCH_NS = 10_000_000  # longest time of a bolt task's turn, plus one execute
WARN_MS = 60_000  # shortest time between two warnings that a task blocks the engine's thread


class SpoutTurn:
    """The turns of one spout task, and the outcomes of its tuples."""

    def __init__(self, task: Task, config: TopologyConfig) -> None:
        self.task = task
        self.spout = cast(EngineSpout, task.spout)
        self._collector = cast(SpoutCollector, task.instance.collector)
        self._pending_max = config.topology_max_spout_pending
        self._inbox_max = config.topology_executor_receive_buffer_size

    def take(self, now_ms: int) -> bool:
        """Poll the spout, and let it emit. Return True if it emitted."""
        counts = self.task.counts
        emitted = counts.emitted
        self.spout.poll(now_ms)
        room = self.room()
        if room > 0:
            self.spout.next_tuples(room, now_ms)
        return counts.emitted > emitted

    def room(self) -> int:
        """Return how many tuples the spout may emit in this step, from 0 to BATCH."""
        task = self.task
        if not task.active:
            return 0
        return max(0, min(BATCH, self._pending_max - task.pending, task.room(self._inbox_max)))

    def next_deadline_ms(self, soon_ms: int) -> int | None:
        """Return when the spout has work, or None. Return `soon_ms` for overdue work of a spout that cannot emit.

        So such a spout is polled again soon, but not at once, and the engine does not spin.
        """
        at_ms = self.spout.next_deadline_ms()
        return at_ms if at_ms is None or self.room() else max(at_ms, soon_ms)

    def ack(self, trees: Sequence[Tree], now_ms: int) -> None:
        """Tell the spout of complete trees in one call."""
        task = self.task
        task.pending -= len(trees)
        task.counts.acked += len(trees)
        for began_ms, times in Counter([tree.began_ms for tree in trees]).items():
            bucket = min((now_ms - began_ms).bit_length(), LATENCY_BUCKETS - 1)
            task.counts.latencies[bucket] += times
        self.spout.ack_many([tree.id for tree in trees])

    def fail(self, failed: Failed) -> None:
        """Tell the spout of a failed tree."""
        task, context = self.task, self.spout.context
        task.pending -= 1
        task.counts.failed += 1
        task.counts.timed_out += failed.error == TIMEOUT
        context.failure, context.unavailable = failed.error, failed.unavailable
        self._collector.begin()
        self.spout.fail(failed.id)


class BoltTurn:
    """The turns of one bolt task. `clock_ns` measures how long the bolt holds the engine's thread."""

    def __init__(
        self, task: Task, config: TopologyConfig, clock_ns: Callable[[], int], report: Callable[[Report], None]
    ) -> None:
        self._task = task
        self._bolt = cast(Bolt, task.instance)
        self._collector = cast(WorkCollector, task.instance.collector)
        self._config = config
        self._clock_ns = clock_ns
        self._report = report
        self._is_in_step = mode_of(self._bolt) is Mode.STEP or self._bolt.work_method != "execute"
        self._warn_at_ms = 0

    def start(self, now_ms: int) -> None:
        """Set the time of the first tick."""
        interval_ms, first_ms = self._bolt.tick_interval_ms, self._bolt.tick_first_ms
        if interval_ms is not None:
            self._task.tick_at_ms = now_ms + (interval_ms if first_ms is None else first_ms)

    def take(self, now_ms: int) -> bool:
        """Tick, and execute tuples. Return True if there was work."""
        task, clock_ns = self._task, self._clock_ns
        ticks = task.tick_at_ms is not None and now_ms >= task.tick_at_ms
        if not ticks and not task.inbox:
            return False
        started_ns = clock_ns()
        if ticks:
            self._tick(now_ms)
            self._check_blocking("tick", started_ns, now_ms)
        executed = self._execute_in_step(now_ms) if self._is_in_step else self._start_executing()
        task.counts.busy_ns += clock_ns() - started_ns
        return executed or ticks

    def _tick(self, now_ms: int) -> None:
        self._task.tick_at_ms = now_ms + (self._bolt.tick_interval_ms or 0)
        if self._is_in_step or not isinstance(self._collector, ThreadWork):
            self._collector.process_in_step(_tick, self._bolt, (), settle=False)
        elif self._collector.is_free:
            self._collector.process(_tick, self._bolt, (), settle=False)

    def _execute_in_step(self, now_ms: int) -> bool:
        """Execute tuples one after the other; ack those that succeeded together."""
        task, collector, limit = self._task, self._collector, self._config.topology_executor_receive_buffer_size
        execute, auto_ack, clock_ns, inbox = self._bolt.execute, self._bolt.auto_ack, self._clock_ns, task.inbox
        succeeded: list[Tuple] = []
        now_ns = clock_ns()
        executed, end_ns = 0, now_ns + BATCH_NS
        for _ in range(min(BATCH, len(inbox))):
            if now_ns > end_ns or task.running >= task.concurrency or task.receivers and task.is_held_up(limit):
                break
            tup = inbox.popleft()
            executed += 1
            collector.current = (tup,)
            error: BaseException | None = None
            try:
                result = execute(tup)
                if result is not None:
                    error = result_fault(execute, result)
            except Interruption:
                raise
            except BaseException as raised:
                error = raised
            if error is not None:
                collector.ack_all(succeeded)  # now, because the spout looks at the order of acks and failures
                succeeded = []
                collector.settle((tup,), error, ack=False)
            elif auto_ack:
                succeeded.append(tup)
            before_ns, now_ns = now_ns, clock_ns()
            if now_ns - before_ns >= BATCH_NS:
                self._check_blocking(self._bolt.work_method, before_ns, now_ms)
        collector.current = ()
        collector.ack_all(succeeded)
        task.counts.executed += executed
        return executed > 0

    def _start_executing(self) -> bool:
        """Start coroutines or calls in threads, as many as may run at once."""
        task, bolt, limit = self._task, self._bolt, self._config.topology_executor_receive_buffer_size
        executed = 0
        while task.inbox and executed < BATCH and task.running < task.concurrency and not task.is_held_up(limit):
            tup = task.inbox.popleft()
            executed += 1
            self._collector.process(bolt.execute, tup, (tup,), bolt.auto_ack)
        task.counts.executed += executed
        return executed > 0

    def _check_blocking(self, method: str, started_ns: int, now_ms: int) -> None:
        took_ms = (self._clock_ns() - started_ns) // 1_000_000
        if took_ms >= self._config.bolt_blocking_ms and now_ms >= self._warn_at_ms:
            self._warn_at_ms = now_ms + WARN_MS
            advice = f"set `threads` on the bolt, or make it `async def {self._bolt.work_method}`"
            text = f"{method} took {took_ms} ms, and nothing else ran in the engine's thread meanwhile: {advice}"
            self._report(Report("warn", self._task.component, self._task.index, text))


def _tick(bolt: Bolt) -> None:
    bolt.tick()
