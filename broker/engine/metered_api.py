"""The API table's row for one request of a client that has quotas.

It counts what the request uses, and throttles the connection if that is too much (KIP-219: the answer leaves at once
and has the throttle time). A request without quotas uses the table's row and pays no cost.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from types import GeneratorType
from typing import Any, TypeVar

from broker.engine.api_table import PRODUCE, Api, Handler
from broker.now import Now
from broker.produce.turn import StagedProduce
from broker.quota.quota_manager import Meter
from broker.services.context import RequestContext
from broker.steps import Steps
from broker.waiting.purgatory import Delayed
from broker.wire.frame import Part

T = TypeVar("T")

WRITE_TXN_MARKERS = 27  # brokers send it to each other, so as in Kafka its time is not counted


@dataclass(frozen=True, kw_only=True)
class MeteredApi(Api):
    """A row that counts each request. `size` is the request's, in bytes. `hold` throttles the connection as the meter
    says."""

    served: Api
    meter: Meter
    size: int
    clock_ns: Callable[[], int]
    now: Callable[[], Now]
    hold: Callable[[Meter], None]

    @cached_property
    def handle(self) -> Handler:
        return self._handle

    def _handle(self, call: RequestContext, now: Now) -> Any:
        began_ns = self.clock_ns()
        response = self.served.handle(call._replace(meter=self.meter), now)
        if isinstance(response, StagedProduce) and not response.acks:
            self._done(now)  # its time is not counted, as in Kafka, because no answer could tell the client
            return response
        self._worked(began_ns, now)
        if isinstance(response, StagedProduce) and response.steps is not None:
            response.steps = self._counted(response.steps)
        if isinstance(response, GeneratorType):
            return self._counted_handler(response)
        if isinstance(response, Delayed):
            self._time(response)
        return response

    def _counted_handler(self, steps: Steps[Any]) -> Steps[Any]:
        response = yield from self._counted(steps)
        if isinstance(response, Delayed):
            self._time(response)
        return response

    def _time(self, delayed: Delayed[Any]) -> None:
        """Count the time that a delayed answer takes."""
        delayed.try_complete = self._timed(delayed.try_complete)
        delayed.expire = self._timed(delayed.expire)

    def _timed(self, answer: Callable[[Now], Any]) -> Callable[[Now], Any]:
        def timed(now: Now) -> Any:
            began_ns = self.clock_ns()
            response = answer(now)
            self._worked(began_ns, now)
            return self._counted_handler(response) if isinstance(response, GeneratorType) else response

        return timed

    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        now, began_ns = self.now(), self.clock_ns()
        self._done(now)
        body = self.served.encode(version, response, self.meter.throttle_ms)
        self._worked(began_ns, now)  # the next request pays for the time this adds
        return body

    def encode_in_steps(self, version: int, response: Any, throttle_ms: int = 0) -> Steps[list[Part]]:
        """Encode an answer that `encode`, called before, found too large; that has counted the request."""
        body = yield from self._counted(self.served.encode_in_steps(version, response, self.meter.throttle_ms))
        return body

    def _counted(self, steps: Steps[T]) -> Steps[T]:
        """Return the result of work in slices, and count the time of each slice."""
        now: Any = None
        while True:
            began_ns = self.clock_ns()
            try:
                steps.send(now)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                self._worked(began_ns, self.now())
            now = yield

    def _done(self, now: Now) -> None:
        """Count a request that is answered or needs no answer, then throttle its connection if it must wait."""
        if self.key == PRODUCE:
            self.meter.produced(self.size, now.ms)
        if self.meter.throttle_ms:
            self.hold(self.meter)

    def _worked(self, began_ns: int, now: Now) -> None:
        if self.key != WRITE_TXN_MARKERS:
            self.meter.worked(self.clock_ns() - began_ns, now.ms)


def metered(
    api: Api,
    meter: Meter,
    size: int,
    clock_ns: Callable[[], int],
    now: Callable[[], Now],
    hold: Callable[[Meter], None],
) -> MeteredApi:
    """Return a row that counts one request of `size` bytes."""
    row = {each.name: getattr(api, each.name) for each in fields(Api)}
    return MeteredApi(**row, served=api, meter=meter, size=size, clock_ns=clock_ns, now=now, hold=hold)
