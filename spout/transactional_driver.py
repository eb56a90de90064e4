"""Drives the coordinator of a spout whose messages are settled exactly once, by the transactions of a Settlement."""

from collections.abc import Iterable
from functools import partial
from typing import cast

from partition_manager.asks import Ask
from partition_manager.coordinator import MessageId, PartitionCoordinator
from partition_manager.dead_letter import REFUSED
from partition_manager.entry import Counts, Message
from partition_manager.ports import Bury, DeadLetter, SaveOffset
from spout.api import Context
from spout.config import SpoutConfig
from spout.coordinator_driver import POLL_ROUNDS, CoordinatorDriver, SpoutPorts
from spout.settlement import Settlement
from spout.transaction_ports import Letter, Save, TransactionalStore

WAIT_MS = 10  # between two polls while the sinks hold too much


class TransactionalDriver(CoordinatorDriver):
    """A coordinator that learns of an ack only when the settlement cuts: a spout.settlement.TransactionalSpout.

    It takes the place of the coordinator for the spout's messages, and passes saves and dead letters to the settlement.
    """

    def __init__(
        self,
        settlement: Settlement,
        coordinator: PartitionCoordinator,
        ports: SpoutPorts,
        context: Context,
        config: SpoutConfig,
    ) -> None:
        super().__init__(coordinator, ports, context, config)
        self.messages = self
        self._settlement = settlement
        self._refused = Counts()  # corrects the coordinator's, by settled messages whose outputs were refused
        self._is_finishing = False
        settlement.add_source(self)

    # --- messages

    def next(self, now_ms: int) -> tuple[MessageId, Message] | None:
        """Return the next message to emit, as one tuple unless `fan_out` follows; None if the sinks hold too much."""
        if self._settlement.is_full:
            return None
        emission = self._coordinator.next(now_ms)
        if emission is not None:
            self._settlement.begin(self, emission[0], 1)
        return emission

    def fan_out(self, id: MessageId, tuples: int) -> None:
        """Set the number of tuples the message became, before the first of them can be acked."""
        if tuples:  # `settle` acks the message once, for all its tuples
            self._settlement.begin(self, id, tuples)
        else:
            self._settlement.forget(self, id)
            self._coordinator.fan_out(id, 0)

    def reject(self, id: MessageId, now_ms: int, error: str) -> None:
        """Give up a message that cannot be decoded."""
        self._settlement.forget(self, id)
        self._coordinator.reject(id, now_ms, error)

    def ack(self, id: MessageId) -> None:
        """Count one of the message's tuples as processed."""
        self._coordinator.processed(id)
        self._settlement.ack(self, id)

    def ack_many(self, ids: Iterable[MessageId]) -> None:
        """Ack each id."""
        for id in ids:
            self.ack(id)

    def fail(self, id: MessageId, now_ms: int, error: str, *, unavailable: bool) -> None:
        """Fail the message, and those that share an output with it."""
        self._settlement.fail(self, id, error)
        self._coordinator.fail(id, now_ms, error, unavailable=unavailable)

    # --- the spout's calls

    def poll(self, now_ms: int) -> None:
        """Process answers, send requests, and begin transactions that are due.

        Raise CannotSettle if no transaction can ever succeed.
        """
        self.flush(now_ms)
        self._work(now_ms)
        if self._is_finishing and self._settlement.is_settled:
            self._is_finishing = False
            super().stop(now_ms)
            self.flush(now_ms)
            self._work(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when a retry, commit, request or transaction is due; now if an answer waits."""
        if self._answers:
            return self._context.now_ms
        times = [self._settlement.next_deadline_ms()]
        if self._settlement.is_full:  # a retry may be due, but the spout must wait
            times.append(self._context.now_ms + WAIT_MS)
        else:
            times.append(self._coordinator.next_deadline_ms())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def next_cut_ms(self) -> int | None:
        """Return when complete messages are settled next, or None."""
        return self._settlement.next_cut_ms()

    def stop(self, now_ms: int) -> None:
        """Commit the complete messages; only then store the progress and release the partitions."""
        self._settlement.finish()
        self._is_finishing = True

    @property
    def idle(self) -> bool:
        """Return True if, after `stop`, all is committed, and every partition is released."""
        return self._coordinator.idle and self._settlement.is_settled

    @property
    def counts(self) -> Counts:
        """Return the counts of message outcomes."""
        return self._coordinator.counts + self._refused

    # --- the settlement's calls

    def message(self, id: MessageId) -> Message | None:
        """Return the message in flight under this id. Return None if the id is stale."""
        return self._coordinator.message(id)

    def refuse(self, id: MessageId, message: Message, error: str) -> Letter | None:
        """Return the dead letter of a settled message, of which an output is refused; None if there are no letters."""
        if not self._config.spout_dead_letter_topic:
            return None
        self._refused += Counts(acked=-1, dead_lettered=1)
        letter = DeadLetter(id.topic, id.partition, message.record, id.ticket, REFUSED, message.attempt, error)
        return Letter(self._dead_letter_topic_of(id.topic), letter)

    def settle(self, id: MessageId) -> None:
        """Settle a message whose outputs are part of the next transaction."""
        self._coordinator.ack(id)

    def fail_with(self, id: MessageId, error: str) -> None:
        """Fail a message that shares an output with a failed one."""
        self._coordinator.fail(id, self._context.now_ms, error)

    def flush(self, now_ms: int) -> None:
        """Process answers and send requests."""
        super().poll(now_ms)

    def store_progress(self, now_ms: int) -> None:
        """Process answers, then store the progress of every partition where it has changed."""
        self.flush(now_ms)
        self._coordinator.commit(now_ms)
        self.flush(now_ms)

    # --- internals

    def _work(self, now_ms: int) -> None:
        for _ in range(POLL_ROUNDS):
            if not self._settlement.work(now_ms):
                break
            self.flush(now_ms)
        for note in self._settlement.take_notes():
            self._context.log(note, "warn")

    def _carry(self, ask: Ask) -> None:
        number, request = ask
        is_wanted = partial(self._coordinator.expects, number)
        answer = partial(self._answered, number)
        if isinstance(request, SaveOffset):
            self._settlement.save(Save(cast(TransactionalStore, self._store), request, answer, is_wanted))
        elif isinstance(request, Bury):
            topic = self._dead_letter_topic_of(request.letter.topic)
            self._settlement.bury(topic, request.letter, answer, is_wanted)
        else:
            super()._carry(ask)
