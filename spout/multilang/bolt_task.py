"""A bolt's task inside Storm: tuples and heartbeats in, and emits, acks, fails, errors and lines of the log out.

    receive(messages, now_ms), work(now_ms) -> more to do, take() -> bytes, next_deadline_ms()

Storm feeds tuples without waiting for their acks, so coroutines and threads work as in the embedded engine. Tuples
for which the bolt raises Unavailable are held; see spout.multilang.held.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring
from typing import Any, cast

from spout.api import Bolt, Emitter, Fields, Tuple, Unavailable
from spout.background_collector import BackgroundCollector, CoroutineWork, ThreadWork
from spout.collector import WorkCollector, cause_number, text_of
from spout.figures.model import MessageFailure, OutageFigures
from spout.multilang.context import MetricsSender, StormContext, TaskSetup, node_of, task_of, wire_of
from spout.multilang.frames import BadFrame
from spout.multilang.held import HeldTuples
from spout.multilang.origins import StormTuple, Watermarks, field_json, field_of, restored, text_of_emit
from spout.multilang.streams import MESSAGE_FIELD, storm_tick_seconds
from spout.multilang.values import values_of
from spout.multilang.wire import Wire, direct_part
from spout.task import Task
from spout.topology import TopologyError
from spout.turn import BoltTurn
from spout.work import Background, Mode, mode_of

HEARTBEAT = "__heartbeat"
TICK = "__tick"
FAILURES_PUBLISHED_MAX = 50  # in one document, which take 10 kB
FAILURES_PUBLISHED_MS = 3_000  # longer than two seconds, the time between documents, so that one has the failure
FAILURE_CHARACTERS_MAX = 300
SYNC_MS = 500  # how often Storm hears from a task that reads nothing, because too many tuples wait


class StormBoltCollector(WorkCollector):
    """The collector of a bolt task inside Storm. `held` has the tuples that wait for a service."""

    _exchange: Wire
    held: HeldTuples

    def __init__(self, task: Task, exchange: Wire) -> None:
        super().__init__(task, exchange)
        # The latest failures, each with its time, its tuple and its reason.
        self.failures: deque[tuple[int, Tuple, str]] = deque(maxlen=FAILURES_PUBLISHED_MAX)
        self._needs_task_ids = cast(Bolt, task.instance).needs_task_ids
        self._need_part = "}" if self._needs_task_ids else ',"need_task_ids":false}'

    def is_open(self, tup: Tuple) -> bool:
        """Return True unless the tuple is acked or failed, or stored progress has passed its message.

        Storm does not tell a bolt that a tuple has timed out.
        """
        return tup.anchors is not None and not (isinstance(tup, StormTuple) and tup.is_passed())

    def _deliver(
        self, values: Sequence[Any], id: Any, anchors: Sequence[Tuple] | None, stream: str, task: int | None
    ) -> list[int]:
        """Write a tuple. Return [], or the numbers of the receiving tasks if the bolt sets `needs_task_ids`."""
        if id is not None:
            raise ValueError(f"{self._task.component} is a bolt: its tuples are anchored, they have no id")
        wire, me = self._exchange, self._task
        outlet = wire.outlet(me, stream)
        if task is not None or outlet.direct or len(values) != outlet.width:
            outlet.check(values, task)
        if anchors is None:
            anchors = self.current
        for tup in anchors:
            if tup.anchors is None:
                raise ValueError(f"{me.component} anchors a tuple to {tup!r}, which it acked or failed before")
        row, originals = wire.row(outlet, values)
        text = text_of_emit(me.component, cause_number(anchors), anchors)
        message = field_json(field_of(text, originals))
        ids = ",".join(dict.fromkeys([encode_basestring(tup.anchors) for tup in anchors]))
        part = f'"tuple":[{row}{message}]{outlet.stream_part}{direct_part(task)}{self._need_part}'
        wire.write(f'{{"command":"emit","anchors":[{ids}],{part}')
        me.counts.emitted += 1
        if task is not None:
            return [task]  # Storm gives no answer to a direct emit
        return wire.task_ids(_is_heartbeat(wire)) if self._needs_task_ids else []

    def ack(self, tup: Tuple) -> None:
        """Ack a tuple. A second ack or fail of it is ignored."""
        self.ack_all((tup,))

    def ack_all(self, tuples: Sequence[Tuple]) -> None:
        """Ack tuples, except those that are acked or failed already."""
        held = self.held
        for tup in tuples:
            if tup.anchors is not None:
                self._exchange.write(f'{{"command":"ack","id":{encode_basestring(tup.anchors)}}}')
                tup.anchors = None
                self._task.counts.acked += 1
                if held.tries:
                    held.settled(tup)

    def fail(self, tup: Tuple, error: str | BaseException = "") -> None:
        """Fail a tuple so that its message is emitted again. A second ack or fail of it is ignored.

        If the error is Unavailable, hold the tuple and execute it again later. Storm has no place for the error; the
        spout finds it in the figures.
        """
        if tup.anchors is None:
            return
        if not isinstance(error, Unavailable):
            self.held.settled(tup)
        elif self.held.keep(tup, error, self._exchange.now_ms):
            tup.anchors = None
            return
        self.give_up(tup, text_of(error))

    def give_up(self, tup: Tuple, error: str) -> None:
        """Fail a tuple that is neither acked nor failed, whatever the reason."""
        self.failures.append((self._exchange.now_ms, tup, error))
        self._exchange.write(f'{{"command":"fail","id":{encode_basestring(tup.anchors)}}}')
        tup.anchors = None
        self._task.counts.failed += 1


class StormCoroutineCollector(CoroutineWork, StormBoltCollector):
    """The collector of a bolt task inside Storm whose work is a coroutine."""


class StormThreadCollector(ThreadWork, StormBoltCollector):
    """The collector of a bolt task inside Storm whose work runs in threads."""


class BoltTask:
    """The task of one bolt. Raise TopologyError or BadHandshake if it cannot run."""

    def __init__(self, setup: TaskSetup, background: Background, clock_ns: Any = lambda: 0) -> None:
        node = node_of(setup.plan, setup.handshake.component)
        self.bolt = cast(Bolt, node.make())
        self.wire = wire_of(setup, node)
        self._config = setup.topology_config
        self._watermarks: Watermarks = {}
        self._emitters: dict[tuple[str, str, int], tuple[Emitter, bool]] = {}
        self._inputs = setup.handshake.inputs
        self.task = task_of(setup, self.bolt)
        context = StormContext(setup, self.wire, self._watermarks)
        self.bolt.context = context
        self.bolt.collector = self._collector = self._make_collector(background)
        timeout_ms, pause_max_ms = self._config.message_timeout_ms, setup.config.storm_unavailable_pause_max_ms
        self._held = self._collector.held = HeldTuples(timeout_ms, pause_max_ms)
        self._background = self._collector if isinstance(self._collector, BackgroundCollector) else None
        self._turn = BoltTurn(self.task, self._config, clock_ns, self.wire.report_line)
        self._metrics = MetricsSender(self.wire, context.metrics, setup.config.metric_names)
        self._storm_ticks = setup.handshake.tick_seconds is not None and (
            self.bolt.tick_interval_ms is None or storm_tick_seconds(self.bolt) == setup.handshake.tick_seconds
        )
        self._sync_at_ms = 0

    # --- the shell's verbs

    def take(self) -> bytes:
        """Return and clear the bytes for Storm."""
        return self.wire.take()

    def open(self, now_ms: int) -> None:
        """Prepare the bolt; an exception of it comes out."""
        self.wire.now_ms = now_ms
        self.bolt.prepare()
        if not self._storm_ticks:
            self._turn.start(now_ms)

    def receive(self, messages: Iterable[Any], now_ms: int) -> bool:
        """Take messages of Storm, answer heartbeats, and `work`. Raise BadFrame."""
        self.wire.now_ms = now_ms
        for message in messages:
            self._take(message)
        return self.work(now_ms)

    def work(self, now_ms: int) -> bool:
        """Execute tuples for a limited time. Return True if there is more to do at once."""
        wire = self.wire
        wire.now_ms = now_ms
        wire.in_step = True
        try:
            if self._background is not None:
                self._background.expire(now_ms, self._config.message_timeout_ms)
            if self._held:
                self._take_held(now_ms)
            worked = self._turn.take(now_ms)
        finally:
            wire.in_step = False
        if self._storm_ticks:
            self.task.tick_at_ms = None
        while wire.waiting:
            self._take(wire.waiting.popleft())
        if self.is_full and now_ms >= self._sync_at_ms:
            self._sync_at_ms = now_ms + SYNC_MS
            wire.sync()
        wire.take_lines()
        if self._metrics.names:
            self._metrics.send()
        return worked and bool(self.task.inbox)

    @property
    def is_full(self) -> bool:
        """Return True if too many tuples wait: the shell then reads no more of Storm's messages."""
        return len(self.task.inbox) + len(self._held) >= self._config.topology_executor_receive_buffer_size

    @property
    def is_waiting_for_storm(self) -> bool:
        """Return True if only Storm brings more work: nothing runs in coroutines or threads."""
        return not self.task.running and not self.task.inbox

    def next_deadline_ms(self) -> int | None:
        """Return when `work` has something to do although nothing comes, or None."""
        times = [self.task.tick_at_ms, self.wire.next_deadline_ms(), self._held.next_deadline_ms(self.wire.now_ms)]
        if self._background is not None:
            times.append(self._background.next_deadline_ms(self._config.message_timeout_ms))
        if self.is_full:
            times.append(self._sync_at_ms)
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def finish(self, now_ms: int) -> None:
        """Nothing to store: tuples that are not acked by now come again."""
        self.wire.now_ms = now_ms

    idle = True

    @property
    def in_flight(self) -> int:
        """Return 0: a tuple in flight counts once, at its spout."""
        return 0

    def outages(self) -> tuple[OutageFigures, ...]:
        """Return the outage because of which tuples are held, if there is one."""
        outage = self._held.outage(self.wire.now_ms, self.task.index)
        return () if outage is None else (outage,)

    def failures(self) -> tuple[MessageFailure, ...]:
        """Return the latest failures of messages of logs, those of the last document too."""
        since_ms = self.wire.now_ms - FAILURES_PUBLISHED_MS
        failures = []
        for failed_ms, tup, error in self._collector.failures:
            messages = tup.link.details(1)[:1] if failed_ms >= since_ms and tup.link is not None else ()
            for message in messages:
                topic, partition, offset = (message.get(name) for name in ("topic", "partition", "offset"))
                if isinstance(topic, str) and isinstance(partition, int) and isinstance(offset, int):
                    reason = f"{error[:FAILURE_CHARACTERS_MAX]}, in {self.task.component}"
                    failures.append(MessageFailure(topic, partition, offset, reason))
        return tuple(failures)

    def close(self, now_ms: int) -> None:
        """End the coroutines and threads, and let the bolt release its resources."""
        self.wire.now_ms = now_ms
        if self._background is not None:
            self._background.abandon()
        self.bolt.cleanup()

    # --- internals

    def _take_held(self, now_ms: int) -> None:
        """Put tuples that waited for a service back into the inbox; fail those for which it is too late."""
        due = self._held.due(now_ms)
        self.task.inbox.extendleft(reversed(due.again))
        for tup, error in due.expired:
            reason = f"held for {(now_ms - tup.came_ms) / 1000:,.1f} s and given up: {text_of(error)}"
            self._collector.report_error(reason, (tup,))
            self._collector.give_up(tup, reason)

    def _make_collector(self, background: Background) -> StormBoltCollector:
        bolt, task, mode = self.bolt, self.task, mode_of(self.bolt)
        if mode is Mode.COROUTINE:
            task.concurrency = bolt.max_concurrent or self._config.bolt_max_concurrent
            return StormCoroutineCollector(task, self.wire, background)
        if mode is Mode.THREAD:
            limit = self._config.bolt_threads_max
            if bolt.threads > limit:
                allowed = f"flakelog.bolt.threads.max allows {limit}"
                raise TopologyError(f"{task.component!r} asks for {bolt.threads} threads; {allowed}")
            task.concurrency = bolt.threads
            return StormThreadCollector(task, self.wire, background)
        return StormBoltCollector(task, self.wire)

    def _take(self, message: Any) -> None:
        try:
            component, stream, number, id, row = (
                message["comp"], message["stream"], message["task"], message["id"], message["tuple"],
            )  # fmt: skip
        except (KeyError, TypeError):
            raise BadFrame(f"Storm sent no tuple: {str(message)[:200]}") from None
        if id.__class__ is not str or row.__class__ is not list:
            raise BadFrame(f"Storm sent a tuple without id or values: {str(message)[:200]}")
        if stream == HEARTBEAT:
            self.wire.sync()
        elif stream == TICK:
            self.wire.write(f'{{"command":"ack","id":{encode_basestring(id)}}}')
            if self._storm_ticks:
                self.task.tick_at_ms = self.wire.now_ms
        else:
            self.task.inbox.append(self._tuple(component, stream, number, id, row))

    def _tuple(self, component: str, stream: str, number: int, id: str, row: list[Any]) -> StormTuple:
        try:
            known_emitter = self._emitters.get((component, stream, number))
            if known_emitter is None:
                known_emitter = self._emitters[component, stream, number] = self._emitter(component, stream, number)
            emitter, has_message = known_emitter
            field = row.pop() if has_message else None
            values = values_of(row)
            text = restored(field, values)
        except BadFrame:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise BadFrame(f"stream {stream!r} of {component!r} brought a value that cannot be read: {error}") from None
        return StormTuple(tuple(values), emitter, id, text, self._watermarks, self.wire.now_ms, (row, field))

    def _emitter(self, component: str, stream: str, number: int) -> tuple[Emitter, bool]:
        """Return the emitter of tuples, and whether they have the field `__message`."""
        fields = self._inputs.get((component, stream))
        if fields is None:
            raise BadFrame(f"Storm sent a tuple of stream {stream!r} of {component!r}, which no handshake has named")
        has_message = fields.names[-1:] == (MESSAGE_FIELD,)
        own = Fields(fields.names[:-1]) if has_message else fields
        return Emitter(own, component, stream, number), has_message


def _is_heartbeat(wire: Wire) -> Any:
    def answered(message: Any) -> bool:
        if isinstance(message, dict) and message.get("stream") == HEARTBEAT:
            wire.sync()
            return True
        return False

    return answered
