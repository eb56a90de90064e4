"""SHELL (OpenSSL, the wall clock): TLS on both sides of the port that leads to a registry's brokers.

librdkafka checks that the name by which it reaches a broker is in the certificate, and the port is at 127.0.0.1. So the
port shows a certificate of its own, and checks the broker's name itself. It decrypts the bytes of each connection in
the memory of the process that sends them, and encrypts them for the broker. The port's key never leaves that memory.
Its certificate is for 127.0.0.1 only, signs no other, and is trusted by one producer.
"""

import datetime
import ssl
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker.client.security.client_security import ClientSecurity
from broker.security.key_material import KeyMaterial
from broker.security.tls_context import show

HOST = "127.0.0.1"
_DAY = datetime.timedelta(days=1)
_YEARS = 20 * 365 * _DAY  # a producer may live long


class RelayTls:
    """The certificate of one port, and the TLS contexts of both sides."""

    def __init__(self, security: ClientSecurity) -> None:
        self._security = security
        material = _make(datetime.datetime.now(datetime.UTC))
        self.certificate_pem = material.chain_pem().decode()
        """The port's certificate, which librdkafka has to trust beside the authorities of the brokers."""
        self.port_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        show(self.port_context, material, None)

    def broker_context(self) -> ssl.SSLContext | None:
        """Return the TLS of a new connection to a broker."""
        return self._security.context()


def _make(now: datetime.datetime) -> KeyMaterial:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "port of a flakelog producer")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _YEARS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyMaterial(key, (certificate,))
