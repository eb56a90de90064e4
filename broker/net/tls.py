"""SHELL (OpenSSL, files): the TLS of a listener: its context, its key and its certificates."""

import os
import ssl
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

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

LOOK_AGAIN_MS = 60_000
"""How often files that were refused are read again, once the present settings no longer work."""
PRESENT, SAME = "one with the present settings", "one with the same settings"


class NotValidNow(InvalidSetting):
    """A certificate that has expired, or that is valid only from `begins_ms` (Unix) on."""

    begins_ms: float = inf


class ListenerTls:
    """The TLS of one listener, or of another port: "http" or "ids".

    `log` takes the lines of a certificate that cannot be taken. `hint` says how a client gets TLS there. `wall_ms`
    returns the time, in Unix ms.

    A new certificate that has expired, or is not valid yet, is taken and named, as in Kafka. At a listener where
    brokers reach each other (`serves_brokers`) new settings have to shake hands with the present ones, each as the
    client of the other, as in Kafka (SslFactory's `keystoreVerifiableUsingTruststore`), and with themselves, as at a
    start. Names are not checked. Present settings that no longer shake hands with themselves, because a certificate
    has expired, are not asked; Kafka refuses all new ones then. The connections of this broker to others take
    `client_context`, so that they follow the same decision.

    `use` before `begin` takes settings that were altered before this start. They are not compared with those of the
    file, as in Kafka, which makes its SslFactory after it has read them.
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
        self._serves_brokers = serves_brokers
        self._has_begun = False
        self._awaited = config
        """The settings whose certificate was refused because it is not valid before `_valid_from_ms`."""
        self._valid_from_ms = inf
        self._refusal: tuple[TlsConfig, str] | None = None
        """The settings whose files `refresh` refused and why, None if it took them. `_looked_ms` is when."""
        self._looked_ms = 0
        self._signature = self._files_now(config)
        self._present = _load(config, serves_brokers=serves_brokers)

    def begin(self) -> None:
        """Begin to serve with the present settings, to which new ones have to fit from now on.

        Log which certificate clients refuse because of its dates. Raise InvalidSetting if brokers could not connect to
        each other.
        """
        self._has_begun = True
        if self._serves_brokers:
            _check_handshakes(self._present, self._present, SAME)
        self.name_invalid()

    @property
    def expires_ms(self) -> int:
        """When the certificates that new connections see expire, in Unix ms."""
        return self._present.material.expires_ms

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS of a new connection of this broker to another. Only a listener of brokers has it."""
        assert self._present.client is not None, f"{self.listener} is not the listener of brokers"
        return self._present.client

    @property
    def awaits_certificate(self) -> bool:
        """Return True if other settings were refused because their certificate is not valid yet."""
        return self._valid_from_ms != inf

    def name_invalid(self) -> None:
        """Log which certificate clients refuse now because of its dates, if there is one."""
        why = self._present.material.why_refused(self._wall_ms())
        if why is not None:
            self._log(f"clients will refuse {self.listener}: {why} ({_keystore_shown(self.config)})")

    def wrap(self, sock: Any) -> TlsSocket:
        """Return an accepted socket that speaks TLS; its handshake has to follow. It never blocks from now on."""
        return TlsSocket(sock, self._present.server)

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
        self._loaded(config)

    def use(self, config: TlsConfig) -> None:
        """Take other settings, or the same files again. Raise InvalidSetting, and keep the present ones.

        Settings whose certificate is not valid yet are refused, and taken by `refresh` once it is, unless others were
        given meanwhile.
        """
        self._valid_from_ms = inf
        self._use(config)
        if self._has_begun:
            self.name_invalid()

    def _use(self, config: TlsConfig) -> None:
        signature = self._files_now(config)
        try:
            self._present = self._loaded(config)
        except NotValidNow as error:
            self._awaited, self._valid_from_ms = config, error.begins_ms
            raise
        self.config, self._signature, self._refusal = config, signature, None
        if config == self._awaited:
            self._valid_from_ms = inf

    def _loaded(self, config: TlsConfig) -> "_LoadedTls":
        """Read the files of settings that are to replace the present ones. Raise InvalidSetting if they may not."""
        loaded = _load(config, serves_brokers=self._serves_brokers)
        wrong = changed_names(self._present.material, loaded.material, config) if self._has_begun else None
        if wrong is not None:
            raise InvalidSetting("ssl.keystore.location", _keystore_shown(config), wrong)
        if self._serves_brokers:
            self._check_dates(loaded)
            if self._has_begun and self._present_works():
                _check_handshakes(loaded, self._present, PRESENT)
            _check_handshakes(loaded, loaded, SAME)
        return loaded

    def _check_dates(self, loaded: "_LoadedTls") -> None:
        """Raise NotValidNow if the certificate has expired or is not valid yet."""
        now_ms = self._wall_ms()
        why = why_not_valid(loaded.material.own, now_ms)
        if why is None:
            return
        wanted = f"other brokers would refuse it: {why}"
        error = NotValidNow("ssl.keystore.location", _keystore_shown(loaded.config), wanted)
        if now_ms < loaded.material.begins_ms:
            error.begins_ms = loaded.material.begins_ms
        raise error

    def _present_works(self) -> bool:
        """Return True if brokers with the present settings can still connect to each other."""
        if why_not_valid(self._present.material.own, self._wall_ms()) is not None:
            return False
        try:
            _shake_hands(self._present, self._present)
        except ssl.SSLError:
            return False
        return True

    def refresh(self) -> None:
        """Take the files again if they have changed, or once they are valid. Log once a file that cannot be taken.

        Files that brokers refused are read again once the present settings no longer work.
        """
        config, signature = self.config, self._files_now(self.config)
        if self._wall_ms() >= self._valid_from_ms:
            config, self._valid_from_ms = self._awaited, inf
        elif signature != self._signature:
            self._refusal = None
        elif self._refusal is not None and self._must_look_again():
            config = self._refusal[0]
        else:
            return
        self._signature, self._looked_ms = signature, self._wall_ms()
        try:
            self._use(config)
        except InvalidSetting as error:
            if self._refusal != (config, str(error)):
                self._log(f"listener {self.listener} keeps its certificate: {error}")
            self._refusal = config, str(error)
        else:
            subject = distinguished_name(self._present.material.own.subject)
            self._log(f"listener {self.listener} has a new certificate: {subject}, until {_date(self.expires_ms)}")
            self.name_invalid()

    def _must_look_again(self) -> bool:
        """Return True if files that brokers refused may be taken now, because the present settings no longer work."""
        now_ms = self._wall_ms()
        if not self._serves_brokers or 0 <= now_ms - self._looked_ms < LOOK_AGAIN_MS:
            return False
        self._looked_ms = now_ms
        return not self._present_works()

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


class _LoadedTls(NamedTuple):
    """TLS settings, what their files had, and the contexts of both ends."""

    config: TlsConfig
    material: KeyMaterial
    authorities: tuple[x509.Certificate, ...]
    server: ssl.SSLContext
    client: ssl.SSLContext | None
    """How a broker with these settings connects to others; None at a listener that brokers do not use."""


def _load(config: TlsConfig, *, serves_brokers: bool) -> _LoadedTls:
    """Read the files of TLS settings. Raise InvalidSetting."""
    material = read_key(config, read_file)
    authorities = read_authorities(config, read_file)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    offer_suites(server, config.offer, config.ssl_cipher_suites)
    if config.client_auth != NONE:
        if not authorities:
            wanted = "needs the authorities of clients: set ssl.truststore.location"
            raise InvalidSetting("ssl.client.auth", config.ssl_client_auth, wanted)
        server.verify_mode = ssl.CERT_REQUIRED if config.client_auth == REQUIRED else ssl.CERT_OPTIONAL
        trust(server, authorities)
    show(server, material, config.ssl_keystore_location)
    client = None
    if serves_brokers:
        client = make_client_context(config, authorities, material, checks_name=config.checks_name)
    return _LoadedTls(config, material, authorities, server, client)


def _check_handshakes(new: _LoadedTls, other: _LoadedTls, shown: str) -> None:
    """Raise InvalidSetting unless a broker with new settings and another one can connect to each other.

    `shown` is the other one in the error.
    """
    try:
        _shake_hands(other, new)
        if other is not new:
            _shake_hands(new, other)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or (error.reason or str(error)).lower().replace("_", " ")
        wanted = f"a broker with these settings and {shown} could not connect to each other: {reason}"
        raise InvalidSetting("ssl.keystore.location", _keystore_shown(new.config), wanted) from None


def _shake_hands(client: _LoadedTls, server: _LoadedTls) -> None:
    """Connect in memory, without a check of names. Raise ssl.SSLError of the end that refuses the other."""
    context = make_client_context(client.config, client.authorities, client.material, checks_name=False)
    check_handshake(context, server.server)


def _keystore_shown(config: TlsConfig) -> str:
    """Return the file of the certificates, or "(text)" if the setting has them itself."""
    return config.ssl_keystore_location or "(text)"


def _date(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")
