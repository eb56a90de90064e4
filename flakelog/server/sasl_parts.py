"""The listeners of a server process that ask by SASL who a client is."""

import secrets
from pathlib import Path
from typing import Any

from broker.security.sasl.exchange import PLAIN
from broker.security.sasl.key_sets import KeySets
from broker.security.sasl.listeners import SaslListeners
from flakelog.server.lifecycle import Lifecycle, Report, Stage
from flakelog.server.sasl_secret import secret_of
from flakelog.settings import Settings

_NONCE_BYTES = 20  # more than the 130 bits of Kafka's


def sasl_listeners(
    settings: Settings, directory: Path, reactor: Any, report: Report, lifecycle: Lifecycle
) -> SaslListeners:
    """Return the listeners that ask who a client is. Say where passwords go in plain text. Raise OSError.

    `directory` has the secret behind the salts of unknown users.
    """
    listeners = settings.listener_sasl
    for name, listener in listeners.items():
        if PLAIN in listener.mechanisms and not listener.is_over_tls:
            report(f"{name} takes passwords in plain text, by PLAIN: speak SASL_SSL there, or use a network you trust")
    secret = secret_of(directory) if listeners else b""
    key_sets = KeySets()
    made = SaslListeners(
        settings.properties, listeners, secret, lambda: secrets.token_hex(_NONCE_BYTES), report, key_sets
    )
    if listeners:
        from broker.net.key_fetcher import KeyFetcher

        fetcher = KeyFetcher(reactor, key_sets, report)
        fetcher.serve()
        lifecycle.take(Stage.BROKER, fetcher.stop)
    return made
