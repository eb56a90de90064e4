"""The commit of a turn: the staged Produce requests are written, and those that this settles are answered."""

from collections.abc import Sequence
from traceback import format_exc
from typing import Any

from broker.channel.connection import Connection, Slot
from broker.channel.request_channel import RequestChannel, reason_of
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.produce.current_leader import with_leaders
from broker.produce.ports import ProduceServices
from broker.produce.storage_wait import when_stored
from broker.produce.turn import StagedProduce
from broker.produce.validate import validate_again
from broker.waiting.purgatory import AnyDelayed
from broker.wire import produce
from broker.wire.errors import ApiError, ErrorCode, WireError
from broker.wire.frame import Part


class ProduceCommit:
    """Commits the staged requests of `services.turn`, and answers them."""

    def __init__(self, services: ProduceServices, channel: RequestChannel) -> None:
        self._services = services
        self._turn = services.turn
        self._channel = channel
        self._produced = services.metrics.of_api(produce.API_KEY)
        self._retry: AnyDelayed | None = None
        """The end of the wait for ids, while Produce requests are held."""
        self.is_due = False
        """True if the staged requests must be committed before the next round."""

    def commit(self) -> None:
        """Append the staged batches, and answer the requests that this settles."""
        self.is_due = False
        now = self._channel.clock.now
        settled = self._turn.commit(now)
        for log in self._turn.take_appended():
            try:
                self._services.appended(log, now)
            except Exception:
                self._services.report(f"a fault of the broker's own, after an append to {log.name}:\n{format_exc()}")
        unstored: dict[tuple[PartitionLog | None, int], list[tuple[StagedProduce, Slot]]] = {}
        failed: dict[int, list[StagedProduce]] = {}
        quick, began_ns = 0, 0
        for staged in settled:
            conn = staged.conn
            conn.staged -= 1
            if conn.close_reason is not None:
                pass  # an earlier request of it failed, and will not be answered
            elif staged.failure is not None:
                failed.setdefault(id(staged.failure), []).append(staged)
                self._channel.connections.close(conn, reason_of(staged.failure))
            elif staged.unstored is not None:
                # Logs with the journal share its rounds, so their requests wait together. Other logs sync alone, and
                # each partition has its own followers.
                end = staged.unstored[0][0]
                shares_rounds = end.log.journal is not None and not end.on_replicas
                key = None if shares_rounds else end.log, staged.request.timeout_ms
                unstored.setdefault(key, []).append((staged, conn.wait()))
            elif staged.reply is not None:
                conn.put_reply(staged.reply)
                self._channel.connections.answered.append(conn)
                quick, began_ns = quick + 1, staged.began_ns
            else:
                self._answer(staged, None)
            if not conn.readable:
                # Staged requests count as requests in flight, so the last answer makes room for the requests that
                # the connection kept back.
                self._channel.connections.stalled.append(conn)
                if not conn.staged:
                    conn.unstaged()
                    self._channel.queue.resume(conn)
        for requests in failed.values():
            self._channel.failed([staged.conn for staged in requests], requests[0].failure)
        for (_, timeout_ms), waiting in unstored.items():
            self._wait_until_stored(waiting, now.ms + timeout_ms)
        if quick:
            self._produced.observe(self._channel.clock.clock_ns() - began_ns, quick)
        if self._turn.retry_wall_ms is not None:
            self._wait_for_ids()

    def answer_first(self, conn: Connection) -> bool:
        """Answer the connection's staged requests; return False if they wait for ids."""
        if conn.staged:
            self.commit()
        return not conn.staged

    def _answer(self, staged: StagedProduce, slot: Slot | None) -> None:
        """Answer a settled Produce; `slot` is the place of its answer if the answer had to wait."""
        conn = staged.conn
        try:
            self._answer_in_full(staged, slot)
        except (WireError, ApiError) as error:
            self._channel.connections.close(conn, str(error))
        except Exception:
            self._channel.failed([conn])

    def _answer_in_full(self, staged: StagedProduce, slot: Slot | None) -> None:
        conn = staged.conn
        response: Any = staged.results
        if not staged.acks:
            failed = next((result for result in staged.results if result and result.error_code), None)
            if failed is not None:
                raise ApiError(ErrorCode(failed.error_code), f"a Produce with acks=0 failed: {failed.message}")
            response = None
        elif not self._services.is_alone:
            response = with_leaders(response, self._services.metadata, staged.version, conn.listener)
        if staged.adapt is not None:
            response = staged.adapt(response)
        template = staged.template
        reply = None if template is None else template.encode(staged.correlation_id, response)
        if reply is not None:
            self._put(staged, slot, *reply)
        elif response is None:
            self._produced.observe(self._channel.clock.clock_ns() - staged.began_ns)
        else:
            self._channel.reply(conn, staged.codec, staged.version, staged.correlation_id, response, slot)

    def _put(self, staged: StagedProduce, slot: Slot | None, parts: list[Part], size: int) -> None:
        """Send an answer that a template has encoded."""
        if slot is None:
            staged.conn.put(parts, size)
        else:
            staged.conn.fill(slot, parts, size)
        self._channel.connections.answered.append(staged.conn)
        self._produced.observe(self._channel.clock.clock_ns() - staged.began_ns)

    def _wait_until_stored(self, waiting: list[tuple[StagedProduce, Slot]], deadline_ms: int) -> None:
        """Answer requests when their batches are stored as their acks ask.

        If a connection is closed the others still wait.
        """
        conns = [staged.conn for staged, _ in waiting]
        delayed = when_stored(self._services, [staged for staged, _ in waiting], deadline_ms)
        delayed.try_complete = self._channel.guarded(conns, delayed.try_complete)
        delayed.expire = self._channel.guarded(conns, delayed.expire)

        def done(answered: Sequence[StagedProduce] | None) -> None:
            if answered is None:
                return  # a fault; the connections are being closed
            for staged, slot in waiting:
                conn, reply = staged.conn, staged.reply
                if conn.close_reason is not None:
                    continue
                if reply is not None:
                    self._put(staged, slot, [reply], len(reply))
                else:
                    slot.began_ns = staged.began_ns
                    self._answer(staged, slot)
                self._channel.queue.resume(conn)

        self._services.purgatory.watch(delayed, done, self._channel.clock.now)

    def _wait_for_ids(self) -> None:
        """Stage the held requests again when ids are due; their connections execute nothing meanwhile."""
        for staged in self._turn.requests:
            staged.conn.wait_for_ids()
            self._channel.connections.stalled.append(staged.conn)
        retry_wall_ms = self._turn.retry_wall_ms
        assert retry_wall_ms is not None
        now = self._channel.clock.now
        deadline_ms = now.ms + max(retry_wall_ms - now.wall_ms, 1)
        if self._retry is not None:
            if self._retry.deadline_ms is not None and self._retry.deadline_ms <= deadline_ms:
                return
            self._services.purgatory.cancel(self._retry)
        self._retry = self._services.purgatory.call_at(deadline_ms, self._stage_held)

    def _stage_held(self, now: Now) -> None:
        self._retry = None
        services = self._services
        for staged, index, batch in self._turn.take_held():
            try:
                self._turn.stage(staged, index, validate_again(services, staged, index, batch, now))
            except Exception:
                self._turn.drop(staged.conn)
                self._channel.failed([staged.conn])
