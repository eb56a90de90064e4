"""SHELL (OpenSSL, files): the parts of a TLS context that listeners and clients share.

Python's `ssl` reads a key from files only. Here a key lies in memory, in a file without a name (`memfd_create`), so
that an inline key touches no disk (KIP-651). Where the system has no such files, it goes through a pipe.
"""

import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from broker.security.cipher_suites import TLS_1_2, TLS_1_3, Offer
from broker.security.key_material import KeyMaterial
from broker.security.tls_config import TlsConfig
from idgen.settings import InvalidSetting

_VERSIONS = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
_FORWARD_SECRET = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM"

Signature = tuple[tuple[int, int, int] | None, ...]
"""Changes when one of several files does."""


def read_file(location: str) -> bytes:
    with open(location, "rb") as file:
        return file.read()


def signature_of(files: Iterable[str]) -> Signature:
    """Return the time, size and inode of each file, None for one that is not there."""
    return tuple(_signature_of(file) for file in files)


def _signature_of(file: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def offer_suites(context: ssl.SSLContext, offer: Offer, given_suites: str) -> None:
    """Limit a context to these versions and suites. Raise InvalidSetting, which shows `given_suites`."""
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.minimum_version = min(_VERSIONS[version] for version in offer.versions)
    context.maximum_version = max(_VERSIONS[version] for version in offer.versions)
    try:
        context.set_ciphers(":".join(offer.suites) or _FORWARD_SECRET)
    except ssl.SSLError:
        raise InvalidSetting("ssl.cipher.suites", given_suites, "OpenSSL has none of them") from None


def trust(context: ssl.SSLContext, authorities: Iterable[x509.Certificate]) -> None:
    """Trust certificates that these authorities have signed."""
    encoded = [authority.public_bytes(Encoding.DER) for authority in authorities]
    context.load_verify_locations(cadata=b"".join(encoded))


def show(context: ssl.SSLContext, material: KeyMaterial, location: str | None) -> None:
    """Show these certificates to peers. Raise InvalidSetting, which names the file that has them."""
    try:
        with _in_memory(material.chain_pem()) as chain, _in_memory(material.key_pem()) as key:
            context.load_cert_chain(chain, key)
    except ssl.SSLError as error:
        wanted = f"OpenSSL refuses it: {error.reason or error}"
        raise InvalidSetting("ssl.keystore.location", location or "(text)", wanted) from None


def make_client_context(
    config: TlsConfig, authorities: Iterable[x509.Certificate], own: KeyMaterial | None, *, checks_name: bool
) -> ssl.SSLContext:
    """Make the context of a client. Without authorities it trusts those of the machine. Raise InvalidSetting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_name
    offer_suites(context, config.offer, config.ssl_cipher_suites)
    trusted = tuple(authorities)
    if trusted:
        trust(context, trusted)
    else:
        context.load_default_certs()
    if own is not None:
        show(context, own, config.ssl_keystore_location)
    return context


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Give a path at which OpenSSL reads `data` once."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("flakelog", os.MFD_CLOEXEC)
        try:
            os.write(fd, data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    reader, writer = os.pipe()

    def feed() -> None:
        with open(writer, "wb") as pipe:
            pipe.write(data)

    feeding = Thread(target=feed)
    feeding.start()
    try:
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
        feeding.join()
