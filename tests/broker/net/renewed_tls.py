"""A listener whose certificates are renewed in their file while it serves."""

import time

from broker.net.tls import ListenerTls
from broker.security.tls_config import TlsConfig
from tests.broker.net.tls_pair import AUTHORITY

DAY_MS = 86_400_000


class Renewed:
    """A listener whose certificates are in a file. `now_ms` is the time, `days` from that of OpenSSL's handshakes."""

    def __init__(self, file, serves_brokers=False, days=0, trust_file=None, **settings):
        self.file = file
        self.now_ms = int(time.time() * 1000) + days * DAY_MS
        self.log = []
        self.put(begins_days=-9)
        self.config = config_of(file, trust_file=trust_file, **settings)
        self.tls = ListenerTls(
            "SSL", self.config, self.log.append, "use TLS", wall_ms=lambda: self.now_ms, serves_brokers=serves_brokers
        )
        self.tls.begin()

    def put(self, authority=AUTHORITY, **days):
        """Put a new certificate into the file."""
        authority.issue("broker", **days).write_pem(self.file)

    def renew(self, authority=AUTHORITY, **days):
        """Put a new certificate into the file, and have the listener refresh it. Return the lines of the log."""
        self.put(authority, **days)
        return self.refresh()

    def refresh(self):
        self.log.clear()
        self.tls.refresh()
        return list(self.log)


def config_of(file, *authorities, trust_file=None, **settings):
    """Return the settings of a listener that trusts these authorities, or that of the tests, or those in a file."""
    trusted = "".join(authority.pem() for authority in authorities or (AUTHORITY,))
    return TlsConfig(
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(file),
        ssl_truststore_type="PEM",
        ssl_truststore_location=None if trust_file is None else str(trust_file),
        ssl_truststore_certificates=trusted if trust_file is None else None,
        **settings,
    )
