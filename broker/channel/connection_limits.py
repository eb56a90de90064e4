"""Limits on connections: in all, of one listener, of one address, and their rate (KIP-48, KIP-402, KIP-612).

A connection over a limit is closed at once, with a log line that names the limit. Connections that come too fast are
not closed: the shell stops accepting at their listener for `pause_ms` milliseconds, and the system's backlog keeps the
connections.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from broker.settings.config import INT_MAX, BrokerConfig, ListenerLimits, parse_overrides

BURST_MS = 1_000  # the number of connections that the rate allows in this time may come at once


_ALL = ""  # the key for all listeners together
_NONE = ListenerLimits()


class ConnectionLimits:
    """Counters of open connections.

    Each call takes the configuration because it can be altered at run time. The limits of single listeners, by listener
    name, cannot.
    """

    def __init__(self, of_listeners: Mapping[str, ListenerLimits] = MappingProxyType({})) -> None:
        self._of_listeners = of_listeners
        self._open: Counter[str] = Counter()
        """Open connections by listener."""
        self._by_address: Counter[str] = Counter()
        self._free_ms: dict[str, float] = {}
        """By listener, and in `_ALL` for all: when the connections so far will have used up their share of the rate."""

    def opened(self, address: str, config: BrokerConfig, now_ms: int, listener: str = "PLAINTEXT") -> str | None:
        """Count a connection until it is closed. Return the limit it exceeds, or None."""
        self._open[listener] += 1
        self._by_address[address] += 1
        own = self._of_listeners.get(listener, _NONE)
        self._pace(_ALL, config.max_connection_creation_rate, now_ms)
        self._pace(listener, own.max_connection_creation_rate, now_ms)
        if self._open.total() > config.max_connections:
            return f"max.connections is {config.max_connections}"
        if self._open[listener] > own.max_connections:
            return f"listener.name.{listener.lower()}.max.connections is {own.max_connections}"
        most = _overrides(config.max_connections_per_ip_overrides).get(address, config.max_connections_per_ip)
        if self._by_address[address] > most:
            return f"it has {most} connections already (max.connections.per.ip)"
        return None

    def _pace(self, listener: str, rate: int, now_ms: int) -> None:
        if rate != INT_MAX:
            self._free_ms[listener] = max(self._free_ms.get(listener, 0.0), now_ms - BURST_MS) + 1_000 / rate

    def closed(self, address: str, listener: str = "PLAINTEXT") -> None:
        self._open[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def pause_ms(self, config: BrokerConfig, now_ms: int, listener: str = "PLAINTEXT") -> int:
        """Return for how many milliseconds a listener must accept no connection; 0 if it may accept the next one."""
        own = self._of_listeners.get(listener, _NONE)
        return max(
            self._pause_ms(_ALL, config.max_connection_creation_rate, now_ms),
            self._pause_ms(listener, own.max_connection_creation_rate, now_ms),
        )

    def _pause_ms(self, listener: str, rate: int, now_ms: int) -> int:
        free_ms = self._free_ms.get(listener, 0.0)
        return 0 if rate == INT_MAX or free_ms <= now_ms else int(free_ms - now_ms) + 1


@lru_cache(4)
def _overrides(value: str) -> Mapping[str, int]:
    return parse_overrides(value)
