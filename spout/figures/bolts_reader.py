"""SHELL (Twisted, the clock): reads what the bolts of a topology published lately, for a spout inside Storm.

Each task publishes its figures every two seconds (spout.figures.document). A bolt's tell if it holds tuples, and which
messages failed for which exception. A spout reads them only after timeouts, and before it writes dead letters.
"""

import time
from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, inlineCallbacks

from broker.client.security.client_security import Security
from broker.client.twisted import TwistedClient
from spout.figures.document import EXPIRES_MS, INTERVAL_MS, TOPIC, BoltsLately, bolts_lately

READ_SECONDS = 5.0  # longest time to read; without an answer, the bolts have said nothing
READS_MAX = 64  # of 1 MiB: ten seconds of some thousand tasks

Answer = Callable[[BoltsLately], None]


class BoltsReader:
    """Reads the figures of the bolts of the topology with this id, published at `servers` in the last ten seconds."""

    def __init__(self, servers: str, topology_id: str, reactor: ReactorBase, *, security: Security = None) -> None:
        self._topology_id = topology_id
        self._reactor = reactor
        self._client = TwistedClient(servers, reactor, security=security)
        self._bolts = BoltsLately(False, {})
        self._read_ms = 0
        self._waiting: list[Answer] = []

    def read(self, answer: Answer, *, again: bool = False) -> None:
        """Call `answer` now or soon. With `again` True read the figures, else do so if two seconds have passed."""
        if not again and _now_ms() < self._read_ms + INTERVAL_MS:
            answer(self._bolts)
            return
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            reading = self._read()
            reading.addTimeout(READ_SECONDS, self._reactor)  # type: ignore[arg-type]
            reading.addErrback(lambda failure: BoltsLately(False, {})).addCallback(self._tell)

    def _tell(self, bolts: BoltsLately) -> None:
        self._bolts, self._read_ms = bolts, _now_ms()
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(bolts)

    @inlineCallbacks
    def _read(self) -> Generator["Deferred[Any]", Any, BoltsLately]:
        offset = yield self._client.find_offset(TOPIC, 0, _now_ms() - EXPIRES_MS)
        values: list[bytes] = []
        for _ in range(READS_MAX):
            records, after = yield self._client.fetch(TOPIC, 0, offset, max_wait_ms=0)
            values += [record.value for record in records if record.value is not None]
            if after == offset:
                break
            offset = after
        return bolts_lately(values, self._topology_id)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
