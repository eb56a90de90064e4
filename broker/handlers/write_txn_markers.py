"""WriteTxnMarkers, v1 to v2.

Behaviour: ends a producer's open transaction in the partitions named, as its coordinator on another node asks, or an
administrator for a transaction that hangs (KIP-664). Each partition has its error. A marker of an earlier coordinator
epoch than the partition has seen for this producer is refused, that of a later one is written. An epoch that no
coordinator has reached is refused by a server alone, because it would fence all markers after it. If a crash left an
earlier transaction of the producer open, that one is ended first. While that is not possible, the partition's error is
NOT_LEADER_OR_FOLLOWER, which coordinators and administrators retry. Many markers are written in slices, and the answer
is sent after the last. It waits until the markers are on all replicas in sync, and with durable acks on the disk,
because the coordinator then completes the transaction. A marker that is not there after offsets.commit.timeout.ms is
answered with REQUEST_TIMED_OUT, and that of a log which goes offline with KAFKA_STORAGE_ERROR. If too many requests
already have markers left, the next is refused.
Version notes: v2 names the rules the transaction follows (KIP-1228), which changes nothing here.
"""

from collections import deque
from typing import Any

from broker.now import Now
from broker.record.control import Marker
from broker.replication.stored_end import StoredEnd, unstored_end
from broker.services.context import RequestContext
from broker.services.coordinator_topic import Answer
from broker.services.due_actions import MARKERS_AT_ONCE
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from idgen.errors import IdError


def handle(call: RequestContext, now: Now) -> Answer | Delayed[Answer]:
    markers = _RequestedMarkers(call)
    if markers.left > MARKERS_AT_ONCE and not call.services.coordinators.transactions.requested_markers.has_room:
        return markers.refused(ErrorCode.BROKER_NOT_AVAILABLE)  # Kafka's admin clients retry this code
    markers.write(MARKERS_AT_ONCE, now)
    if markers.is_done:
        return markers.answer()
    if markers.left:
        call.services.coordinators.transactions.requested_markers.write_in_turn(markers, now)
    return Delayed((markers,), None, markers.if_done, markers.at_once)


class _RequestedMarkers:
    """The markers of one request, written in slices as those of EndTxn. The answer is sent when the last is on the
    disk, if its topic requires that."""

    def __init__(self, call: RequestContext) -> None:
        self._call = call
        self._epoch_max = call.services.coordinators.transactions.coordinator_epoch_max
        self._to_write = deque(
            (marker, topic.name, index)
            for marker in call.request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        )
        self._codes: list[ErrorCode] = []
        self._ends: dict[int, StoredEnd] = {}
        """By index in `_codes`: the ends that are not stored yet."""
        self.is_done = False
        """True if all markers are written, and stored or too late for it."""

    @property
    def left(self) -> int:
        return len(self._to_write)

    def write(self, most: int, now: Now) -> None:
        """Write at most `most` of the remaining markers. Raise Backpressure, with none written."""
        count = min(most, self.left)
        if count:
            self._call.services.id_stamper.ensure(count, now)
        self._write(count, now)

    def finish(self, now: Now) -> None:
        """Write all remaining markers, even if some fail."""
        self._write(self.left, now)

    def _write(self, count: int, now: Now) -> None:
        for _ in range(count):
            marker, topic, index = self._to_write.popleft()
            if marker.coordinator_epoch > self._epoch_max:
                self._codes.append(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
            else:
                self._codes.append(self._write_one(marker, topic, index, now))
        if not self.left:
            self._call.services.purgatory.watch(self._storage_wait(now), self._done, now, limited=False)

    def _write_one(self, requested: Any, topic: str, index: int, now: Now) -> ErrorCode:
        services = self._call.services
        marker = Marker(requested.transaction_result, requested.coordinator_epoch)
        try:
            log = services.log_of(topic, index)
            transactions = services.coordinators.transactions
            if not transactions.end_earlier(log, requested.producer_id, now):
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            transactions.append_marker(log, requested.producer_id, requested.producer_epoch, marker, now)
        except ApiError as error:
            return error.code
        except IdError as error:
            services.report(f"no ids for a marker that {self._call.peer} asks for: {error}")
            return ErrorCode.KAFKA_STORAGE_ERROR
        if (end := unstored_end(log)) is not None:
            self._ends[len(self._codes)] = end
        return ErrorCode.NONE

    def _storage_wait(self, now: Now) -> Delayed[Now]:
        """Return the wait for the disk and the replicas, which may fail or take too long."""
        services = self._call.services

        def try_complete(at: Now) -> Now | None:
            return at if all(end.is_settled(services) for end in self._ends.values()) else None

        keys = {end.log.durability.key for end in self._ends.values()}
        deadline_ms = now.ms + self._call.services.group_config.offsets_commit_timeout_ms
        return Delayed(keys, deadline_ms, try_complete, lambda at: at)

    def _done(self, now: Now) -> None:
        self.is_done = True
        self._call.services.purgatory.touch(self, now)

    def if_done(self, now: Now) -> Answer | None:
        return self.answer() if self.is_done else None

    def at_once(self, now: Now) -> Answer:
        """Write all remaining markers and return the answer, because too many requests wait."""
        if self.left:
            self.finish(now)
        return self.answer()

    def refused(self, code: ErrorCode) -> Answer:
        """Return an answer that refuses all markers; none is written."""
        self._codes = [code] * self.left
        return self.answer()

    def answer(self) -> Answer:
        codes = iter([code or self._late_error(number) for number, code in enumerate(self._codes)])
        return {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "topics": [
                        {
                            "name": topic.name,
                            "partitions": [
                                {"partition_index": index, "error_code": next(codes)}
                                for index in topic.partition_indexes
                            ],
                        }
                        for topic in marker.topics
                    ],
                }
                for marker in self._call.request.markers
            ]
        }

    def _late_error(self, number: int) -> ErrorCode:
        """Return the error of a marker that was written, but may not be stored."""
        end = self._ends.get(number)
        error = None if end is None else end.error(self._call.services)
        return ErrorCode.NONE if error is None else error.code
