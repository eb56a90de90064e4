"""The engine: all tasks of a topology in one thread, one step at a time, with the clock as an argument.

    step(now_ms):  ended trees -> their spouts;  bolts, the last first -> their inboxes;  spouts -> next_tuple

Sinks work before sources, so that queues drain before they fill. A task that could emit into a full inbox waits: a bolt
keeps its tuple in the inbox, and a spout's next_tuple is not called. Bolts form no cycle (the plan is checked), so the
last bolt can always continue. The same steps and times give the same run under a reactor, a test or a simulation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from spout.acker import TIMEOUT, Acker, Outcome
from spout.api import Bolt, Report, Spout, Stream, Tuple, World
from spout.collector import BoltCollector, Exchange, SpoutCollector
from spout.config import TopologyConfig
from spout.grouping import Grouping
from spout.task import Task, TaskCounts
from spout.topology import Node, Plan, TopologyError

REPORTED_MESSAGES_MAX = 10  # messages named in the report of a failure: a batch may have thousands
BATCH = 100  # maximum tuples or next_tuple calls of one task before the next task's turn: keeps a step short


class TaskContext:
    """The spout.api.Context of one task."""

    def __init__(self, executor: "Executor", task: Task, parallelism: int) -> None:
        self._executor = executor
        self.component = task.component
        self.task = task.number
        self.index = task.index
        self.parallelism = parallelism
        self.topology = executor.plan.name
        self.topology_id = executor.plan.id
        self.run_id = executor.run_id
        self.config = executor.config
        self.world = executor.world
        self.wake: Callable[[], None] = executor.wake
        self.failure = ""
        self.unavailable = False

    @property
    def now_ms(self) -> int:
        return self._executor.now_ms

    def log(self, text: str, level: str = "info") -> None:
        self._executor.report(Report(level, self.component, self.index, text))

    def tasks_of(self, component: str) -> tuple[int, ...]:
        return self._executor.tasks_of(component)


class Executor:
    """The tasks of a topology.

    An exception from a spout, or from a bolt's `prepare` or `cleanup`, propagates out of the Executor method called.
    """

    def __init__(
        self,
        plan: Plan,
        config: TopologyConfig,
        world: World,
        *,
        run_id: str,
        random_bits: Callable[[], int],
        wake: Callable[[], None] = lambda: None,
        report: Callable[[Report], None] = lambda report: None,
    ) -> None:
        """Create the tasks.

        `run_id` must be unique to this run; ports call `wake`; `report` receives the lines for the log.
        """
        self.plan = plan
        self.config = config
        self.world = world
        self.run_id = run_id
        self.wake = wake
        self._acker = Acker(config.message_timeout_ms)
        self.report = report
        self._exchange = Exchange(self._acker, random_bits, self._error)
        self._active = False
        self._tasks: dict[int, Task] = {}
        self._spouts = [task for node in plan.spouts for task in self._make(node)]
        self._bolts = [task for node in plan.bolts for task in self._make(node)]
        self._connect()

    # --- lifecycle

    def start(self, now_ms: int) -> None:
        """Prepare the bolts, open the spouts and activate them."""
        self._exchange.now_ms = now_ms
        for task in self._bolts:
            bolt = _bolt(task)
            bolt.prepare()
            if bolt.tick_interval_ms is not None:
                task.tick_at_ms = now_ms + bolt.tick_interval_ms
        for task in self._spouts:
            _spout(task).open()
        self.activate(now_ms)

    def activate(self, now_ms: int) -> None:
        """Let spouts emit."""
        self._exchange.now_ms = now_ms
        self._active = True
        for task in self._spouts:
            _spout(task).activate()

    def deactivate(self, now_ms: int) -> None:
        """Stop spouts from emitting; tuples in flight are still processed."""
        self._exchange.now_ms = now_ms
        self._active = False
        for task in self._spouts:
            _spout(task).deactivate()

    def finish(self, now_ms: int) -> None:
        """After `deactivate`, tell spouts to store their progress; see `idle`.

        Few tuples should be in flight by now.
        """
        self._exchange.now_ms = now_ms
        for task in self._spouts:
            _spout(task).finish()

    def close(self, now_ms: int) -> None:
        """Close all tasks, spouts first. Tuples in flight are abandoned."""
        self._exchange.now_ms = now_ms
        self._active = False
        for task in self._spouts:
            _spout(task).close()
        for task in reversed(self._bolts):
            _bolt(task).cleanup()

    # --- work

    def step(self, now_ms: int) -> bool:
        """Do a bounded amount of the work that is ready. Return True if there was any."""
        self._exchange.now_ms = now_ms
        self._acker.expire(now_ms)
        worked = self._settle()
        for task in reversed(self._bolts):
            worked |= self._run_bolt(task, now_ms)
        for task in self._spouts:
            worked |= self._run_spout(task)
        return worked

    def next_deadline_ms(self) -> int | None:
        """Return when the next step will have work if the last one had none and no port calls `wake`, or None."""
        times = [self._acker.next_deadline_ms(), *(task.tick_at_ms for task in self._bolts)]
        later = self.now_ms + self.config.topology_spout_wait_ms
        for task in self._spouts:
            at_ms = _spout(task).next_deadline_ms()
            # A spout that cannot emit may have overdue work. It is polled again soon, but not at once, so that the
            # engine does not spin.
            times.append(at_ms if at_ms is None or self._can_emit(task) else max(at_ms, later))
        return min((t for t in times if t is not None), default=None)

    @property
    def now_ms(self) -> int:
        """Return the time of the current step."""
        return self._exchange.now_ms

    @property
    def in_flight(self) -> int:
        """Return the number of tuples whose spouts do not know their outcome, plus tuples in inboxes.

        0 means that every tuple is processed and its spout informed.
        """
        return sum(task.pending for task in self._spouts) + sum(len(task.inbox) for task in self._bolts)

    @property
    def idle(self) -> bool:
        """Return True if, after `finish`, no spout has anything outstanding."""
        return all(_spout(task).idle for task in self._spouts)

    def tasks_of(self, component: str) -> tuple[int, ...]:
        """Return the task numbers of a component. Raise TopologyError if the component does not exist."""
        numbers = tuple(number for number, task in self._tasks.items() if task.component == component)
        if not numbers:
            raise TopologyError(f"there is no component {component!r} in {self.plan.name!r}")
        return numbers

    def instances_of(self, component: str) -> list[Any]:
        """Return the spout or bolt objects of a component's tasks, for tests and figures."""
        return [self._tasks[number].instance for number in self.tasks_of(component)]

    def counts(self) -> dict[str, list[TaskCounts]]:
        """Return, for each component, the counts of its tasks by index."""
        counts: dict[str, list[TaskCounts]] = {}
        for task in self._tasks.values():
            counts.setdefault(task.component, []).append(task.counts)
        return counts

    # --- internals

    def _make(self, node: Node[Any]) -> list[Task]:
        limit = self.config.topology_max_tasks
        if node.parallelism > limit:
            wanted = f"topology.max.task.parallelism allows {limit}"
            raise TopologyError(f"{node.name!r} asks for {node.parallelism} tasks; {wanted}")
        made = []
        for index in range(node.parallelism):
            task = Task(len(self._tasks) + 1, node.name, index, node.make())
            self._tasks[task.number] = task
            collector = SpoutCollector if isinstance(task.instance, Spout) else BoltCollector
            task.instance.context = TaskContext(self, task, node.parallelism)
            task.instance.collector = collector(task, self._exchange)
            made.append(task)
        return made

    def _connect(self) -> None:
        for node in self.plan.nodes:
            streams: dict[str, Stream] = dict(node.streams)
            for number in self.tasks_of(node.name):
                self._tasks[number].connect(self._subscribers(node.name), streams)

    def _subscribers(self, component: str) -> dict[str, list[tuple[Grouping, list[Task]]]]:
        subscribers: dict[str, list[tuple[Grouping, list[Task]]]] = {}
        for bolt in self.plan.bolts:
            tasks = [self._tasks[number] for number in self.tasks_of(bolt.name)]
            for source, stream, grouping in bolt.inputs:
                if source == component:
                    subscribers.setdefault(stream, []).append((grouping, tasks))
        return subscribers

    def _settle(self) -> bool:
        outcomes = self._acker.take_outcomes()
        for outcome in outcomes:
            self._tell(self._tasks[outcome.task], outcome)
        return bool(outcomes)

    def _tell(self, task: Task, outcome: Outcome) -> None:
        task.pending -= 1
        spout = _spout(task)
        if outcome.error is None:
            task.counts.acked += 1
            spout.ack(outcome.id)
            return
        task.counts.failed += 1
        task.counts.timed_out += outcome.error == TIMEOUT
        spout.context.failure, spout.context.unavailable = outcome.error, outcome.unavailable
        cast(SpoutCollector, spout.collector).begin()
        spout.fail(outcome.id)

    def _run_bolt(self, task: Task, now_ms: int) -> bool:
        bolt, inbox, limit = _bolt(task), task.inbox, self.config.topology_executor_receive_buffer_size
        worked = False
        if task.tick_at_ms is not None and now_ms >= task.tick_at_ms:
            task.tick_at_ms = now_ms + (bolt.tick_interval_ms or 0)
            self._guard(task, (), bolt.tick)
            worked = True
        for _ in range(min(BATCH, len(inbox))):
            if task.is_held_up(limit):
                break
            self._execute(task, bolt)
            worked = True
        return worked

    def _execute(self, task: Task, bolt: Bolt) -> None:
        tup = task.inbox.popleft()
        task.counts.executed += 1
        collector = cast(BoltCollector, bolt.collector)
        collector.current = (tup,)
        error = self._guard(task, (tup,), bolt.execute, tup)
        collector.current = ()
        if error is not None:
            collector.fail(tup, error)
        elif bolt.auto_ack:
            collector.ack(tup)

    def _guard(
        self, task: Task, tuples: Sequence[Tuple], call: Callable[..., None], *args: Any
    ) -> Exception | None:
        """Call a bolt. If it raises, report the error with its tuples and return it; the topology continues."""
        try:
            call(*args)
        except Exception as error:
            self._exchange.report(task, error, tuples)
            return error
        return None

    def _run_spout(self, task: Task) -> bool:
        spout = _spout(task)
        spout.poll()
        collector = cast(SpoutCollector, spout.collector)
        for turn in range(BATCH):
            emitted = task.counts.emitted
            if not self._can_emit(task):
                return turn > 0
            collector.begin()
            spout.next_tuple()
            if task.counts.emitted == emitted:
                return turn > 0
        return True

    def _can_emit(self, task: Task) -> bool:
        room = task.pending < self.config.topology_max_spout_pending
        return self._active and room and not task.is_held_up(self.config.topology_executor_receive_buffer_size)

    def _error(self, task: Task, text: str, error: BaseException | None, tuples: Sequence[Tuple]) -> None:
        task.counts.errors += 1
        messages: list[Mapping[str, object]] = []
        for tup in tuples:
            if tup.link is not None and len(messages) < REPORTED_MESSAGES_MAX:
                messages += tup.link.details(REPORTED_MESSAGES_MAX - len(messages))
        self.report(Report("error", task.component, task.index, text, error, messages))


def _spout(task: Task) -> Spout:
    return cast(Spout, task.instance)


def _bolt(task: Task) -> Bolt:
    return cast(Bolt, task.instance)
