"""SHELL (OpenSSL, files): the TLS of a listener: its context, its key and its certificates."""

import os
import ssl
from collections.abc import Callable
from math import inf
from typing import Any

from cryptography import x509

from broker.net.tls_socket import TlsSocket
from broker.security.distinguished_name import distinguished_name
from broker.security.key_material import KeyMaterial, changed_names, read_authorities, read_key, why_not_valid
from broker.security.principal_rules import user_of
from broker.security.tls_config import NONE, REQUIRED, TlsConfig
from broker.security.tls_context import (
    Signature,
    make_client_context,
    offer_suites,
    read_file,
    show,
    signature_of,
    trust,
)
from broker.security.tls_endpoint import check_handshake
from idgen.settings import InvalidSetting


class NotValidNow(InvalidSetting):
    """A certificate that has expired, or that is valid only from `begins_ms` (Unix) on."""

    begins_ms: float = inf


class ListenerTls:
    """The TLS of one listener, or of another port: "http" or "ids".

    `log` takes the lines of a certificate that cannot be taken. `hint` says how a client gets TLS there. `wall_ms`
    returns the time, in Unix ms.

    A new certificate that has expired, or is not valid yet, is taken and named, as in Kafka. At a listener where
    brokers reach each other (`serves_brokers`) the settings have to work for both ends, as in Kafka (SslFactory's
    `keystoreVerifiableUsingTruststore`): at the start with themselves, and new ones with the present ones, each as the
    client of the other. Names are not checked. If the present certificate is not valid, new settings have to work
    with themselves only, because other brokers refuse the present ones. Kafka refuses new ones then.
    """

    def __init__(
        self,
        listener: str,
        config: TlsConfig,
        log: Callable[[str], None],
        hint: str,
        *,
        wall_ms: Callable[[], int],
        serves_brokers: bool = False,
    ) -> None:
        self.listener = listener
        self.hint = hint
        self.config = config
        self._log = log
        self._wall_ms = wall_ms
        self._awaited = config
        """The settings whose certificate was refused because it is not valid before `_valid_from_ms`."""
        self._valid_from_ms = inf
        self._signature = self._files_now(config)
        self._material, self._context = _build(config)
        self._as_client = None if not serves_brokers else _client_context(config, self._material)
        """How a broker with these settings connects to others; None if none does."""
        if self._as_client is not None:
            _check_handshake(config, self._as_client, self._context, "one with the same settings")

    @property
    def expires_ms(self) -> int:
        """When the certificates that new connections see expire, in Unix ms."""
        return self._material.expires_ms

    @property
    def awaits_certificate(self) -> bool:
        """Return True if other settings were refused because their certificate is not valid yet."""
        return self._valid_from_ms != inf

    def name_invalid(self) -> None:
        """Log which certificate clients refuse now because of its dates, if there is one."""
        why = self._material.why_refused(self._wall_ms())
        if why is not None:
            self._log(f"clients will refuse {self.listener}: {why} ({_keystore_shown(self.config)})")

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
        """Take other settings, or the same files again. Raise InvalidSetting, and keep the present ones.

        Settings whose certificate is not valid yet are refused, and taken by `refresh` once it is, unless others were
        given meanwhile.
        """
        self._valid_from_ms = inf
        self._use(config)
        self.name_invalid()

    def _use(self, config: TlsConfig) -> None:
        signature = self._files_now(config)
        try:
            self._material, self._context, self._as_client = self._built(config)
        except NotValidNow as error:
            self._awaited, self._valid_from_ms = config, error.begins_ms
            raise
        self.config, self._signature = config, signature
        if config == self._awaited:
            self._valid_from_ms = inf

    def _built(self, config: TlsConfig) -> tuple[KeyMaterial, ssl.SSLContext, ssl.SSLContext | None]:
        material, context = _build(config)
        wrong = changed_names(self._material, material, config)
        if wrong is not None:
            raise InvalidSetting("ssl.keystore.location", _keystore_shown(config), wrong)
        if self._as_client is None:
            return material, context, None
        why = why_not_valid(material.own, self._wall_ms())
        if why is not None:
            wanted = f"other brokers would refuse it: {why}"
            error = NotValidNow("ssl.keystore.location", _keystore_shown(config), wanted)
            if self._wall_ms() < material.begins_ms:
                error.begins_ms = material.begins_ms
            raise error
        as_client = _client_context(config, material)
        if why_not_valid(self._material.own, self._wall_ms()) is None:
            _check_handshake(config, self._as_client, context, "one with the present settings")
            _check_handshake(config, as_client, self._context, "one with the present settings")
        else:
            _check_handshake(config, as_client, context, "one with the same settings")
        return material, context, as_client

    def refresh(self) -> None:
        """Take the files again if they have changed, or once they are valid. Log once a file that cannot be taken."""
        config, signature = self.config, self._files_now(self.config)
        if self._wall_ms() >= self._valid_from_ms:
            config, self._valid_from_ms = self._awaited, inf
        elif signature == self._signature:
            return
        self._signature = signature
        try:
            self._use(config)
        except InvalidSetting as error:
            self._log(f"listener {self.listener} keeps its certificate: {error}")
        else:
            subject = distinguished_name(self._material.own.subject)
            self._log(f"listener {self.listener} has a new certificate: {subject}, until {_date(self.expires_ms)}")
            self.name_invalid()

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


def _client_context(config: TlsConfig, material: KeyMaterial) -> ssl.SSLContext:
    """Make the context with which a broker connects to others. Raise InvalidSetting."""
    return make_client_context(config, read_authorities(config, read_file), material, checks_name=False)


def _check_handshake(config: TlsConfig, client: ssl.SSLContext, server: ssl.SSLContext, other: str) -> None:
    """Raise InvalidSetting unless a broker with these settings and another one can shake hands."""
    try:
        check_handshake(client, server)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or (error.reason or str(error)).lower().replace("_", " ")
        wanted = f"a broker with these settings and {other} could not connect to each other: {reason}"
        raise InvalidSetting("ssl.keystore.location", _keystore_shown(config), wanted) from None


def _keystore_shown(config: TlsConfig) -> str:
    """Return the file of the certificates, or "(text)" if the setting has them itself."""
    return config.ssl_keystore_location or "(text)"


def _date(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")
