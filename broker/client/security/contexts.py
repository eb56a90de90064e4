"""SHELL (OpenSSL, files): the TLS context of a client, and its keys for other libraries."""

import ssl
from typing import NamedTuple

from cryptography import x509

from broker.client.security.settings import SecuritySettings
from broker.security.key_material import KeyMaterial, read_authorities, read_key
from broker.security.tls_context import make_client_context, read_file


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
    authorities, own = read_material(settings)
    return make_client_context(settings.tls, authorities, own, checks_name=settings.checks_name)
