"""A port of storm-kafka 0.9.3's PartitionManager, statement by statement, with the faults that ours must not have.

Source: apache/storm v0.9.3, external/storm-kafka/src/jvm/storm/kafka/PartitionManager.java, with what it calls in
KafkaUtils.java (getOffset, fetchMessages). A java.util.TreeSet is a SortedSet here. Metrics and logging are left out.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from sortedcontainers import SortedSet

EARLIEST_TIME = -2
LATEST_TIME = -1
LONG_MAX = 2**63 - 1


class EmitState(Enum):
    EMITTED_MORE_LEFT = "EMITTED_MORE_LEFT"
    EMITTED_END = "EMITTED_END"
    NO_EMITTED = "NO_EMITTED"


@dataclass
class SpoutConfig:
    """The fields of KafkaConfig that decide offsets, with 0.9.3's defaults."""

    topic: str = "t"
    force_from_start: bool = False
    start_offset_time: int = EARLIEST_TIME
    max_offset_behind: int = LONG_MAX


class UpdateOffsetException(Exception):
    """The fetch was out of range (UpdateOffsetException.java)."""


class KafkaMessageId(NamedTuple):
    partition: int
    offset: int


class Log:
    """The messages that SimpleConsumer reads, by offset. A fetch returns at most `batch` of them."""

    def __init__(self, messages, batch=1000):
        self.messages = list(messages)  # None where compaction removed the message
        self.start = 0
        self.batch = batch
        self.fetches = 0

    def offset_before(self, time):
        return self.start if time == EARLIEST_TIME else len(self.messages)

    def fetch(self, offset):
        self.fetches += 1
        if not self.start <= offset <= len(self.messages):
            raise UpdateOffsetException
        fetched, at = [], offset
        while at < len(self.messages) and len(fetched) < self.batch:
            if self.messages[at] is not None:
                fetched.append((at, self.messages[at]))
            at += 1
        return fetched


def get_offset(log, config):
    """KafkaUtils.getOffset: the log's end unless forceFromStart is set."""
    start_offset_time = LATEST_TIME
    if config.force_from_start:
        start_offset_time = config.start_offset_time
    return log.offset_before(start_offset_time)


class PartitionManager:
    def __init__(self, log, topology_id, state, config, partition=0, generate_tuples=lambda message: [[message]]):
        self.log = log
        self.topology_id = topology_id
        self.state = state  # ZooKeeper: JSON by path
        self.config = config
        self.partition = partition
        self.generate_tuples = generate_tuples
        self.pending = SortedSet()
        self.failed = SortedSet()
        self.waiting_to_emit = deque()
        self.number_acked = self.number_failed = 0

        json_topology_id = json_offset = None
        json = state.get(self._committed_path())
        if json is not None:
            json_topology_id = json["topology"]["id"]
            json_offset = json["offset"]
        current_offset = get_offset(log, config)
        if json_topology_id is None or json_offset is None:
            self.committed_to = current_offset
        elif topology_id != json_topology_id and config.force_from_start:
            self.committed_to = log.offset_before(config.start_offset_time)
        else:
            self.committed_to = json_offset
        if current_offset - self.committed_to > config.max_offset_behind or self.committed_to <= 0:
            self.committed_to = current_offset
        self.emitted_to_offset = self.committed_to

    def next(self, collector):
        """Emit the tuples of one message by `collector(tuple, id)`; return an EmitState."""
        if not self.waiting_to_emit:
            self._fill()
        while True:
            to_emit = self.waiting_to_emit.popleft() if self.waiting_to_emit else None
            if to_emit is None:
                return EmitState.NO_EMITTED
            offset, message = to_emit
            tuples = self.generate_tuples(message)
            if tuples is not None:
                for values in tuples:
                    collector(values, KafkaMessageId(self.partition, offset))
                break
            self.ack(offset)
        return EmitState.EMITTED_MORE_LEFT if self.waiting_to_emit else EmitState.EMITTED_END

    def _fill(self):
        had_failed = bool(self.failed)
        offset = self.failed[0] if had_failed else self.emitted_to_offset
        try:
            messages = self.log.fetch(offset)
        except UpdateOffsetException:
            self.emitted_to_offset = get_offset(self.log, self.config)
            return
        for current, message in messages:
            if current < offset:
                continue
            if not had_failed or current in self.failed:
                self.pending.add(current)
                self.waiting_to_emit.append((current, message))
                self.emitted_to_offset = max(current + 1, self.emitted_to_offset)
                if had_failed:
                    self.failed.remove(current)

    def ack(self, offset):
        pending, least = self.pending, offset - self.config.max_offset_behind
        if pending and pending[0] < least:
            del pending[: pending.bisect_left(least)]
        pending.discard(offset)
        self.number_acked += 1

    def fail(self, offset):
        if offset < self.emitted_to_offset - self.config.max_offset_behind:
            return
        self.failed.add(offset)
        self.number_failed += 1
        if self.number_acked == 0 and self.number_failed > self.config.max_offset_behind:
            raise RuntimeError("Too many tuple failures")

    def commit(self):
        last_completed_offset = self.last_completed_offset()
        if self.committed_to != last_completed_offset:
            self.state[self._committed_path()] = {
                "topology": {"id": self.topology_id, "name": "name"},
                "offset": last_completed_offset,
                "partition": self.partition,
                "broker": {"host": "localhost", "port": 9092},
                "topic": self.config.topic,
            }
            self.committed_to = last_completed_offset

    def last_completed_offset(self):
        return self.pending[0] if self.pending else self.emitted_to_offset

    def _committed_path(self):
        return f"/root/id/partition_{self.partition}"
