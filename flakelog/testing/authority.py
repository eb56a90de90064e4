"""A throw-away certificate authority, for tests of TLS. Its keys are worth nothing: it makes them as it begins."""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

ECDSA, RSA = "ecdsa", "rsa"
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_DAY = datetime.timedelta(days=1)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""Clients that check strictly by RFC 5280 demand it of an authority. Python does so from 3.13 on."""


class Issued:
    """A private key and its certificate, which the authority `issuer` has signed."""

    def __init__(self, key: PrivateKey, certificate: x509.Certificate, issuer: x509.Certificate) -> None:
        self.key = key
        self.certificate = certificate
        self.issuer = issuer

    def key_pem(self, password: str | None = None) -> str:
        """Return the key as PEM (PKCS#8), encrypted if there is a password."""
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(encoding, form, encryption).decode()

    def chain_pem(self) -> str:
        """Return the certificate and its authority's as PEM."""
        return pem_of(self.certificate) + pem_of(self.issuer)

    def write_pem(self, file: Path, password: str | None = None) -> Path:
        """Write key and certificates as one file that only its owner reads, as `ssl.keystore.type=PEM` wants it."""
        file.touch(mode=0o600)
        file.write_text(self.key_pem(password) + self.chain_pem())
        return file

    def write_pkcs12(self, file: Path, password: str) -> Path:
        """Write key and certificates as a PKCS#12 file that only its owner reads."""
        file.touch(mode=0o600)
        encryption = serialization.BestAvailableEncryption(password.encode())
        data = pkcs12.serialize_key_and_certificates(
            b"flakelog", self.key, self.certificate, [self.issuer], encryption
        )
        file.write_bytes(data)
        return file


class Authority:
    """An authority that signs certificates for servers (`hosts`) and clients (`name`)."""

    def __init__(self, name: str = "Throw-away authority") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def pem(self) -> str:
        """Return the authority's certificate as PEM."""
        return pem_of(self.certificate)

    def write_pem(self, file: Path) -> Path:
        """Write the authority's certificate, as clients and `ssl.truststore.type=PEM` want it."""
        file.write_text(self.pem())
        return file

    def issue(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        kind: str = ECDSA,
        begins_days: int = -1,
        ends_days: int = 30,
    ) -> Issued:
        """Make a key, and sign a certificate for CN=`name`, valid between two days from now."""
        key: PrivateKey
        if kind == RSA:
            key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        else:
            key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins_days * _DAY)
            .not_valid_after(now + ends_days * _DAY)
            .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return Issued(key, certificate, self.certificate)


def pem_of(certificate: x509.Certificate) -> str:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
