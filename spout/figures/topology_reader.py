"""SHELL (a thread, the network, the clock): the figures of a topology in a local cluster, for people and for /metrics.

Each task is a process that publishes its own part every two seconds. A thread reads them all the time.
"""

import threading
import time
from contextlib import suppress

from broker.client.blocking import Client
from broker.client.errors import ClientError
from broker.client.security.client_security import ClientSecurity, Security
from broker.wire.errors import WireError
from spout.figures.document import TOPIC, running
from spout.figures.model import Snapshot
from spout.figures.published import snapshot_of
from spout.topology import Plan

AGAIN_SECONDS = 1.0  # between two attempts to read, while the topic or the broker is not there
WAIT_MS = 500
CLIENT_TIMEOUT_MS = 10_000


class PublishedFigures:
    """The figures of a topology that is started now, read at `servers`. Processes that began earlier do not count."""

    def __init__(self, plan: Plan, servers: str, run_id: str, *, security: Security = None) -> None:
        self._plan = plan
        self._servers = servers
        self._security = ClientSecurity.of(security)
        self._run_id = run_id
        self._begun_ms = _now_ms()
        self._latest: dict[bytes, bytes] = {}  # bounded by the tasks of the topology
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._read, name="flakelog-figures", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._is_closed.set()
        if self._client is not None:
            self._client.interrupt()

    def snapshot(self) -> Snapshot:
        """Return the figures as they were published last."""
        now_ms = _now_ms()
        with self._lock:
            documents = running(self._latest.items(), now_ms)
        return snapshot_of(self._plan, documents, run_id=self._run_id, since_ms=self._begun_ms, at_ms=now_ms)

    def _read(self) -> None:
        while not self._is_closed.is_set():
            with suppress(ClientError, WireError, OSError):
                with Client(self._servers, timeout_ms=CLIENT_TIMEOUT_MS, security=self._security) as client:
                    self._client = client
                    self._follow(client)
            self._is_closed.wait(AGAIN_SECONDS)

    def _follow(self, client: Client) -> None:
        offset = client.find_offset(TOPIC, 0, self._begun_ms)
        prefix = f"{self._plan.id}/".encode()
        while not self._is_closed.is_set():
            records, offset = client.fetch(TOPIC, 0, offset, max_wait_ms=WAIT_MS)
            with self._lock:
                for record in records:
                    if record.key is None or not record.key.startswith(prefix):
                        continue
                    if record.value is None:
                        self._latest.pop(record.key, None)
                    else:
                        self._latest[record.key] = record.value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
