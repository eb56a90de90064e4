"""The blocking client of id services, with TLS by Kafka's client settings."""

from typing import TYPE_CHECKING

from flakelog.id_clients.given import tls_of
from idgen.client import blocking
from idgen.client.core import PREFETCH_MAX_AGE_MS, REQUEST_TIMEOUT_MS

if TYPE_CHECKING:
    from broker.client.security.client_security import Security


class IdClient(blocking.IdClient):
    """A blocking client of one id service, or of several interchangeable ones.

        with IdClient("ids1:7609", "ids2:7609", prefetch=100) as client:
            id = client.get_id()

    The client connects on first use and keeps the connection; if a server fails, it tries the next one. With
    `prefetch`, it fetches that many ids at a time, and `get_id` hands out ids at most `prefetch_max_age_ms` old.
    `timeout_ms` limits the wait for one server's answer.

    `security` has the properties of a Kafka client for TLS: security.protocol=SSL, and ssl.*.

    Thread-safe: calls run one after another. A forked child starts without its parent's connection and ids.

    The constructor raises InvalidSetting, which names the property. Calls raise IdServiceUnreachable (a
    ConnectionError), with the addresses and reasons, if no server answers, and IdServiceError if a service refuses.
    """

    def __init__(
        self,
        *servers: str,
        user_agent: str = "flakelog",
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        prefetch: int = 0,
        prefetch_max_age_ms: int = PREFETCH_MAX_AGE_MS,
        security: "Security" = None,
    ) -> None:
        super().__init__(
            *servers,
            user_agent=user_agent,
            timeout_ms=timeout_ms,
            prefetch=prefetch,
            prefetch_max_age_ms=prefetch_max_age_ms,
            tls=tls_of(security),
        )
