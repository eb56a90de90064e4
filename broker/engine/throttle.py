"""Client quotas at the engine: requests are counted, and connections over a quota are not read for a while."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.channel.connection import Connection
from broker.channel.request_channel import RequestChannel
from broker.engine.api_table import Api
from broker.now import Now
from broker.services.context import BrokerServices

if TYPE_CHECKING:
    from broker.quota.quota_manager import Meter, QuotaManager


class Throttle:
    """Counts requests and connections against `services.quotas`, and mutes the connections of clients over a quota."""

    def __init__(self, services: BrokerServices, channel: RequestChannel) -> None:
        self._services = services
        self._channel = channel

    def metered(self, conn: Connection, api: Api, client_id: str | None, size: int, quotas: "QuotaManager") -> Api:
        """Return the row for one request; if the client has quotas, the row counts the request and may throttle."""
        meter = quotas.meter(client_id, conn.user)
        if meter is None:
            return api
        from broker.engine.metered_api import metered  # few brokers ever need it

        clock = self._channel.clock
        return metered(api, meter, size, clock.clock_ns, lambda: clock.now, lambda over: self._throttle(conn, over))

    def _throttle(self, conn: Connection, over: "Meter") -> None:
        """Stop reading from a connection for a while, because its client is over a quota (KIP-219)."""
        self._mute(conn, over, lambda: self._channel.queue.resume(conn))

    def count_connection(self, conn: Connection, quotas: "QuotaManager", now: Now) -> None:
        """Count a new connection; if its address is over the quota, hold the connection for a while, then close it.

        Kafka does the same (KIP-612), because a client whose connection is closed at once connects again at once.
        """
        over = quotas.connected(conn.address, now.ms)
        if over is not None:
            self._channel.clock.now = now
            reason = f"its address is over {over.quota}, a client quota"
            self._mute(conn, over, lambda: self._channel.connections.close(conn, reason))

    def _mute(self, conn: Connection, over: "Meter", then: Callable[[], None]) -> None:
        """Read nothing from a connection for the throttle time of `over`, then call `then`.

        Of two overlapping throttle times the one that ends last counts.
        """
        services, now = self._services, self._channel.clock.now
        services.metrics.throttle(over.quota, over.throttle_ms)
        until_ms = now.ms + over.throttle_ms
        if conn.muted is not None:
            if (conn.muted.deadline_ms or 0) >= until_ms:
                return
            services.purgatory.cancel(conn.muted)

        def is_over(_: Now) -> None:
            conn.mute(None)
            then()

        conn.mute(services.purgatory.call_at(until_ms, is_over))
