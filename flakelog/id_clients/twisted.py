"""The Twisted client of id services, with TLS by Kafka's client settings."""

from typing import Any

from broker.client.security.client_security import Security
from flakelog.id_clients.tls import IdTls
from idgen.client import twisted
from idgen.client.core import PREFETCH_MAX_AGE_MS, REQUEST_TIMEOUT_MS


class TwistedIdClient(twisted.TwistedIdClient):
    __doc__ = twisted.TwistedIdClient.__doc__

    def __init__(
        self,
        reactor: Any,
        *servers: str,
        user_agent: str = "flakelog",
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        prefetch: int = 0,
        prefetch_max_age_ms: int = PREFETCH_MAX_AGE_MS,
        security: Security = None,
    ) -> None:
        """`security` has the properties of a Kafka client: security.protocol=SSL, and ssl.*. Raise InvalidSetting."""
        super().__init__(
            reactor,
            *servers,
            user_agent=user_agent,
            timeout_ms=timeout_ms,
            prefetch=prefetch,
            prefetch_max_age_ms=prefetch_max_age_ms,
            tls=IdTls.of(security),
        )
