"""The TLS of a client of id services, of the settings that all clients have (broker.client.security)."""

import ssl
from typing import TYPE_CHECKING, Any

from broker.client.address import Address as BrokerAddress
from broker.client.errors import NotAuthenticated, Unreachable
from broker.client.security.client_security import ClientSecurity, Security
from broker.client.security.settings import PROTOCOL, SSL
from broker.client.security.tls_failures import handshake_failure, tls_failure
from idgen.client.core import Address
from idgen.client.tls import TlsFailure
from idgen.settings import InvalidSetting

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure


class IdTls:
    """The TLS of a client (idgen.client.tls.ClientTls)."""

    def __init__(self, security: ClientSecurity) -> None:
        self._security = security

    @staticmethod
    def of(given: Security) -> "IdTls | None":
        """Return the TLS with these properties, None for plain connections.

        Raise InvalidSetting, also for a login, which the id service does not ask for.
        """
        security = ClientSecurity.of(given)
        if security is None:
            return None
        if security.asks_login:
            wanted = f"the id service asks for no login: set {SSL} and ssl.keystore.location if it wants a certificate"
            raise InvalidSetting(PROTOCOL, security.settings.protocol, wanted)
        return IdTls(security)

    def context(self) -> ssl.SSLContext:
        context = self._security.context()
        assert context is not None, "`of` makes one for TLS only"
        return context

    def failure(self, address: Address, error: Exception, *, in_handshake: bool) -> TlsFailure:
        if not isinstance(error, (OSError, ValueError)):
            return _failure_of(error)
        broker = BrokerAddress(*address)
        if in_handshake or not isinstance(error, OSError):
            return _failure_of(handshake_failure(broker, error))
        return _failure_of(tls_failure(broker, error))

    def connect(self, reactor: Any, address: Address, protocol: Any, timeout_s: float) -> "Deferred[Any]":
        from broker.client.security.twisted_tls import connect

        connecting = connect(reactor, BrokerAddress(*address), protocol, self._security, timeout_s)
        return connecting.addErrback(_named)


def _named(failure: "Failure") -> None:
    """Replace a failure of TLS by a TlsFailure."""
    if isinstance(failure.value, (NotAuthenticated, Unreachable)):
        raise _failure_of(failure.value)
    failure.raiseException()


def _failure_of(error: Exception) -> TlsFailure:
    return TlsFailure(getattr(error, "reason", "") or str(error) or type(error).__name__)
