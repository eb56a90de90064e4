"""How a ZooKeeper ensemble is spoken to: whom we say to be, whose nodes ours are, and whether over TLS.

Secrets are named by the file that holds them: what is a setting can be asked for and printed.
"""

from dataclasses import dataclass

SESSION_TIMEOUT_MS = 10_000  # a server takes 2 to 20 of its ticks (2 s each, as shipped)


@dataclass(frozen=True)
class Access:
    """How to speak to an ensemble; by default as anybody, in the clear. ValueError for what means nothing together.

    Files are paths: `credentials_file` holds one line "user:password" (the digest scheme), `truststore` the PEM of
    the authorities that servers' certificates are checked by, besides the system's, `keystore` the PEM of our own key
    and certificate. With `set_acl` nodes we make may be changed by us alone, and read by everyone, as Kafka's were.
    With `tls` the ensemble's hosts are those of its secureClientPort.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    credentials_file: str | None = None
    set_acl: bool = False
    tls: bool = False
    truststore: str | None = None
    keystore: str | None = None
    verify_hostname: bool = True

    def __post_init__(self) -> None:
        if self.set_acl and not self.credentials_file:
            raise ValueError("set_acl needs a credentials_file: nobody else could be let in by it")
        if (self.truststore or self.keystore) and not self.tls:
            raise ValueError("a truststore or a keystore needs tls=True, else nothing would be encrypted")
