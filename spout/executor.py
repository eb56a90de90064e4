"""The engine: all tasks of a topology in one thread, one step at a time, with the clock as an argument.

    step(now_ms):  ended trees -> their spouts;  bolts, the last first -> their inboxes;  spouts -> next_tuple

Sinks work before sources, so that queues drain before they fill. A task that could emit into a full inbox waits: a bolt
keeps its tuple in the inbox, and a spout's next_tuple is not called. Bolts form no cycle (the plan is checked), so the
last bolt can always continue. The same steps and times give the same run under a reactor, a test or a simulation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from spout.acker import Abandoned, Acker, Tree
from spout.api import Bolt, Report, Spout, Stream, Tuple, World
from spout.background_collector import BackgroundCollector, CoroutineCollector, ThreadCollector
from spout.collector import AckerEngine, BoltCollector, EmbeddedSpoutCollector
from spout.config import TopologyConfig
from spout.exactly_once import settle_together
from spout.grouping import Grouping
from spout.metrics import TaskMetrics
from spout.task import Task, TaskCounts
from spout.topology import Node, Plan, TopologyError
from spout.turn import BoltTurn, SpoutTurn
from spout.work import EXECUTION, EXITS, Background, Mode, NoBackground, mode_of

REPORTED_MESSAGES_MAX = 10  # messages named in the report of a failure: a batch may have thousands


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
        self.metrics = TaskMetrics(task.component, executor.config.bolt_metrics_max)
        self.counter = self.metrics.counter
        self.gauge = self.metrics.gauge

    @property
    def now_ms(self) -> int:
        return self._executor.now_ms

    def log(self, text: str, level: str = "info") -> None:
        self._executor.report(Report(level, self.component, self.index, text))

    def watermarks(self) -> Mapping[tuple[str, str, int], int]:
        return self._executor.watermarks()

    def tasks_of(self, component: str) -> tuple[int, ...]:
        return self._executor.tasks_of(component)


class Executor:
    """The tasks of a topology.

    An exception from a spout, or from a bolt's `prepare` or `cleanup`, propagates out of the Executor method called.
    """

    _opened: list[Task]  # tasks to close, in the order they were opened

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
        background: Background = NoBackground(),
        clock_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create the tasks.

        `run_id` must be unique to this run; ports call `wake`; `report` receives the lines for the log. `background`
        runs asynchronous and blocking bolts, and `clock_ns` measures how long a bolt holds the engine's thread.
        """
        self.plan = plan
        self.config = config
        self.world = world
        self.run_id = run_id
        self.wake = wake
        self._acker = Acker(config.message_timeout_ms)
        self.report = report
        self._exchange = AckerEngine(self._acker, random_bits, self._error, wake)
        self._background = background
        self._opened = []
        self._tasks: dict[int, Task] = {}
        self._spout_turns = [SpoutTurn(task, config) for node in plan.spouts for task in self._make(node)]
        self._called = self._spout_turns[0]  # the turn of the spout that a step called last
        self._bolts = [task for node in plan.bolts for task in self._make(node)]
        self._background_collectors = [
            task.instance.collector
            for task in self._bolts
            if isinstance(task.instance.collector, BackgroundCollector)
        ]
        self._connect()
        self._bolt_turns = [BoltTurn(task, config, clock_ns, report) for task in reversed(self._bolts)]
        settle_together(plan, self.instances_of)

    # --- lifecycle

    def start(self, now_ms: int) -> None:
        """Prepare the bolts, open the spouts and activate them. If one raises, close all that were opened before."""
        self._exchange.now_ms = now_ms
        try:
            for task in self._bolts:
                self._open(task, _bolt(task).prepare)
            for turn in self._spout_turns:
                self._open(turn.task, turn.spout.open)
            for bolt_turn in self._bolt_turns:
                bolt_turn.start(now_ms)
            self.activate(now_ms)
        except BaseException:
            self._close_all()  # its errors are reported; the first one comes out
            raise

    def activate(self, now_ms: int, component: str | None = None) -> None:
        """Let spouts emit: all of them, or those of one component. Raise TopologyError if it is no spout."""
        self._exchange.now_ms = now_ms
        for turn in self._turns_of(component):
            if not turn.task.active:
                turn.task.active = True
                turn.spout.activate()

    def deactivate(self, now_ms: int, component: str | None = None) -> None:
        """Stop spouts from emitting: all of them, or those of one component. Tuples in flight are still processed.

        Raise TopologyError if the component is no spout.
        """
        self._exchange.now_ms = now_ms
        for turn in self._turns_of(component):
            if turn.task.active:
                turn.task.active = False
                turn.spout.deactivate()

    def finish(self, now_ms: int) -> None:
        """After `deactivate`, tell spouts to store their progress; see `idle`.

        Few tuples should be in flight by now.
        """
        self._exchange.now_ms = now_ms
        for turn in self._spout_turns:
            turn.spout.finish(now_ms)

    def close(self, now_ms: int) -> None:
        """Close all tasks that were opened, the last first. Tuples in flight are abandoned.

        An exception keeps no other task from closing: each is reported, and the first comes out at the end.
        """
        self._exchange.now_ms = now_ms
        error = self._close_all()
        if error is not None:
            raise error

    # --- work

    def step(self, now_ms: int) -> bool:
        """Do a bounded amount of the work that is ready. Return True if there was any."""
        EXECUTION.set(None)  # a reactor may run the step in the context of the coroutine that asked for it
        self._exchange.now_ms = now_ms
        self._exchange.in_step = True
        try:
            for collector in self._background_collectors:
                collector.expire(now_ms, self.config.message_timeout_ms)
            self._acker.expire(now_ms)
            worked = self._settle()
            for bolt_turn in self._bolt_turns:
                worked |= bolt_turn.take(now_ms)
            for turn in self._spout_turns:
                self._called = turn
                worked |= turn.take(now_ms)
        except EXITS as error:  # of a spout: the collector of a bolt keeps its own
            self._exchange.leave(self._called.task, error, ())
            worked = True
        finally:
            self._exchange.in_step = False
        return worked

    def next_deadline_ms(self) -> int | None:
        """Return when the next step will have work if the last one had none and no port calls `wake`, or None."""
        times = [self._acker.next_deadline_ms(), *(task.tick_at_ms for task in self._bolts)]
        timeout_ms = self.config.message_timeout_ms
        times += [collector.next_deadline_ms(timeout_ms) for collector in self._background_collectors]
        soon_ms = self.now_ms + self.config.topology_spout_wait_ms
        times += [turn.next_deadline_ms(soon_ms) for turn in self._spout_turns]
        return min((t for t in times if t is not None), default=None)

    @property
    def now_ms(self) -> int:
        """Return the time of the current step."""
        return self._exchange.now_ms

    @property
    def exit(self) -> BaseException | None:
        """Return the first SystemExit or KeyboardInterrupt of user code: stop the topology, and end with it."""
        return self._exchange.exit

    @property
    def in_flight(self) -> int:
        """Return the number of tuples whose spouts do not know their outcome, plus tuples in inboxes and executions.

        0 means that every tuple is processed and its spout informed.
        """
        pending = sum(turn.task.pending for turn in self._spout_turns)
        return pending + sum(len(task.inbox) + task.running for task in self._bolts)

    @property
    def idle(self) -> bool:
        """Return True if, after `finish`, no spout has anything outstanding."""
        return all(turn.spout.idle for turn in self._spout_turns)

    def tasks_of(self, component: str) -> tuple[int, ...]:
        """Return the task numbers of a component. Raise TopologyError if the component does not exist."""
        numbers = tuple(number for number, task in self._tasks.items() if task.component == component)
        if not numbers:
            raise TopologyError(f"there is no component {component!r} in {self.plan.name!r}")
        return numbers

    def watermarks(self) -> dict[tuple[str, str, int], int]:
        """Return, by spout, topic and partition, the offset below which the spout emits no message again."""
        watermarks: dict[tuple[str, str, int], int] = {}
        for turn in self._spout_turns:
            of_spout = turn.spout.watermarks()
            watermarks |= {(turn.task.component, *partition): offset for partition, offset in of_spout.items()}
        return watermarks

    def instances_of(self, component: str) -> list[Any]:
        """Return the spout or bolt objects of a component's tasks, for tests and figures."""
        return [self._tasks[number].instance for number in self.tasks_of(component)]

    def counts(self) -> dict[str, list[TaskCounts]]:
        """Return, for each component, the counts of its tasks by index."""
        counts: dict[str, list[TaskCounts]] = {}
        for task in self._tasks.values():
            counts.setdefault(task.component, []).append(task.counts)
        return counts

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return, for each component, its own counters and gauges by name, each summed over its tasks."""
        sums: dict[str, dict[str, float]] = {}
        for task in self._tasks.values():
            component = sums.setdefault(task.component, {})
            for name, value in cast(TaskContext, task.instance.context).metrics.values().items():
                component[name] = component.get(name, 0) + value
        return sums

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
            task.instance.context = TaskContext(self, task, node.parallelism)
            task.instance.collector = self._collector(task)
            made.append(task)
        return made

    def _collector(self, task: Task) -> Any:
        bolt = task.instance
        if isinstance(bolt, Spout):
            return EmbeddedSpoutCollector(task, self._exchange)
        mode = mode_of(bolt)
        if mode is Mode.COROUTINE:
            task.concurrency = bolt.max_concurrent or self.config.bolt_max_concurrent
            return CoroutineCollector(task, self._exchange, self._background)
        if mode is Mode.THREAD:
            if bolt.threads > self.config.bolt_threads_max:
                allowed = f"flakelog.bolt.threads.max allows {self.config.bolt_threads_max}"
                raise TopologyError(f"{task.component!r} asks for {bolt.threads} threads; {allowed}")
            task.concurrency = bolt.threads
            return ThreadCollector(task, self._exchange, self._background)
        return BoltCollector(task, self._exchange)

    def _turns_of(self, component: str | None) -> list[SpoutTurn]:
        turns = [turn for turn in self._spout_turns if component in (None, turn.task.component)]
        if not turns:
            spouts = ", ".join(node.name for node in self.plan.spouts)
            raise TopologyError(f"there is no spout {component!r} in {self.plan.name!r}; there are: {spouts}")
        return turns

    def _open(self, task: Task, method: Callable[[], object]) -> None:
        try:
            method()
        except BaseException as error:
            self._tell(task, error, method)
            raise
        self._opened.append(task)

    def _tell(self, task: Task, error: BaseException, method: Callable[[], object]) -> None:
        if isinstance(error, EXITS):
            self._exchange.leave(task, error, (), getattr(method, "__name__", "it"))
        else:
            self._exchange.report(task, error, ())

    def _close_all(self) -> BaseException | None:
        for turn in self._spout_turns:
            turn.task.active = False
        for collector in self._background_collectors:
            collector.abandon()
        self._background.close()
        first: BaseException | None = None
        while self._opened:
            task = self._opened.pop()
            method = task.instance.close if isinstance(task.instance, Spout) else _bolt(task).cleanup
            try:
                method()
            except BaseException as error:
                self._tell(task, error, method)
                first = first or error
        return first

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
        """Tell the spouts which of their tuples are processed and which failed, in order. Return True if any."""
        ended = self._acker.take_ended()
        if not ended:
            return False
        completed: list[Tree] = []
        for outcome in ended:
            if isinstance(outcome, Tree):
                completed.append(outcome)
            elif isinstance(outcome, Abandoned):
                self._tasks[outcome.task].pending -= 1
            else:
                self._ack(completed)
                completed = []
                self._called = next(turn for turn in self._spout_turns if turn.task.number == outcome.task)
                self._called.fail(outcome)
        self._ack(completed)
        return True

    def _ack(self, completed: list[Tree]) -> None:
        """Tell each spout of its complete trees."""
        for turn in self._spout_turns if completed else ():
            number = turn.task.number
            trees = completed if len(self._spout_turns) == 1 else [tree for tree in completed if tree.task == number]
            if trees:
                self._called = turn
                turn.ack(trees, self.now_ms)

    def _error(self, task: Task, text: str, error: BaseException | None, tuples: Sequence[Tuple]) -> None:
        task.counts.errors += 1
        messages: list[Mapping[str, object]] = []
        for tup in tuples:
            if tup.link is not None and len(messages) < REPORTED_MESSAGES_MAX:
                messages += tup.link.details(REPORTED_MESSAGES_MAX - len(messages))
        self.report(Report("error", task.component, task.index, text, error, messages))


def _bolt(task: Task) -> Bolt:
    return cast(Bolt, task.instance)
