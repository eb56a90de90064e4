"""SHELL (OpenSSL, files): the TLS of a listener: its context, its key and its certificates."""

import os
import ssl
from collections.abc import Callable
from typing import Any

from cryptography import x509

from broker.net.tls_socket import TlsSocket
from broker.security.distinguished_name import distinguished_name
from broker.security.key_material import KeyMaterial, changed_names, read_authorities, read_key
from broker.security.principal_rules import user_of
from broker.security.tls_config import NONE, REQUIRED, TlsConfig
from broker.security.tls_context import Signature, offer_suites, read_file, show, signature_of, trust
from idgen.settings import InvalidSetting


class ListenerTls:
    """The TLS of one listener, or of another port: "http" or "ids".

    `log` takes the lines of a certificate that cannot be taken. `hint` says how a client gets TLS there.
    """

    def __init__(self, listener: str, config: TlsConfig, log: Callable[[str], None], hint: str) -> None:
        self.listener = listener
        self.hint = hint
        self.config = config
        self._log = log
        self._signature = self._files_now(config)
        self._material, self._context = _build(config)

    @property
    def expires_ms(self) -> int:
        """When the certificates that new connections see expire, in Unix ms."""
        return self._material.expires_ms

    def why_not_valid(self, now_ms: int) -> str | None:
        """Return which certificate clients will refuse at `now_ms` (Unix), and why; None if none."""
        return self._material.why_not_valid(now_ms)

    def wrap(self, sock: Any) -> TlsSocket:
        """Return an accepted socket that speaks TLS; its handshake has to follow. It never blocks from now on."""
        return TlsSocket(sock, self._context)

    def user_of(self, sock: TlsSocket) -> str | None:
        """Return the user of the peer's certificate, None if it showed none. Raise ssl.SSLError if it stands for none.
        """
        shown = sock.certificate()
        if shown is None:
            return None
        try:
            subject = distinguished_name(x509.load_der_x509_certificate(shown).subject)
        except (ValueError, x509.InvalidVersion) as error:  # OpenSSL reads less of a certificate
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, f"its certificate cannot be read: {error}") from error
        user = user_of(subject, self.config.rules)
        if user is None:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, f"no rule of ssl.principal.mapping.rules fits {subject}")
        return user

    def check(self, config: TlsConfig) -> None:
        """Raise InvalidSetting unless the listener can use these settings."""
        self._built(config)

    def use(self, config: TlsConfig) -> None:
        """Take other settings, or the same files again. Raise InvalidSetting, and keep the present ones."""
        signature = self._files_now(config)
        self._material, self._context = self._built(config)
        self.config, self._signature = config, signature

    def _built(self, config: TlsConfig) -> tuple[KeyMaterial, ssl.SSLContext]:
        material, context = _build(config)
        wrong = changed_names(self._material, material, config)
        if wrong is not None:
            raise InvalidSetting("ssl.keystore.location", config.ssl_keystore_location or "(text)", wrong)
        return material, context

    def refresh(self) -> None:
        """Take the files again if they have changed. A file that cannot be taken is logged once."""
        signature = self._files_now(self.config)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self.use(self.config)
        except InvalidSetting as error:
            self._log(f"listener {self.listener} keeps its certificate: {error}")
        else:
            subject = distinguished_name(self._material.own.subject)
            self._log(f"listener {self.listener} has a new certificate: {subject}, until {_date(self.expires_ms)}")

    @staticmethod
    def _files_now(config: TlsConfig) -> Signature:
        return signature_of(config.files)


def exposed_files(config: TlsConfig) -> list[str]:
    """Return the files of private keys that other users of this machine can read."""
    location = config.ssl_keystore_location
    return [location] if location is not None and is_exposed(location) else []


def is_exposed(file: str) -> bool:
    """Return True if other users of this machine can read a file."""
    try:
        return bool(os.stat(file).st_mode & 0o044)
    except OSError:
        return False


def _build(config: TlsConfig) -> tuple[KeyMaterial, ssl.SSLContext]:
    """Make a context. Raise InvalidSetting."""
    material = read_key(config, read_file)
    authorities = read_authorities(config, read_file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    offer_suites(context, config.offer, config.ssl_cipher_suites)
    if config.client_auth != NONE:
        if not authorities:
            wanted = "needs the authorities of clients: set ssl.truststore.location"
            raise InvalidSetting("ssl.client.auth", config.ssl_client_auth, wanted)
        context.verify_mode = ssl.CERT_REQUIRED if config.client_auth == REQUIRED else ssl.CERT_OPTIONAL
        trust(context, authorities)
    show(context, material, config.ssl_keystore_location)
    return material, context


def _date(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")
