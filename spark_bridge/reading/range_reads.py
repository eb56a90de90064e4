"""SHELL (threads, sockets): reads of ranges by several threads of a process, which `stop` ends from any thread."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from broker.client.blocking import Client
from spark_bridge.reading.network import Address
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_reader import range_of
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.side_by_side import Stopped
from spark_bridge.reading.skipped import SkippedBatch


class RangeReads:
    """Reads from one cluster. Each thread keeps its connections from one range to the next.

    The threads take turns to unpack record batches that are larger than an Arrow batch. They call `on_wait` with the
    reason before each pause between two attempts.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        settings: ReadSettings,
        on_wait: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._on_wait = on_wait
        self._servers = servers
        self._settings = settings
        self._stopped = threading.Event()
        self._clients: list[_StoppableClient] = []
        self._own = threading.local()
        self._lock = threading.Lock()
        self._large_turn = threading.Lock()

    def batches(
        self,
        within: OffsetRange,
        columns: Sequence[str],
        topic_id: str | None,
        on_skipped: Callable[[SkippedBatch], object] | None = None,
        on_lost: Callable[[OffsetRange, str], object] | None = None,
        settings: ReadSettings | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a range as range_reader.read_range does. Raise Stopped after `stop`.

        `settings` take the place of the common settings for this range. The clients are connected by the common ones.
        """
        settings = settings or self._settings
        try:
            yield from range_of(
                within, columns, self.client(), settings, topic_id, on_skipped, on_lost, self._large_turn, self._on_wait
            )
        except Exception:
            if self._stopped.is_set():  # the interrupted call says that the broker does not answer
                raise Stopped from None
            raise

    def stop(self) -> None:
        """End all reads, also those that wait for an answer or for another attempt."""
        self._stopped.set()
        with self._lock:
            for client in self._clients:
                client.interrupt()

    def close(self) -> None:
        """Close all connections. Only after the threads that read have ended."""
        for client in self._clients:
            client.close()

    def client(self) -> Client:
        """Return this thread's client, whose calls `stop` ends."""
        client: _StoppableClient | None = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = _StoppableClient(self._servers, self._settings, self._stopped)
            with self._lock:
                self._clients.append(client)
        return client


class _StoppableClient(Client):
    """A client that sends nothing, and does not wait, after the event."""

    def __init__(self, servers: Sequence[Address], settings: ReadSettings, stopped: threading.Event) -> None:
        super().__init__(
            servers,
            timeout_ms=settings.request_timeout_ms,
            client_id=settings.client_id,
            security=dict(settings.security),
        )
        self._stopped = stopped

    def pause(self, ms: int) -> None:
        if self._stopped.wait(ms / 1000):
            raise Stopped

    def receive(self, address: Address) -> memoryview:
        if self._stopped.is_set():
            raise Stopped
        return super().receive(address)
