"""The listeners of a server process that ask by SASL who a client is, and the secret behind their answers."""

import secrets

from broker.log.storage.os_storage import OsStorage
from broker.security.sasl.exchange import PLAIN
from broker.security.sasl.listeners import SaslListeners
from broker.security.sasl.unknown_users import SECRET_BYTES
from flakelog.server.lifecycle import Report
from flakelog.settings import Settings

FILE = "sasl.secret"
_NONCE_BYTES = 20  # more than the 130 bits of Kafka's


def sasl_listeners(settings: Settings, storage: OsStorage, report: Report) -> SaslListeners:
    """Return the listeners that ask who a client is. Say where passwords go in plain text. Raise StorageError."""
    listeners = settings.listener_sasl
    for name, listener in listeners.items():
        if PLAIN in listener.mechanisms and not listener.is_over_tls:
            report(f"{name} takes passwords in plain text, by PLAIN: speak SASL_SSL there, or use a network you trust")
    secret = _secret(storage) if listeners else b""
    return SaslListeners(
        settings.properties, listeners, secret, lambda: secrets.token_hex(_NONCE_BYTES), report
    )


def _secret(storage: OsStorage) -> bytes:
    """Return the secret of this data directory, which is made at the first start with SASL."""
    if storage.exists(FILE):
        file = storage.open(FILE)
        secret = file.read(0, file.size)
        if len(secret) == SECRET_BYTES:
            return secret
    secret = secrets.token_bytes(SECRET_BYTES)
    storage.replace(FILE, secret)
    return secret
