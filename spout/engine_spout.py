"""What an engine calls of a spout, beside Storm's methods.

Storm's contract leaves a spout alone with its clients, its threads and its progress. This engine knows more of them: it
polls a spout that waits for answers, sleeps until the spout's next deadline, passes a step's tuples and acks together,
and lets the spout store its progress before the end. A user's Spout needs none of this, and `engine_spout` fits it in.
"""

from collections.abc import Mapping, Sequence
from inspect import isfunction
from typing import Any, cast

from spout.api import Collector, Context, Spout, SpoutOutput
from spout.origin import MessagePlace
from spout.settlement import Settlement


class EngineSpout(Spout):
    """A spout that knows the engine. The methods below do for it what the engine does for a Spout of a user."""

    def next_tuples(self, limit: int, now_ms: int) -> None:
        """Emit about `limit` tuples, or fewer if no more are ready; by default, call `next_tuple`."""
        output = cast(SpoutOutput, self.collector)
        end = output.emitted + limit
        while (emitted := output.emitted) < end:
            output.begin()
            self.next_tuple()
            if output.emitted == emitted:
                return

    def ack_many(self, ids: Sequence[Any]) -> None:
        """Ack each id of a step; a spout may handle them together, which is faster."""
        for id in ids:
            self.ack(id)

    def poll(self, now_ms: int) -> None:
        """Process answers from outside and send requests. Called often, active or not."""

    def next_deadline_ms(self) -> int | None:
        """Return when to call `next_tuple` again after it emitted nothing, or None to wait for `context.wake()`."""
        return self.context.now_ms + self.context.config.topology_spout_wait_ms

    def finish(self, now_ms: int) -> None:
        """Store progress: no tuple is in flight any longer, and `close` follows when `idle` is True."""

    @property
    def idle(self) -> bool:
        """Return True if, after `finish`, nothing is outstanding that `close` would cut off."""
        return True

    def place(self, id: Any) -> MessagePlace:
        """Return the place of the message emitted with this id, which must be the same at each attempt.

        The default is for a spout that emits a message with the same id at each attempt.
        """
        return MessagePlace(self.context.component, self.context.index, id)

    def watermarks(self) -> Mapping[tuple[str, int], int]:
        """Return, by topic and partition of `place`, the offset below which no message is emitted again.

        That must hold after a crash too, so only stored progress counts.
        """
        return {}

    def details(self, id: Any) -> Mapping[str, object]:
        """Return what the log shows of the message emitted with this id when a bolt fails on it."""
        return {"id": id}

    def exactly_once_fault(self) -> str | None:
        """Return why no sink with `exactly_once` may be fed by this spout. Return None if it has `settle_with`."""
        return _exactly_once_fault(self)

    def settle_with(self, settlement: Settlement) -> None:
        """Take part in the transactions of a sink that this spout feeds. Called before `open`."""
        raise TypeError(self.exactly_once_fault())


ENGINE_METHODS = tuple(name for name, member in vars(EngineSpout).items() if isfunction(member))


class _UserSpout(EngineSpout):
    """The EngineSpout of a spout that has Storm's methods only."""

    def __init__(self, spout: Spout) -> None:
        self._spout = spout

    @property
    def context(self) -> Context:
        return self._spout.context

    @context.setter
    def context(self, context: Context) -> None:
        self._spout.context = context

    @property
    def collector(self) -> Collector:
        return self._spout.collector

    @collector.setter
    def collector(self, collector: Collector) -> None:
        self._spout.collector = collector

    def open(self) -> None:
        self._spout.open()

    def next_tuple(self) -> None:
        self._spout.next_tuple()

    def ack(self, id: Any) -> None:
        self._spout.ack(id)

    def fail(self, id: Any) -> None:
        self._spout.fail(id)

    def activate(self) -> None:
        self._spout.activate()

    def deactivate(self) -> None:
        self._spout.deactivate()

    def close(self) -> None:
        self._spout.close()

    def exactly_once_fault(self) -> str | None:
        return _exactly_once_fault(self._spout)


def engine_spout(spout: Spout) -> EngineSpout:
    """Return the spout as an engine calls it."""
    return spout if isinstance(spout, EngineSpout) else _UserSpout(spout)


def _exactly_once_fault(spout: Spout) -> str:
    return f'a {type(spout).__name__} stores no progress in transactions; a LogSpout with store="kafka" does'
