"""How a ZooKeeper ensemble is spoken to: whom we say to be, whose nodes ours are, and whether over TLS.

Secrets are named by the file that holds them: what is a setting can be asked for and printed.
"""

from dataclasses import dataclass

SESSION_TIMEOUT_MS = 10_000  # a server takes 2 to 20 of its ticks (2 s each, as shipped)


@dataclass(frozen=True)
class Access:
    """Files are paths: `credentials_file` holds one line "user:password" (the digest scheme), `truststore` the PEM of
    the authorities that servers' certificates are checked by, `keystore` the PEM of our own key and certificate.

    With `set_acl` nodes we make may be changed by us alone, and read by everyone, as Kafka's were.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    credentials_file: str | None = None
    set_acl: bool = False
    tls: bool = False
    truststore: str | None = None
    keystore: str | None = None
    verify_hostname: bool = True
