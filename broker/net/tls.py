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
from broker.security.tls_endpoint import HandshakeRefused, check_handshake
from coordination.listing import listed
from idgen.settings import InvalidSetting

LOOK_AGAIN_MS = 60_000
"""How often files that were refused are read again, once the present settings no longer work."""
PRESENT, SAME = "one with the present settings", "one with the same settings"
NAMED_AUTHORITIES = 5
"""How many new authorities a line of the log names."""


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
        self._refusal: tuple[TlsConfig, InvalidSetting] | None = None
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
            _check_handshakes(self._present, None)
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

    @property
    def refusal(self) -> InvalidSetting | None:
        """Why changed files were refused, so that new connections see older ones. None while the files fit."""
        return None if self._refusal is None else self._refusal[1]

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
            is_compared = self._has_begun and self._present_works()
            _check_handshakes(loaded, self._present if is_compared else None)
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
        before, refusal = self._present, self._refusal
        try:
            self._use(config)
        except InvalidSetting as error:
            if refusal is None or (refusal[0], str(refusal[1])) != (config, str(error)):
                self._log(f"listener {self.listener} keeps its certificate and authorities: {error}")
            self._refusal = config, error
        else:
            for change in _changes(before, self._present):
                self._log(f"listener {self.listener} {change}")
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


def _changes(before: _LoadedTls, now: _LoadedTls) -> list[str]:
    """Return the lines of the log, without the listener's name, about files that were read again and taken."""
    changes, own = [], now.material
    if own.chain != before.material.chain:
        changes.append(f"has a new certificate: {distinguished_name(own.own.subject)}, until {_date(own.expires_ms)}")
    if set(now.authorities) != set(before.authorities):
        names = [distinguished_name(authority.subject) for authority in now.authorities]
        changes.append(f"has new authorities: {listed(names, NAMED_AUTHORITIES, '; ')}")
    return changes or ["has read its files again: they have its present certificate and authorities"]


def _check_handshakes(new: _LoadedTls, present: _LoadedTls | None) -> None:
    """Raise InvalidSetting unless brokers with new settings can connect to each other, and to one with the present.

    The error names the authorities if the new ones refuse the present certificate, and otherwise the new certificate.
    New authorities that refuse the new certificate are named if the certificate is the present one.
    """
    if present is not None:
        for client, server in ((present, new), (new, present)):
            try:
                _shake_hands(client, server)
            except HandshakeRefused as error:
                refuses = client if error.by_client else server
                raise _not_fitting(new, present, PRESENT, error.cause, blames_trust=refuses is new) from None
    try:
        _shake_hands(new, new)
    except HandshakeRefused as error:
        has_new_trust = present is not None and new.material.chain == present.material.chain
        raise _not_fitting(new, new, SAME, error.cause, blames_trust=has_new_trust) from None


def _not_fitting(
    new: _LoadedTls, other: _LoadedTls, shown: str, error: ssl.SSLError, *, blames_trust: bool
) -> InvalidSetting:
    """Return the error of new settings with which a broker and another one cannot connect. `shown` is the other."""
    wanted = f"a broker with these settings and {shown} could not connect to each other: "
    reason = getattr(error, "verify_message", None)
    if reason is None:  # they have no version or cipher suite in common
        wanted += (error.reason or str(error)).lower().replace("_", " ")
        return InvalidSetting("ssl.keystore.location", _keystore_shown(new.config), wanted)
    truststore = new.config.ssl_truststore_location
    if blames_trust and new.authorities:
        name = "ssl.truststore.location" if truststore is not None else "ssl.truststore.certificates"
        wanted += f"these authorities refuse the certificate in {_keystore_shown(other.config)}: {reason}"
        return InvalidSetting(name, truststore or "(text)", wanted)
    wanted += f"the authorities in {_truststore_shown(other)} refuse its certificate: {reason}"
    return InvalidSetting("ssl.keystore.location", _keystore_shown(new.config), wanted)


def _shake_hands(client: _LoadedTls, server: _LoadedTls) -> None:
    """Connect in memory, without a check of names. Raise HandshakeRefused if one end refuses the other."""
    context = make_client_context(client.config, client.authorities, client.material, checks_name=False)
    check_handshake(context, server.server)


def _keystore_shown(config: TlsConfig) -> str:
    """Return the file of the certificates, or "(text)" if the setting has them itself."""
    return config.ssl_keystore_location or "(text)"


def _truststore_shown(loaded: _LoadedTls) -> str:
    """Return the file of the authorities, or where they are if the setting names none."""
    if not loaded.authorities:
        return "the trust store of this machine"
    return loaded.config.ssl_truststore_location or "ssl.truststore.certificates"


def _date(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")
