"""The API table's row for one request of a client that has quotas.

It counts what the request uses, and throttles the connection if that is too much (KIP-219: the answer leaves at once
and has the throttle time). A request without quotas uses the table's row and pays no cost.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import GeneratorType
from typing import Any, TypeVar

from broker.engine.api_table import PRODUCE, WRITE_TXN_MARKERS, Api
from broker.now import Now
from broker.produce.outcome import Postponed
from broker.produce.turn import StagedProduce
from broker.quota.quota_manager import Meter
from broker.services.context import RequestContext
from broker.steps import Steps
from broker.waiting.purgatory import Delayed
from broker.wire.codec import Codec, Request
from broker.wire.frame import Part
from broker.wire.request_limits import DEFAULT_LIMITS, RequestLimits

T = TypeVar("T")


class MeteredRequest:
    """The count of one request of `size` bytes. `hold` throttles its connection as the meter says."""

    def __init__(
        self,
        key: int,
        meter: Meter,
        size: int,
        clock_ns: Callable[[], int],
        now: Callable[[], Now],
        hold: Callable[[Meter], None],
    ) -> None:
        self.meter = meter
        self.clock_ns = clock_ns
        self.now = now
        self._key = key
        self._size = size
        self._hold = hold

    def done(self, now: Now) -> None:
        """Count a request that is answered or needs no answer, then throttle its connection if it must wait."""
        if self._key == PRODUCE:
            self.meter.produced(self._size, now.ms)
        if self.meter.throttle_ms:
            self._hold(self.meter)

    def worked(self, began_ns: int, now: Now) -> None:
        """Count the time since `began_ns`."""
        if self._key != WRITE_TXN_MARKERS:  # brokers send it to each other, so as in Kafka its time is not counted
            self.meter.worked(self.clock_ns() - began_ns, now.ms)

    def counted(self, steps: Steps[T]) -> Steps[T]:
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
                self.worked(began_ns, self.now())
            now = yield


class MeteredCodec(Codec):
    """A codec that counts the encoding of one answer, and adds the throttle time to it."""

    def __init__(self, served: Codec, count: MeteredRequest) -> None:
        super().__init__(served.key, served.name, served.newest, served.flexible)
        self._served = served
        self._count = count

    def decode(self, version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS) -> Request:
        return self._served.decode(version, data, position, limits)

    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        count = self._count
        now, began_ns = count.now(), count.clock_ns()
        count.done(now)
        body = self._served.encode(version, response, count.meter.throttle_ms)
        count.worked(began_ns, now)  # the next request pays for the time this adds
        return body

    def encode_in_steps(self, version: int, response: Any, throttle_ms: int = 0) -> Steps[list[Part]]:
        """Encode an answer that `encode`, called before, found too large; that has counted the request."""
        count = self._count
        body = yield from count.counted(self._served.encode_in_steps(version, response, count.meter.throttle_ms))
        return body


@dataclass(eq=False, kw_only=True)
class MeteredApi(Api):
    """A row that counts one request."""

    served: Api
    count: MeteredRequest

    def __post_init__(self) -> None:
        self.rights = self.served.rights
        self.codec = MeteredCodec(self.served.codec, self.count)
        self.handle = self._handle

    def _handle(self, call: RequestContext, now: Now) -> Any:
        count = self.count
        began_ns = count.clock_ns()
        response = self.served.handle(call._replace(meter=count.meter), now)
        if isinstance(response, Postponed):
            return response  # it is counted when it is executed again
        if isinstance(response, StagedProduce) and not response.acks:
            count.done(now)  # its time is not counted, as in Kafka, because no answer could tell the client
            return response
        count.worked(began_ns, now)
        if isinstance(response, StagedProduce) and response.steps is not None:
            response.steps = count.counted(response.steps)
        if isinstance(response, GeneratorType):
            return self._counted_handler(response)
        if isinstance(response, Delayed):
            self._time(response)
        return response

    def _counted_handler(self, steps: Steps[Any]) -> Steps[Any]:
        response = yield from self.count.counted(steps)
        if isinstance(response, Delayed):
            self._time(response)
        return response

    def _time(self, delayed: Delayed[Any]) -> None:
        """Count the time that a delayed answer takes."""
        delayed.try_complete = self._timed(delayed.try_complete)
        delayed.expire = self._timed(delayed.expire)

    def _timed(self, answer: Callable[[Now], Any]) -> Callable[[Now], Any]:
        count = self.count

        def timed(now: Now) -> Any:
            began_ns = count.clock_ns()
            response = answer(now)
            count.worked(began_ns, now)
            return self._counted_handler(response) if isinstance(response, GeneratorType) else response

        return timed


def metered(
    api: Api,
    meter: Meter,
    size: int,
    clock_ns: Callable[[], int],
    now: Callable[[], Now],
    hold: Callable[[Meter], None],
) -> MeteredApi:
    """Return a row that counts one request of `size` bytes."""
    row = {field.name: getattr(api, field.name) for field in fields(Api) if field.init}
    return MeteredApi(**row, served=api, count=MeteredRequest(api.key, meter, size, clock_ns, now, hold))
