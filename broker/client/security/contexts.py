"""SHELL (OpenSSL, files): the TLS context of a client, and its keys for other libraries."""

import ssl
from typing import NamedTuple

from cryptography import x509

from broker.client.security.settings import SecuritySettings
from broker.security.key_material import KeyMaterial, read_authorities, read_key
from broker.security.tls_context import offer_suites, read_file, show, trust


class TlsMaterial(NamedTuple):
    """The authorities that a client trusts, none for those of the machine, and its own key and certificates."""

    authorities: tuple[x509.Certificate, ...]
    own: KeyMaterial | None


def read_material(settings: SecuritySettings) -> TlsMaterial:
    """Read keys and certificates. Raise InvalidSetting."""
    own = read_key(settings.tls, read_file) if settings.has_own_certificate else None
    return TlsMaterial(read_authorities(settings.tls, read_file), own)


def make_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Make a context. Raise InvalidSetting."""
    material = read_material(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_name
    offer_suites(context, settings.tls.offer, settings.tls.ssl_cipher_suites)
    if material.authorities:
        trust(context, material.authorities)
    else:
        context.load_default_certs()
    if material.own is not None:
        show(context, material.own, settings.tls.ssl_keystore_location)
    return context
