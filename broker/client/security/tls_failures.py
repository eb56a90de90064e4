"""Why TLS failed at a client, in one line that says what would be right."""

import ssl

from broker.client.address import Address
from broker.client.errors import NotAuthenticated, Unreachable

_NO_TLS = (
    "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
)  # fmt: skip
_WANTS_CERTIFICATE = "TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"
_NO_TRUST = "TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"
_NO_VERSION = "TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"
_WRONG_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}  # no issuer, or a certificate that signs itself
_NOT_YET, _EXPIRED = 9, 10
PLAIN = "set security.protocol=PLAINTEXT, or SASL_PLAINTEXT where it asks for a login"


def tls_failure(address: Address, error: OSError) -> NotAuthenticated | Unreachable:
    """Return the client's error for one of `ssl` after the handshake, when TLS 1.3 tells of a refused certificate.

    It is NotAuthenticated for a failure that a retry meets again.
    """
    reason = _reason(address, error)
    if reason is not None:
        return NotAuthenticated(str(address), reason)
    return Unreachable(str(address), str(error) or type(error).__name__)


def handshake_failure(address: Address, error: OSError | ValueError) -> NotAuthenticated | Unreachable:
    """Return the client's error for one in the handshake; a connection that ends there may be of a plain port."""
    if not isinstance(error, OSError):
        return Unreachable(str(address), f"its name cannot be that of a host: {error}")
    if isinstance(error, TimeoutError):
        return Unreachable(str(address), f"no TLS handshake in time; if it does not speak TLS, {PLAIN}")
    is_end = isinstance(error, (ssl.SSLEOFError, ConnectionError)) and not isinstance(error, ConnectionRefusedError)
    if is_end:
        return Unreachable(str(address), f"it ended the TLS handshake; if it does not speak TLS, {PLAIN}")
    return tls_failure(address, error)


def _reason(address: Address, error: OSError) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(address, error.verify_code, error.verify_message)
    reason = getattr(error, "reason", None) or ""
    if reason in _NO_TLS:
        return f"it does not speak TLS: {PLAIN}"
    if reason in _WANTS_CERTIFICATE:
        return "it asks for a certificate of this client, or shares no cipher suite: set ssl.keystore.location"
    if reason in _NO_TRUST:
        return "it does not trust this client's certificate: ssl.keystore.location needs one of its authorities"
    if reason in _NO_VERSION:
        return "it has none of these versions of TLS: see ssl.enabled.protocols"
    return None


def _distrust(address: Address, code: int, message: str) -> str:
    if code in _WRONG_NAME:
        return (
            f"its certificate is not for the name {address.host}: reach it by a name in the certificate; an empty "
            "ssl.endpoint.identification.algorithm would check no name"
        )
    if code in _UNKNOWN_AUTHORITY:
        return (
            "its certificate is of an authority that this client does not know: give that authority's certificate as "
            "ssl.truststore.location"
        )
    if code == _EXPIRED:
        return "its certificate has expired: the broker needs a new one"
    if code == _NOT_YET:
        return "its certificate is not valid yet: check the clocks of both machines"
    return f"its certificate is refused: {message}"
