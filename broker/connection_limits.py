"""How many connections there may be, of all listeners, of one, of one address, and how fast they may come (KIP-48,
KIP-402, KIP-612).

A connection too many is closed at once, with a line that names the limit. Connections that come too fast are not
closed: the shell accepts none at their listener for as long as `pause_ms` says, and the system's backlog keeps the
rest.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from broker.config import INT_MAX, BrokerConfig, ListenerLimits, parse_overrides

BURST_MS = 1_000  # so much of the rate may come at once


_ALL = ""  # listeners together
_NONE = ListenerLimits()


class ConnectionLimits:
    """Counts what is open. The configuration is handed in each time, for it can be altered; the limits of single
    listeners, by their names, can not."""

    def __init__(self, of_listeners: Mapping[str, ListenerLimits] = MappingProxyType({})) -> None:
        self._of_listeners = of_listeners
        self._open: Counter[str] = Counter()
        """By listener."""
        self._by_address: Counter[str] = Counter()
        self._free_ms: dict[str, float] = {}
        """By listener, and of all, when their connections so far have had their share of time at the rate allowed."""

    def opened(self, address: str, config: BrokerConfig, now_ms: int, listener: str = "PLAINTEXT") -> str | None:
        """One more, which counts until it is closed; why it is too many, or None."""
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
        """How long a listener is to accept no connection; 0 where the next may come."""
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
