"""A spout's task inside Storm: `next`, `ack`, `fail`, `activate` and `deactivate` in, emits and `sync` out.

    receive(messages, now_ms), work(now_ms), take() -> bytes, next_deadline_ms()

Storm waits for the `sync` of each command before it sends another one. The id of an emit is a number on the wire. The
spout gets the id it emitted, the same object, whatever it is; an ack of a number that is not in flight is ignored.
Storm gives any JSON back as it was, lists too. A number is short, never comes twice in the life of a process, and lets
the id of a user's spout be of any type. The field `__message` tells where a tuple comes from.

Storm gives no reason for a failure. The time tells timeouts from failures. If a tuple needs a service that is down, its
bolt holds it until the message timeout (spout.multilang.held), so an outage appears as timeouts here. Such a timeout is
no fault of the message. So the spout counts no attempt for a timeout if no message has been acked since the emit, or if
the figures of a bolt say that it holds tuples.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from partition_manager.coordinator import MessageId
from spout.api import DEFAULT_STREAM, Spout, Tuple
from spout.collector import SpoutCollector
from spout.engine_spout import EngineSpout
from spout.figures.document import BoltsLately
from spout.log_spout import LogSpout
from spout.multilang.context import MetricsSender, StormContext, TaskSetup, node_of, task_of, wire_of
from spout.multilang.frames import BadFrame
from spout.multilang.origins import NO_WATERMARK, field_json, field_of, inside_json, message_parts, message_text
from spout.multilang.values import json_of
from spout.multilang.wire import Wire, WireOutlet, direct_part
from spout.task import Task

FAILED = "failed inside Storm, which gives no reason: see the errors of the bolts in its log or UI"  # see named_letters
TIMED_OUT = "timeout: not acked inside Storm within {} s (topology.message.timeout.secs)"
LATE_SHARE = 0.9  # of the message timeout; a later failure is a timeout, because Storm counts time in coarse ticks
WAIT_MS = 10  # shortest time between two polls of a spout that Storm asks for nothing
WATERMARKS_MS = 100  # how often the stored watermarks are looked up, for the messages emitted next


class Origins:
    """The texts of `__message` for the tuples of one spout."""

    def __init__(self, spout: EngineSpout, component: str) -> None:
        self._spout = spout
        self._component = component
        self._is_log = isinstance(spout, LogSpout) and type(spout).place is LogSpout.place
        kind = type(spout)
        self._is_own = kind.place is EngineSpout.place and kind.watermarks is EngineSpout.watermarks
        self._own = message_parts(component, component, spout.context.index)
        self._watermarks: dict[tuple[str, int], int] = {}
        self._parts: dict[tuple[str, int, str], tuple[str, str]] = {}  # of each partition
        self._due_ms = 0

    def refresh(self, now_ms: int) -> None:
        """Look up the watermarks of stored progress, if that is due."""
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + WATERMARKS_MS
            self._watermarks = dict(self._spout.watermarks())

    def json(self, id: Any, number: int) -> str:
        """Return the text of a tuple's origin, as JSON. Raise NoStormValue if Storm cannot carry the place."""
        if id is None:
            return field_json(message_text(self._component, number, None, None, None))
        if self._is_log and id.__class__ is MessageId:
            topic, partition, offset, _, topic_id = id
            parts = self._parts.get((topic_id, partition, topic))
            if parts is None:
                parts = message_parts(self._component, topic_id or topic, partition, topic)
                self._parts[topic_id, partition, topic] = parts
            watermark = self._watermarks.get((topic_id or topic, partition), NO_WATERMARK)
            return f'{parts[0]}{offset},{watermark}{parts[1]}{number}]]]"'
        if self._is_own:
            id_text = str(id) if id.__class__ is int else inside_json(json_of(id))
            return f'{self._own[0]}{id_text},null{self._own[1]}{number}]]]"'
        place = self._spout.place(id)
        stored = self._watermarks.get((place.topic, place.partition))
        name = None if stored is None else place.topic
        return field_json(message_text(self._component, number, place, stored, name))


class StormSpoutCollector(SpoutCollector):
    """The collector of a spout task inside Storm: a spout.api.SpoutOutput."""

    _exchange: Wire

    def __init__(self, task: Task, wire: Wire, origins: Origins, urgent: Callable[[Any], bool]) -> None:
        super().__init__(task, wire)
        self._origins = origins
        self._urgent = urgent
        self._needs_task_ids = cast(Spout, task.instance).needs_task_ids
        self._need_part = "}" if self._needs_task_ids else ',"need_task_ids":false}'
        self._next_wire_id = 1
        self.in_flight: dict[int, tuple[Any, int]] = {}  # by id on the wire: the spout's id, and the time of the emit

    def _deliver(
        self, values: Sequence[Any], id: Any, anchors: Sequence[Tuple] | None, stream: str, task: int | None
    ) -> list[int]:
        """Write a tuple. Return [], or the numbers of the receiving tasks if the spout sets `needs_task_ids`."""
        if anchors:
            raise ValueError(f"{self._task.component} is a spout: its tuples are anchored to nothing")
        outlet = self._exchange.outlet(self._task, stream)
        if task is not None or outlet.direct or len(values) != outlet.width:
            outlet.check(values, task)
        number = self._number + 1 if id == self._id else 0
        part = self._part(outlet, values, id, number)
        self._id, self._number = id, number
        self._send(part, id, direct_part(task))
        if task is not None:
            return [task]  # Storm gives no answer to a direct emit
        return self._exchange.task_ids(self._urgent) if self._needs_task_ids else []

    def emit_all(self, rows: Sequence[Sequence[Any]], id: Any = None) -> None:
        """Emit the tuples of one message to the default stream; if one does not fit, none of them.

        Raise what `emit` raises, before the first tuple is emitted.
        """
        outlet = self._exchange.outlet(self._task, DEFAULT_STREAM)
        parts = []
        for number, values in enumerate(rows):
            if outlet.direct or len(values) != outlet.width:
                outlet.check(values, None)
            parts.append(self._part(outlet, values, id, number))
        for part in parts:
            self._send(part, id, "")
            if self._needs_task_ids:
                self._exchange.task_ids(self._urgent)

    def _part(self, outlet: WireOutlet, values: Sequence[Any], id: Any, number: int) -> str:
        row, originals = self._exchange.row(outlet, values)
        message = self._origins.json(id, number)
        if originals:
            message = field_json(field_of(json.loads(message), originals))
        return f'"tuple":[{row}{message}]{outlet.stream_part}'

    def _send(self, part: str, id: Any, direct: str) -> None:
        self._task.counts.emitted += 1
        if id is None:
            self._exchange.write(f'{{"command":"emit",{part}{direct}{self._need_part}')
            return
        number = self._next_wire_id
        self._next_wire_id = number + 1
        self.in_flight[number] = id, self._exchange.now_ms
        self._exchange.write(f'{{"command":"emit","id":{number},{part}{direct}{self._need_part}')


class SpoutTask:
    """The task of one spout. Raise TopologyError or BadHandshake if it cannot run."""

    def __init__(self, setup: TaskSetup) -> None:
        node = node_of(setup.plan, setup.handshake.component)
        made = cast(Spout, node.make())
        self.wire = wire_of(setup, node)
        self._config = setup.config
        self._max_pending = setup.handshake.max_pending
        self._late_ms = int(setup.topology_config.message_timeout_ms * LATE_SHARE)
        self._timed_out = TIMED_OUT.format(setup.topology_config.topology_message_timeout_secs)
        self._acked_ms = -1  # latest ack
        self.read_bolts: Callable[[Callable[[BoltsLately], None]], None] | None = None  # the shell's: asks the bolts
        self._late: list[Any] = []  # ids that timed out, while `read_bolts` waits for its answer
        self._is_held: bool | None = None  # the answer of `read_bolts`: whether a bolt holds tuples
        self.task = task_of(setup, made)
        self.spout = cast(EngineSpout, self.task.spout)
        self.context = StormContext(setup, self.wire, {})
        self.spout.context = self.context
        self._origins = Origins(self.spout, self.task.component)
        self._output = StormSpoutCollector(self.task, self.wire, self._origins, self._is_settled)
        self.spout.collector = cast(Any, self._output)
        self._metrics = MetricsSender(self.wire, self.context.metrics, setup.config.metric_names)
        self._settled: list[tuple[str, Any]] = []  # acks and fails that came while an emit waited for its task ids
        self._is_polled = type(self.spout).poll is not EngineSpout.poll
        self._held_until_ms: int | None = None  # the answer to `next` is held until then
        self._polled_ms = -1
        self._is_finishing = False

    # --- the shell's verbs

    def take(self) -> bytes:
        """Return and clear the bytes for Storm."""
        return self.wire.take()

    def open(self, now_ms: int) -> None:
        """Open the spout; an exception of it comes out."""
        self.wire.now_ms = now_ms
        self.spout.open()

    def receive(self, messages: Iterable[Any], now_ms: int) -> bool:
        """Carry out commands of Storm. Return False, because nothing is left to do at once.

        An exception of the spout propagates. Raise BadFrame if a message is no command.
        """
        self.wire.now_ms = now_ms
        for message in messages:
            self._carry_out(message)
            while self.wire.waiting:
                self._carry_out(self.wire.waiting.popleft())
        return False

    def work(self, now_ms: int) -> bool:
        """Let the spout process answers from outside, and answer a held `next` if there is a tuple or it is time."""
        self.wire.now_ms = now_ms
        if self._is_held is not None:
            self._fail_late(self._is_held)
        self._poll()
        if self._held_until_ms is not None and (self._emit() or now_ms >= self._held_until_ms):
            self._held_until_ms = None
            self._sync()
        return False

    @property
    def is_full(self) -> bool:
        """Return False: Storm sends a spout one command at a time."""
        return False

    @property
    def is_waiting_for_storm(self) -> bool:
        """Return True if only Storm brings more work."""
        return self._held_until_ms is None and self.task.active and not self._is_finishing

    def next_deadline_ms(self) -> int | None:
        """Return when `work` has something to do although nothing comes, or None."""
        times = [self._held_until_ms, self.wire.next_deadline_ms()]
        at_ms = self.spout.next_deadline_ms() if self._is_polled or self._held_until_ms is not None else None
        if at_ms is not None:
            # A message may be ready while Storm asks for none. It is looked at again soon, but not at once. While an
            # answer is held, the spout is asked after 1, 2, 4 and 8 ms.
            soon_ms = WAIT_MS
            if self._held_until_ms is not None:
                held_ms = self.wire.now_ms + self._config.storm_idle_ms - self._held_until_ms
                soon_ms = max(held_ms, self.context.config.topology_spout_wait_ms)
            times.append(max(at_ms, self.wire.now_ms + soon_ms))
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def finish(self, now_ms: int) -> None:
        """Store the spout's progress; `idle` is True when that is done, after calls of `work`."""
        self.wire.now_ms = now_ms
        self._is_finishing = True
        self._held_until_ms = None
        if self.task.active:
            self.task.active = False
            self.spout.deactivate()
        self.spout.finish(now_ms)
        self._poll()

    @property
    def idle(self) -> bool:
        """Return True if, after `finish`, nothing is outstanding that `close` would cut off."""
        return self.spout.idle

    @property
    def in_flight(self) -> int:
        """Return how many emitted tuples are neither acked nor failed."""
        return len(self._output.in_flight)

    def close(self, now_ms: int) -> None:
        """Let the spout release its resources."""
        self.wire.now_ms = now_ms
        self.spout.close()

    # --- internals

    def _carry_out(self, message: Any) -> None:
        try:
            command = message["command"]
        except (KeyError, TypeError):
            raise BadFrame(f"Storm sent no command: {str(message)[:200]}") from None
        if command == "next":
            if self.wire.now_ms != self._polled_ms:
                self._poll()
            if not self._emit() and self._may_hold():
                self._held_until_ms = self.wire.now_ms + self._config.storm_idle_ms
                return
        elif command == "ack" or command == "fail":
            self._settle(command, message.get("id"))
        elif command == "activate":
            self.task.active = True
            self.spout.activate()
            self._poll()
        elif command == "deactivate":
            self.task.active = False
            self.spout.deactivate()
            self._poll()
        else:
            raise BadFrame(f"Storm sent the command {command!r}, which no spout has")
        self._sync()

    def _emit(self) -> bool:
        """Let the spout emit as many tuples as it may. Return True if it emitted some."""
        limit = self._config.storm_emits_per_next
        if self._max_pending is not None:
            limit = max(1, min(limit, self._max_pending - len(self._output.in_flight)))
        before = self.task.counts.emitted
        self._origins.refresh(self.wire.now_ms)
        self.spout.next_tuples(limit, self.wire.now_ms)
        while self._settled:
            self._settle(*self._settled.pop(0))
        return self.task.counts.emitted > before

    def _may_hold(self) -> bool:
        """Return True if the answer to `next` may wait: acks would wait with it, so nothing may be in flight."""
        return not self._output.in_flight and self._config.storm_idle_ms > 0 and not self._is_finishing

    def _settle(self, command: str, number: Any) -> None:
        emission = self._output.in_flight.pop(number, None) if number.__class__ is int else None
        if emission is None:
            return  # of an emit without an id, or of a process before this one
        id, emitted_ms = emission
        counts = self.task.counts
        now_ms = self.wire.now_ms
        if command == "ack":
            counts.acked += 1
            counts.completed_after(now_ms - emitted_ms)
            self._acked_ms = now_ms
            self.spout.ack(id)
            return
        is_late = now_ms - emitted_ms >= self._late_ms
        counts.failed += 1
        counts.timed_out += is_late
        if not is_late:
            self._fail(id, FAILED, False)
        elif self._acked_ms < emitted_ms or self.read_bolts is None:
            self._fail(id, self._timed_out, self._acked_ms < emitted_ms)
        else:
            self._late.append(id)
            if len(self._late) == 1:
                self.read_bolts(self._bolts_read)

    def _bolts_read(self, bolts: BoltsLately) -> None:
        self._is_held = bolts.holds
        self.context.wake()

    def _fail_late(self, is_held: bool) -> None:
        late, self._late, self._is_held = self._late, [], None
        for id in late:
            self._fail(id, self._timed_out, is_held)

    def _fail(self, id: Any, reason: str, unavailable: bool) -> None:
        self.context.failure, self.context.unavailable = reason, unavailable
        self._output.begin()
        self.spout.fail(id)

    def _is_settled(self, message: Any) -> bool:
        """Answer an ack or fail at once that comes while an emit waits for its task ids; the spout hears of it later.

        Without ackers Storm acks a tuple before it tells its tasks, and waits for the answer.
        """
        if isinstance(message, dict) and message.get("command") in ("ack", "fail"):
            self._settled.append((message["command"], message.get("id")))
            self.wire.sync()
            return True
        return False

    def _poll(self) -> None:
        self._polled_ms = self.wire.now_ms
        self.spout.poll(self.wire.now_ms)

    def _sync(self) -> None:
        self.wire.take_lines()
        if self._metrics.names:
            self._metrics.send()
        self.wire.sync()
