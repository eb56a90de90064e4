"""The row of the API table for one request of a client that has quotas: what it uses is counted, and its connection is
held back where that is too much (KIP-219: the answer leaves at once, and says for how long).

What has no quota goes by the table's own row and pays nothing for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from broker.api_table import PRODUCE, Api, Handler
from broker.handlers.call import Call
from broker.now import Now
from broker.purgatory import Delayed
from broker.quota_manager import Meter
from broker.wire.frame import Part

WRITE_TXN_MARKERS = 27  # brokers send it to each other: its time is not counted, as in Kafka


@dataclass(frozen=True, kw_only=True)
class MeteredApi(Api):
    """It has no short way, as each request is counted. `size` is the request's, in bytes; `hold` holds the connection
    back as the meter says."""

    served: Api
    meter: Meter
    size: int
    clock_ns: Callable[[], int]
    now: Callable[[], Now]
    hold: Callable[[Meter], None]

    @cached_property
    def handle(self) -> Handler:
        return self._handle

    def _handle(self, call: Call, now: Now) -> Any:
        began_ns = self.clock_ns()
        response = self.served.handle(call._replace(meter=self.meter), now)
        if response is None:  # acks=0: its time is not counted, as in Kafka, as nobody could be told
            self._done(now)
            return None
        self._worked(began_ns, now)
        if isinstance(response, Delayed):
            response.try_complete = self._timed(response.try_complete)
            response.expire = self._timed(response.expire)
        return response

    def _timed(self, answer: Callable[[Now], Any]) -> Callable[[Now], Any]:
        def timed(now: Now) -> Any:
            began_ns = self.clock_ns()
            response = answer(now)
            self._worked(began_ns, now)
            return response

        return timed

    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        now, began_ns = self.now(), self.clock_ns()
        self._done(now)
        body = self.served.encode(version, response, self.meter.throttle_ms)
        self._worked(began_ns, now)  # what this adds is met by the next request
        return body

    def _done(self, now: Now) -> None:
        """What is answered, or needs no answer, is counted; then its connection is held back."""
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
    """A row that counts one request of `size` bytes."""
    row = {each.name: getattr(api, each.name) for each in fields(Api)} | {"repeats": False, "asks": False}
    return MeteredApi(**row, served=api, meter=meter, size=size, clock_ns=clock_ns, now=now, hold=hold)
