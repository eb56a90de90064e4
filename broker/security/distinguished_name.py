"""A certificate's subject as Kafka writes it: RFC 2253, as `X500Principal.getName` of Java does.

Java names nine kinds of attributes. Any other is written by its number, with its value as it is in the certificate.
"""

from cryptography import x509
from cryptography.x509.oid import NameOID

_PRINTABLE, _IA5, _UTF8 = 0x13, 0x16, 0x0C  # ASN.1's kinds of text
_KINDS = {NameOID.EMAIL_ADDRESS: _IA5, NameOID.SERIAL_NUMBER: _PRINTABLE, NameOID.DN_QUALIFIER: _PRINTABLE}


def distinguished_name(subject: x509.Name) -> str:
    """Return a subject as text, the most specific part first: "CN=ada,OU=Flights,O=Example"."""
    return ",".join("+".join(_text_of(attribute) for attribute in part) for part in reversed(subject.rdns))


def _text_of(attribute: x509.NameAttribute[str | bytes]) -> str:
    text = attribute.rfc4514_string()
    if not text[0].isdigit():
        return text
    value = attribute.value.encode() if isinstance(attribute.value, str) else attribute.value
    length = len(value).to_bytes(1 if len(value) < 0x100 else 2)
    prefix = b"" if len(value) < 0x80 else bytes([0x80 | len(length)])
    kind = bytes([_KINDS.get(attribute.oid, _UTF8)])
    return f"{attribute.oid.dotted_string}=#{(kind + prefix + length + value).hex()}"
