"""Whose turn it is: the partitions of a task emit one after the other, and in an outage the probes.

Each partition emits up to TURN_MESSAGES in a row. In an outage in which all wait, a turn is one message after a pause,
and the next turn is another partition's. Messages that are parked have turns of their own, one at a time.
"""

from collections.abc import Mapping
from typing import NamedTuple

from partition_manager.entry import Message
from partition_manager.outage import Outages
from partition_manager.parked import TopicPartitionOffset, Turn
from partition_manager.share import TaskShare
from partition_manager.task_partition import TaskPartition

TURN_MESSAGES = 100  # one partition emits this number in a row, so that their acks are processed together


class MessageId(NamedTuple):
    """The id a spout emits with a tuple: one emission of one message. It is never reused.

    `topic_id` is "" if the broker gives topics no ids.
    """

    topic: str
    partition: int
    offset: int
    ticket: int
    topic_id: str = ""


class Turns:
    """The turns of one task's partitions, which `partitions` has by topic and number."""

    def __init__(
        self,
        share: TaskShare[TaskPartition],
        outages: Outages,
        partitions: Mapping[str, Mapping[int, TaskPartition]],
    ) -> None:
        self._share = share
        self._outages = outages
        self._partitions = partitions
        self._in_turn = 0  # messages that the first of the ready partitions has emitted in its turn

    def next(self, now_ms: int) -> tuple[MessageId, Message] | None:
        """Return the next message to emit, or None if no partition has one."""
        share, outages, all_wait = self._share, self._outages, False
        if outages.is_troubled:
            if not outages.may_emit(now_ms):
                return None
            all_wait = outages.all_wait
            if not all_wait:
                self._try_parked(now_ms)
        share.prefers_new = all_wait
        if share.due:
            share.wake(now_ms)
        ready = share.ready
        while ready or (all_wait and self._try_parked(now_ms)):
            partition = ready[0]
            message = partition.next(now_ms)
            if message is None:  # the partition rests until it has one
                self._in_turn = 0
                ready.popleft()
                continue
            self._in_turn += 1
            if self._in_turn >= TURN_MESSAGES or all_wait:
                self._in_turn = 0
                partition.end_turn()
                ready.rotate(-1)
            topic_partition_offset = partition.topic, partition.number, message.offset
            if outages.is_troubled:
                outages.emitted(TopicPartitionOffset(*topic_partition_offset), message.ticket)
            return MessageId(*topic_partition_offset, message.ticket, partition.topic_id), message
        return None

    def next_deadline_ms(self) -> int | None:
        """Return when a retry or a probe is due; while all wait, when the next probe is, if there is a message for it.
        """
        due_ms, probe_ms = self._share.next_due_ms(), self._outages.next_probe_ms()
        if not self._outages.all_wait:
            return min((at_ms for at_ms in (due_ms, probe_ms) if at_ms is not None), default=None)
        if probe_ms is None or self._share.ready or self._outages.has_parked:
            return probe_ms
        return None if due_ms is None else max(due_ms, probe_ms)

    def succeeded(self, ticket: int) -> None:
        """Note in an outage that a message was fully processed: messages parked in the same outage may go on."""
        for turn in self._outages.succeeded(ticket):
            self._unpark(turn, self._outages.now_ms)

    def _try_parked(self, now_ms: int) -> bool:
        """Let the parked message whose turn it is be emitted. Return False if there is none."""
        while (turn := self._outages.next_turn(now_ms)) is not None:
            if self._unpark(turn, now_ms):
                self._share.wake(now_ms)
                return True
            self._outages.forget(turn.message)
        return False

    def _unpark(self, turn: Turn, now_ms: int) -> bool:
        (topic, number, offset), ticket = turn
        partition = self._partitions.get(topic, {}).get(number)
        return partition is not None and partition.unpark(offset, ticket, now_ms)
