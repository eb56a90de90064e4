"""Orders to a server that was started for tests (`flakelog server --controlled`).

An order is a line of JSON on stdin, its answer a line of JSON on stdout. Only the program that started the server can
give orders, because it holds both pipes.

    {"order": 1, "do": "fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 3}
    {"order": 1, "done": null}
    {"order": 2, "do": "close", "api": "Produce", "when": "never", "times": 1}
    {"order": 2, "error": "when='never'; there are 'before' and 'after' (the request was carried out)"}
    {"order": 3, "do": "delay", "api": "Fetch", "ms": 200, "times": null}      also "clear" and "left"
    {"order": 4, "do": "remove", "directory": "/tmp/flakelog-x"}    if the orders end before the server is stopped
"""

import json
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.protocols.basic import LineReceiver
from twisted.python.failure import Failure

from broker.fault_injection.faults import error_of, key_of

if TYPE_CHECKING:
    from broker.fault_injection.faulty_engine import FaultyEngine
    from broker.services.context import BrokerServices
    from flakelog.server.lifecycle import Lifecycle

ORDER_BYTES_MAX = 1 << 16


class Control(LineReceiver):
    """The receiver of orders. When stdin ends, the server stops, because the program that started it has ended."""

    delimiter = b"\n"
    MAX_LENGTH = ORDER_BYTES_MAX

    def __init__(self, lifecycle: "Lifecycle", stop: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._stop = stop
        self._faulty_engine: "FaultyEngine | None" = None  # until the server opens its broker
        self._remove: str | None = None
        self._abandoned = False
        self._orders: dict[str, Callable[..., Any]] = {
            "fail": self._fail,
            "close": self._close,
            "delay": self._delay,
            "clear": lambda: self._engine.clear(),
            "left": lambda: self._engine.left(),
            "remove": self._note_directory,
        }

    def make_engine(self, services: "BrokerServices") -> "FaultyEngine":
        """Make the server's engine, which the orders make fail."""
        from broker.fault_injection.faulty_engine import FaultyEngine

        self._faulty_engine = FaultyEngine(services, time.perf_counter_ns)
        return self._faulty_engine

    def lineReceived(self, line: bytes) -> None:
        answer = json.dumps(self._answer(line)).encode()
        self.sendLine(answer)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._abandoned = not self._lifecycle.stopped
        self._stop()

    def clean_up(self) -> None:
        """Remove the noted directory if the orders ended before the server was stopped; call this last."""
        if self._abandoned and self._remove is not None:
            shutil.rmtree(self._remove, ignore_errors=True)

    @property
    def _engine(self) -> "FaultyEngine":
        if self._faulty_engine is None:
            raise ValueError("this server has no broker yet")
        return self._faulty_engine

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            order = json.loads(line)
            number = order.pop("order", None)
        except (ValueError, AttributeError):
            return {"error": "an order is a JSON object in one line"}
        try:
            return {"order": number, "done": self._carry_out(order)}
        except (ValueError, TypeError) as error:
            return {"order": number, "error": str(error)}

    def _carry_out(self, order: dict[str, Any]) -> Any:
        do = order.pop("do", None)
        if do not in self._orders:
            raise ValueError(f"no order {do!r}; there are {', '.join(self._orders)}")
        return self._orders[do](**order)

    def _fail(self, api: str, error: str | int, times: int = 1) -> None:
        self._engine.fail(key_of(api), error_of(error), times)

    def _close(self, api: str, when: str, times: int = 1) -> None:
        self._engine.close(key_of(api), when, times)

    def _delay(self, api: str, ms: int, times: int | None = None) -> None:
        self._engine.delay(key_of(api), ms, times)

    def _note_directory(self, directory: str) -> None:
        self._remove = directory
