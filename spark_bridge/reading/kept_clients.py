"""SHELL (sockets, processes): the clients of a process, kept from one range to the next.

Spark reads one range after the other in a Python worker. A connection for each, with versions and metadata, takes
longer than a small range.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from broker.client.blocking import Client
from spark_bridge.reading.network import Address, connect
from spark_bridge.reading.settings import ReadSettings

CLIENTS_KEPT_MAX = 4
"""Clients that wait for the next range. A worker reads one range at a time, and seldom from several clusters."""

_Key: TypeAlias = tuple[int, tuple[Address, ...], int, str, tuple[tuple[str, str], ...]]


class KeptClients:
    """Clients without a user, by the cluster and the settings they are for. Any thread may lend one."""

    def __init__(self, at_most: int = CLIENTS_KEPT_MAX) -> None:
        self._at_most = at_most
        self._lock = threading.Lock()
        self._idle: list[tuple[_Key, Client]] = []  # the one used last comes last

    @contextmanager
    def lend(self, servers: Sequence[Address], settings: ReadSettings) -> Iterator[Client]:
        """Lend a client to one range. It connects when it is used."""
        key = (os.getpid(), tuple(servers), settings.request_timeout_ms, settings.client_id, settings.security)
        client = self._take(key) or connect(servers, settings)
        try:
            yield client
        finally:
            self._keep(key, client)

    def _take(self, key: _Key) -> Client | None:
        """Return an idle client. A fork has another process id, so it leaves its parent's connections alone."""
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index][0] == key:
                    return self._idle.pop(index)[1]
        return None

    def _keep(self, key: _Key, client: Client) -> None:
        with self._lock:
            self._idle.append((key, client))
            surplus = self._idle[: -self._at_most]
            del self._idle[: -self._at_most]
        for _, idle in surplus:
            idle.close()


CLIENTS = KeptClients()
"""This process's clients."""
