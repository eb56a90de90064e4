"""Failures on demand, for tests of clients only: which requests fail, and how.

The names and the order are those of librdkafka's mock cluster (rd_kafka_mock_push_request_errors): failures of an API
wait in a queue, and each request of that API takes the first one. A delay is kept beside the queue, because a slow link
delays everything sent over it.
"""

from collections import deque
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from broker.engine.api_table import APIS
from broker.wire.errors import ErrorCode

QUEUE_MAX = 10_000  # most failures that wait for requests of one API; a test that needs more has lost count
DELAY_MS_MAX = 600_000  # longer than any client waits

BEFORE, AFTER = "before", "after"
# Clients look in these APIs' answers for data that is not in the request, so no answer can be made from it
# (error_answers).
NO_ERRORS = frozenset({"AlterClientQuotas", "AlterUserScramCredentials", "DescribeLogDirs"})


class Fault(NamedTuple):
    """The failure of one request.

    With `error` the broker answers with it and does not handle the request. With `close` the broker closes the
    connection before or after it handles the request. The answer is `delay_ms` late.
    """

    error: ErrorCode | None = None
    close: str | None = None
    delay_ms: int = 0


@dataclass(slots=True)
class _Delay:
    ms: int
    times: int | None
    """Number of answers still to delay; None for all."""


class Faults:
    """Pending failures by API key. Methods raise ValueError for an invalid failure."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Fault]] = {}
        self._delays: dict[int, _Delay] = {}

    def fail(self, key: int, error: ErrorCode, times: int) -> None:
        """Answer the next `times` requests with an error."""
        if APIS[key].name in NO_ERRORS:
            without = ", ".join(sorted(NO_ERRORS))
            raise ValueError(f"{APIS[key].name} cannot be made to fail; all but these can: {without}")
        if error == ErrorCode.NONE:
            raise ValueError("NONE is no error; name one, as NOT_LEADER_OR_FOLLOWER")
        self._push(key, Fault(error=error), times)

    def close(self, key: int, when: str, times: int) -> None:
        """Close the connections of the next requests without an answer, "before" or "after" handling them."""
        if when not in (BEFORE, AFTER):
            raise ValueError(f"when={when!r}; there are {BEFORE!r} and {AFTER!r} (the request was carried out)")
        self._push(key, Fault(close=when), times)

    def delay(self, key: int, ms: int, times: int | None) -> None:
        """Delay the next `times` answers, or all, by `ms`; 0 ms ends an earlier delay."""
        if not 0 <= ms <= DELAY_MS_MAX:
            raise ValueError(f"ms={ms}; a delay lies between 0 and {DELAY_MS_MAX}")
        if times is not None and times < 1:
            raise ValueError(f"times={times}; give 1 or more, or None for all that come")
        self._delays.pop(key, None)
        if ms:
            self._delays[key] = _Delay(ms, times)

    def clear(self) -> None:
        self._queues.clear()
        self._delays.clear()

    def _push(self, key: int, fault: Fault, times: int) -> None:
        queue = self._queues.setdefault(key, deque())
        if not 1 <= times <= QUEUE_MAX - len(queue):
            room = QUEUE_MAX - len(queue)
            raise ValueError(f"times={times}; give 1 to {room} ({len(queue)} of {QUEUE_MAX} wait already)")
        queue.extend([fault] * times)

    # --- at a request --------------------------------------------------------------------------------------------

    def awaits(self, key: int) -> bool:
        """Return True if requests of this API have a failure or a delay pending."""
        return bool(self._queues.get(key)) or key in self._delays

    def next(self, key: int) -> Fault:
        """Return the failure of the next request. It stays pending until `took`."""
        queue, delay = self._queues.get(key), self._delays.get(key)
        fault = queue[0] if queue else Fault()
        return fault._replace(delay_ms=delay.ms) if delay is not None else fault

    def took(self, key: int, fault: Fault) -> None:
        """Remove a failure that `next` returned and that has now happened."""
        if fault.error is not None or fault.close is not None:
            self._queues[key].popleft()
        delay = self._delays.get(key)
        if delay is not None and delay.times is not None:
            delay.times -= 1
            if not delay.times:
                del self._delays[key]

    def left(self) -> dict[str, dict[str, Any]]:
        """Return the pending failures by API name: {"Produce": {"queue": 2, "delay_ms": 300}}."""
        keys = [key for key in APIS if self.awaits(key)]
        return {APIS[key].name: self._left_of(key) for key in keys}

    def _left_of(self, key: int) -> dict[str, int]:
        delay = self._delays.get(key)
        return {"queue": len(self._queues.get(key, ())), "delay_ms": delay.ms if delay is not None else 0}


def key_of(name: str) -> int:
    """Return the key of an API by its protocol name. Raise ValueError with the nearest name."""
    keys = {api.name: api.key for api in APIS.values()}
    if name not in keys:
        near = get_close_matches(name, keys, 1)
        raise ValueError(f"no API {name!r} is served; " + (f"did you mean {near[0]}?" if near else ", ".join(keys)))
    return keys[name]


def error_of(error: str | int) -> ErrorCode:
    """Return an error by its protocol name or its number. Raise ValueError with the nearest name."""
    if isinstance(error, int):
        try:
            return ErrorCode(error)
        except ValueError:
            raise ValueError(f"Kafka has no error {error}; see ErrorCode of broker.wire.errors") from None
    if error not in ErrorCode.__members__:
        near = get_close_matches(error.upper(), ErrorCode.__members__, 1)
        raise ValueError(f"Kafka has no error {error!r}" + (f"; did you mean {near[0]}?" if near else ""))
    return ErrorCode[error]
