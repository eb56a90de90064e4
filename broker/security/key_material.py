"""Private keys, certificates and trusted authorities, read from PEM or PKCS#12 as Kafka's settings name them (KIP-651).

Nothing here reads a file: the caller hands in a function that does. A store is whole or refused, with the setting that
is wrong: a key that does not fit its certificate never replaces one that does.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import pkcs12

from broker.security.distinguished_name import distinguished_name
from broker.security.tls_config import JKS, PEM, PKCS12, TlsConfig
from idgen.settings import InvalidSetting

ReadFile = Callable[[str], bytes]

_OLD_JAVA_STORES = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")  # JKS and JCEKS
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HIDDEN = "(hidden)"


class KeyMaterial(NamedTuple):
    """A private key and the certificates that prove it."""

    key: PrivateKeyTypes
    chain: tuple[x509.Certificate, ...]
    """The certificates, the broker's own first."""

    @property
    def own(self) -> x509.Certificate:
        """The broker's own certificate."""
        return self.chain[0]

    @property
    def path(self) -> tuple[x509.Certificate, ...]:
        """The own certificate, that of its issuer, and so on: the part of the chain that a peer may need."""
        return _chain(self.own, self.chain[1:])

    @property
    def expires_ms(self) -> int:
        """When the first certificate of the path expires, in Unix ms."""
        return min(int(certificate.not_valid_after_utc.timestamp() * 1000) for certificate in self.path)

    @property
    def begins_ms(self) -> int:
        """When the own certificate becomes valid, in Unix ms."""
        return int(self.own.not_valid_before_utc.timestamp() * 1000)

    def why_refused(self, now_ms: int) -> str | None:
        """Return why peers refuse these certificates at `now_ms` (Unix) because of their dates, None if none does.

        A certificate outside the path, such as an old root, is no reason. A peer that trusts another certificate of the
        same name and key does not need an issuer of the path.
        """
        for certificate in self.path:
            why = why_not_valid(certificate, now_ms)
            if why is not None:
                return why if certificate is self.own else f"{why}, unless they trust another of its name"
        return None

    def key_pem(self) -> bytes:
        """Return the key as PEM without a password, for memory only."""
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(encoding, form, serialization.NoEncryption())

    def chain_pem(self) -> bytes:
        return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in self.chain)


def why_not_valid(certificate: x509.Certificate, now_ms: int) -> str | None:
    """Return that a certificate has expired or is not valid yet at `now_ms` (Unix), None if it is valid."""
    subject = distinguished_name(certificate.subject)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now_ms > ends.timestamp() * 1000:
        return f"the certificate {subject} expired on {ends:%Y-%m-%d}: put a new one into the same file"
    if now_ms < begins.timestamp() * 1000:
        return f"the certificate {subject} is not valid before {begins:%Y-%m-%d %H:%M} UTC: look at the clock"
    return None


def read_key(config: TlsConfig, read: ReadFile) -> KeyMaterial:
    """Return the listener's key and certificates. Raise InvalidSetting for a store that is missing or not whole."""
    location, kind = config.ssl_keystore_location, config.ssl_keystore_type.upper()
    if kind == PEM:
        return _key_of_pem(config, read)
    if location is None:
        raise InvalidSetting("ssl.keystore.location", "", "a listener of TLS needs a private key and a certificate")
    data = _read("ssl.keystore.location", location, read)
    store = _pkcs12("ssl.keystore", location, data, config.ssl_keystore_password)
    if store.key is None or store.cert is None:
        raise InvalidSetting("ssl.keystore.location", location, "has no private key with a certificate")
    others = [entry.certificate for entry in store.additional_certs]
    return _fitting("ssl.keystore.location", location, store.key, _chain(store.cert.certificate, others))


def read_authorities(config: TlsConfig, read: ReadFile) -> tuple[x509.Certificate, ...]:
    """Return the authorities that clients' certificates are checked against; none if none are set."""
    text, location = config.ssl_truststore_certificates, config.ssl_truststore_location
    if text is None and location is None:
        return ()
    if config.ssl_truststore_type.upper() == PEM:
        _refuse_store_password("ssl.truststore", config.ssl_truststore_password)
        name, data = _one_source("ssl.truststore", location, read, "ssl.truststore.certificates", text)
        return _certificates(name, data, location or "(text)")
    if location is None:
        raise InvalidSetting("ssl.truststore.certificates", "(text)", f"is PEM text: set ssl.truststore.type={PEM}")
    data = _read("ssl.truststore.location", location, read)
    store = _pkcs12("ssl.truststore", location, data, config.ssl_truststore_password)
    certificates = [entry.certificate for entry in store.additional_certs]
    if not certificates:
        raise InvalidSetting("ssl.truststore.location", location, "has no trusted certificate")
    return tuple(certificates)


def changed_names(before: KeyMaterial, after: KeyMaterial, config: TlsConfig) -> str | None:
    """Return why a new certificate may not replace the present one, because its names differ; None if it may."""
    names = distinguished_name(before.own.subject), distinguished_name(after.own.subject)
    if not config.ssl_allow_dn_changes and _canonical(names[0]) != _canonical(names[1]):
        return f"its distinguished name changes from {' to '.join(names)}, which needs ssl.allow.dn.changes=true"
    lost = _alternative_names(before.own) - _alternative_names(after.own)
    if lost and not config.ssl_allow_san_changes:
        shown = ", ".join(sorted(str(name.value) for name in lost))
        return f"it lacks the alternative names {shown}, which needs ssl.allow.san.changes=true"
    return None


def _canonical(name: str) -> str:
    """Return a distinguished name without what Java's X500Principal ignores: case, and more than one space."""
    return " ".join(name.lower().split())


def _alternative_names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return set()


def _key_of_pem(config: TlsConfig, read: ReadFile) -> KeyMaterial:
    _refuse_store_password("ssl.keystore", config.ssl_keystore_password)
    location, key_text = config.ssl_keystore_location, config.ssl_keystore_key
    name, data = _one_source("ssl.keystore", location, read, "ssl.keystore.key", key_text)
    shown = _HIDDEN if location is None else location
    match = _PRIVATE_KEY.search(data)
    if match is None:
        raise InvalidSetting(name, shown, "has no PEM private key (-----BEGIN PRIVATE KEY-----)")
    password = None if config.ssl_key_password is None else config.ssl_key_password.encode()
    if password is not None and b"ENCRYPTED" not in match[0]:
        password = None  # Kafka too accepts a password that the key does not need
    try:
        key = serialization.load_pem_private_key(match[0], password)
    except (ValueError, TypeError) as error:
        wanted = "needs its ssl.key.password" if password is None else "does not open with ssl.key.password"
        raise InvalidSetting(name, shown, f"the private key {wanted} ({_first_line(error)})") from None
    if location is not None:
        chain = _certificates(name, data, shown)
    else:
        chain_text = config.ssl_keystore_certificate_chain or ""
        chain = _certificates("ssl.keystore.certificate.chain", chain_text.encode())
    return _fitting(name, shown, key, chain)


def _one_source(
    store: str, location: str | None, read: ReadFile, text_name: str, text: str | None
) -> tuple[str, bytes]:
    """Return the setting that has the PEM text, and the text; it comes from a file or from the setting itself."""
    if location is not None and text is not None:
        raise InvalidSetting(text_name, _HIDDEN, f"is given beside {store}.location={location}: give one of both")
    if location is not None:
        return f"{store}.location", _read(f"{store}.location", location, read)
    if text is None:
        raise InvalidSetting(f"{store}.location", "", f"TLS needs it, or {text_name}")
    return text_name, text.encode()


def _refuse_store_password(store: str, password: str | None) -> None:
    if password is not None:
        raise InvalidSetting(f"{store}.password", _HIDDEN, "a PEM store has no password; ssl.key.password is the key's")


def _read(name: str, location: str, read: ReadFile) -> bytes:
    try:
        return read(location)
    except OSError as error:
        raise InvalidSetting(name, location, f"cannot be read: {error.strerror or error}") from None


def _pkcs12(store: str, location: str, data: bytes, password: str | None) -> pkcs12.PKCS12KeyAndCertificates:
    name = f"{store}.location"
    if data.startswith(_OLD_JAVA_STORES):
        stores = f"-srckeystore {location} -destkeystore {location}.p12 -deststoretype {PKCS12}"
        raise InvalidSetting(name, location, f"is a {JKS} store; convert it: keytool -importkeystore {stores}")
    if _CERTIFICATE.search(data) or _PRIVATE_KEY.search(data):
        raise InvalidSetting(name, location, f"is a PEM file: set {store}.type={PEM}")
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        wanted = f"is no {PKCS12} store, or {store}.password is not its password ({_first_line(error)})"
        raise InvalidSetting(name, location, wanted) from None


def _certificates(name: str, data: bytes, shown: str = "(text)") -> tuple[x509.Certificate, ...]:
    try:
        certificates = tuple(x509.load_pem_x509_certificate(pem) for pem in _CERTIFICATE.findall(data))
    except ValueError as error:
        raise InvalidSetting(name, shown, f"has a damaged certificate ({_first_line(error)})") from None
    if not certificates:
        raise InvalidSetting(name, shown, "has no certificate (-----BEGIN CERTIFICATE-----)")
    return certificates


def _chain(own: x509.Certificate, others: Sequence[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """Return the certificates from the broker's own up, since a PKCS#12 store keeps them in any order.

    Of several that signed the one below, such as an issuer and its renewal with the same key, it takes the one that
    expires last.
    """
    chain = [own]
    while chain[-1].issuer != chain[-1].subject:
        issuers = [other for other in others if other not in chain and _is_signed_by(chain[-1], other)]
        if not issuers:
            break
        chain.append(max(issuers, key=lambda issuer: issuer.not_valid_after_utc))
    return tuple(chain)


def _is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return True if the issuer has the name that the certificate says, and the key that signed it."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):  # another name, or another kind of key
        return False
    return True


def _fitting(
    name: str, shown: str, key: PrivateKeyTypes, chain: tuple[x509.Certificate, ...]
) -> KeyMaterial:
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        subject = distinguished_name(chain[0].subject)
        raise InvalidSetting(name, shown, f"the private key does not belong to the first certificate, {subject}")
    return KeyMaterial(key, chain)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
