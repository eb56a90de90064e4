"""How many connections there may be, of one address, and how fast they may come (KIP-48, KIP-612).

A connection too many is closed at once, with a line that names the limit. Connections that come too fast are not
closed: the shell pauses accepting for as long as `pause_ms` says, and the system's backlog keeps the rest.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from broker.config import INT_MAX, BrokerConfig, parse_overrides

BURST_MS = 1_000  # so much of the rate may come at once


class ConnectionLimits:
    """Counts what is open. The configuration is handed in each time, for it can be altered."""

    def __init__(self) -> None:
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._free_ms = 0.0
        """When all connections so far have had their share of time at the rate allowed."""

    def opened(self, address: str, config: BrokerConfig, now_ms: int) -> str | None:
        """One more, which counts until it is closed; why it is too many, or None."""
        self._open += 1
        self._by_address[address] += 1
        rate = config.max_connection_creation_rate
        if rate != INT_MAX:
            self._free_ms = max(self._free_ms, now_ms - BURST_MS) + 1_000 / rate
        if self._open > config.max_connections:
            return f"max.connections is {config.max_connections}"
        most = _overrides(config.max_connections_per_ip_overrides).get(address, config.max_connections_per_ip)
        if self._by_address[address] > most:
            return f"it has {most} connections already (max.connections.per.ip)"
        return None

    def closed(self, address: str) -> None:
        self._open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def pause_ms(self, config: BrokerConfig, now_ms: int) -> int:
        """How long no connection is to be accepted; 0 where the next may come."""
        if config.max_connection_creation_rate == INT_MAX or self._free_ms <= now_ms:
            return 0
        return int(self._free_ms - now_ms) + 1


@lru_cache(4)
def _overrides(value: str) -> Mapping[str, int]:
    return parse_overrides(value)
