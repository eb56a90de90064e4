"""SHELL (Twisted, the clock): reads whether a bolt of the topology holds tuples, because a service it needs is down.

Each task publishes its figures every two seconds (spout.publisher), and a bolt's have the outage. A spout reads them
only after timeouts, and no more often than every two seconds.
"""

import time
from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks

from broker.client.twisted import TwistedClient
from spout.publisher import EXPIRES_MS, INTERVAL_MS, TOPIC, holds

READ_SECONDS = 5.0  # longest time to read; without an answer, no bolt holds tuples
READS_MAX = 64  # of 1 MiB: ten seconds of some thousand tasks


class OutageReader:
    """Reads the figures of the topology with this id at `servers`."""

    def __init__(self, servers: str, topology_id: str, reactor: ReactorBase) -> None:
        self._topology_id = topology_id
        self._reactor = reactor
        self._client = TwistedClient(servers, reactor)
        self._answer = False
        self._read_ms = 0
        self._waiting: list[Callable[[bool], None]] = []

    def look(self, answer: Callable[[bool], None]) -> None:
        """Call `answer` with True if a bolt has held tuples within the last ten seconds, now or soon."""
        if _now_ms() < self._read_ms + INTERVAL_MS:
            answer(self._answer)
            return
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            reading = self._read()
            reading.addTimeout(READ_SECONDS, self._reactor)  # type: ignore[arg-type]
            reading.addErrback(lambda failure: False).addCallback(self._tell)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _tell(self, found: bool) -> None:
        self._answer, self._read_ms = found, _now_ms()
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(found)

    @inlineCallbacks
    def _read(self) -> Generator["Deferred[Any]", Any, bool]:
        offset = yield self._client.find_offset(TOPIC, 0, _now_ms() - EXPIRES_MS)
        for _ in range(READS_MAX):
            records, after = yield self._client.fetch(TOPIC, 0, offset, max_wait_ms=0)
            if any(holds(each.value, self._topology_id) for each in records if each.value is not None):
                return True
            if after == offset:
                break
            offset = after
        return False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
