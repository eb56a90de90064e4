"""The security that a program gives to a client of id services."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.client.security.client_security import Security
    from flakelog.id_clients.tls import IdTls


def tls_of(security: "Security") -> "IdTls | None":
    """Return the TLS with these properties, None for plain connections, which load nothing of TLS.

    Raise InvalidSetting as `IdTls.of` does.
    """
    if security is None:
        return None
    from flakelog.id_clients.tls import IdTls

    return IdTls.of(security)
