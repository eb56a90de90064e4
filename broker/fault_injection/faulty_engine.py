"""An engine that fails on demand, for tests of clients. Only a broker that was started for tests has one.

Requests without a failure take the same path as in any engine. An API with pending failures has another row in the
table, whose handler asks `Faults` first. The usual row returns when no failure is left.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple

from broker.channel.connection import Connection, Slot
from broker.channel.request_channel import RequestChannel
from broker.engine.api_table import APIS, PRODUCE, Api
from broker.engine.engine import Engine
from broker.fault_injection.faults import AFTER, BEFORE, Fault, Faults
from broker.now import Now
from broker.produce.outcome import Postponed
from broker.produce.turn import StagedProduce
from broker.services.context import BrokerServices, RequestContext
from broker.steps import Steps
from broker.waiting.purgatory import AnyDelayed, Delayed
from broker.wire.codec import Codec
from broker.wire.errors import ApiError, ErrorCode


class Spoilt(NamedTuple):
    """An answer, with the failure to apply to it."""

    response: Any
    fault: Fault


class FaultyApi(Api):
    """A row with another handler."""


class FaultyChannel(RequestChannel):
    """A channel whose answers leave late, or which closes the connection instead, as a failure says."""

    def reply(
        self, conn: Connection, codec: Codec, version: int, correlation_id: int, response: Any, slot: Slot | None
    ) -> None:
        if not isinstance(response, Spoilt):
            super().reply(conn, codec, version, correlation_id, response, slot)
        elif response.fault.close == AFTER:
            self.connections.close(conn, f"a test wants it closed after a {codec.name}")
        else:
            self._reply_late(conn, codec, version, correlation_id, response, slot)

    def _reply_late(
        self, conn: Connection, codec: Codec, version: int, correlation_id: int, spoilt: Spoilt, slot: Slot | None
    ) -> None:
        """Reply after the delay. The answer keeps its place, so later answers of the connection are late too."""
        if slot is None:
            slot = conn.wait()
            slot.began_ns = self.clock.began_ns
        waiting = slot
        deadline_ms = self.clock.now.ms + spoilt.fault.delay_ms

        def late(_: Now) -> None:
            waiting.delayed = None
            try:
                super(FaultyChannel, self).reply(conn, codec, version, correlation_id, spoilt.response, waiting)
            except Exception:
                self.failed([conn])
            self.queue.resume(conn)

        waiting.delayed = self._services.purgatory.call_at(deadline_ms, late)


class FaultyEngine(Engine):
    """An engine whose `fail`, `close` and `delay` apply to requests of an API that arrive from now on."""

    logs_each_close = True  # a user's test reads them

    def __init__(self, services: BrokerServices, clock_ns: Callable[[], int] = lambda: 0) -> None:
        self._apis = dict(APIS)
        super().__init__(services, clock_ns, self._apis, FaultyChannel)
        self._faults = Faults()

    # --- pending failures ----------------------------------------------------------------------------------------

    def fail(self, key: int, error: ErrorCode, times: int = 1) -> None:
        """Answer the next requests with an error, without handling them. Raise ValueError."""
        self._faults.fail(key, error, times)
        self._arm(key)

    def close(self, key: int, when: str, times: int = 1) -> None:
        """Close the connections of the next requests, "before" or "after" handling them. Raise ValueError."""
        self._faults.close(key, when, times)
        self._arm(key)

    def delay(self, key: int, ms: int, times: int | None = None) -> None:
        """Delay the next `times` answers, or all, by `ms`; 0 ends the delay. Raise ValueError."""
        self._faults.delay(key, ms, times)
        self._arm(key)

    def clear(self) -> None:
        """Remove all pending failures and delays."""
        self._faults.clear()
        self._apis.update(APIS)

    def left(self) -> dict[str, dict[str, Any]]:
        """Return the pending failures by API."""
        return self._faults.left()

    def _arm(self, key: int) -> None:
        served = APIS[key]
        row = FaultyApi(**{field.name: getattr(served, field.name) for field in fields(Api) if field.init})
        row.handle = lambda call, now: self._handle(served, call, now)
        self._apis[key] = row

    # --- at a request --------------------------------------------------------------------------------------------

    def _handle(self, api: Api, call: RequestContext, now: Now) -> Any:
        """Handle a request of an API that has pending failures."""
        fault = self._faults.next(api.key)
        if fault.close == BEFORE:
            self._took(api, fault)
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, f"a test wants it closed before a {api.name}")
        if fault.error is not None:
            from broker.fault_injection.error_answers import (
                error_answer,  # imported here, because it loads kio, which takes longer than all other modules
            )

            response = error_answer(api, call, fault.error, now)
            if response is None:
                return api.handle(call, now)  # this answer has no place for the error; the next answer may have one
        else:
            response = api.handle(call, now)
        if isinstance(response, Postponed):
            return response  # the failure is left for when it is executed again
        self._took(api, fault)
        if api.key == PRODUCE and isinstance(response, list):  # so that the staged requests are answered first
            answer = StagedProduce(call.version, call.client_id, call.request, 0)
            answer.results = response
            self.services.turn.requests.append(answer)
            response = answer
        return self._spoil(api, response, fault)

    def _took(self, api: Api, fault: Fault) -> None:
        self._faults.took(api.key, fault)
        if not self._faults.awaits(api.key):
            self._apis[api.key] = APIS[api.key]

    def _spoil(self, api: Api, response: Any, fault: Fault) -> Any:
        if fault.close is None and not fault.delay_ms:
            return response
        if isinstance(response, GeneratorType):
            return self._spoil_in_steps(api, response, fault)
        if isinstance(response, StagedProduce):
            response.adapt = partial(self._spoil_late, api, fault)
            return response
        if isinstance(response, Delayed):
            return _spoil_delayed(response, fault)
        return self._spoil_late(api, fault, response)

    def _spoil_in_steps(self, api: Api, steps: Steps[Any], fault: Fault) -> Steps[Any]:
        response = yield from steps
        return self._spoil(api, response, fault)

    @staticmethod
    def _spoil_late(api: Api, fault: Fault, response: Any) -> Any:
        """Return a ready response with its failure; `response` is None if the request has no answer."""
        if response is not None:
            return Spoilt(response, fault)
        if fault.close == AFTER:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, f"a test wants it closed after a {api.name}")
        return None


def _spoil_delayed(delayed: AnyDelayed, fault: Fault) -> AnyDelayed:
    delayed.try_complete = _spoilt(delayed.try_complete, fault)
    delayed.expire = _spoilt(delayed.expire, fault)
    return delayed


def _spoilt(answer: Callable[[Now], Any], fault: Fault) -> Callable[[Now], Any]:
    def spoilt(now: Now) -> Any:
        response = answer(now)
        if isinstance(response, GeneratorType):
            return _spoilt_in_steps(response, fault)
        return None if response is None else Spoilt(response, fault)

    return spoilt


def _spoilt_in_steps(steps: Steps[Any], fault: Fault) -> Steps[Any]:
    response = yield from steps
    if isinstance(response, Delayed):
        return _spoil_delayed(response, fault)
    return Spoilt(response, fault)
