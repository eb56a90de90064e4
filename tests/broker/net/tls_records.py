"""Records of a TLS 1.3 client that Python's own cannot write: KeyUpdate and padding (RFC 8446, sections 4.6.3 and 5.4).

The traffic secret comes from the key log of a client whose handshake is over, and which has sent nothing since.
"""

import ssl
import struct
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tests.broker.net.tls_pair import client_context

HANDSHAKE, APPLICATION_DATA = 22, 23
KEY_UPDATE = 24


def logged_context():
    """Return the context of a client whose secrets ClientRecords can read, and the file that has them."""
    directory = tempfile.TemporaryDirectory()
    context = client_context()
    context.keylog_filename = Path(directory.name) / "secrets"
    return context, directory


class ClientRecords:
    """The records of a client (tests.broker.net.tls_pair.TlsClient) after its handshake."""

    def __init__(self, client, directory):
        assert client.tls.cipher()[0] == "TLS_AES_256_GCM_SHA384" and client.tls.version() == "TLSv1.3"
        lines = (Path(directory.name) / "secrets").read_text().splitlines()
        [secret] = [line.split()[2] for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
        directory.cleanup()
        self._use(bytes.fromhex(secret))

    def data(self, plain, padding=0):
        """Return a record of plain bytes, and of zeros that mean nothing."""
        return self._record(plain, APPLICATION_DATA, padding)

    def key_update(self, is_requested=False):
        """Return a KeyUpdate, and use the next keys. The peer has to update its own keys too if that is requested."""
        record = self._record(struct.pack(">BBHB", KEY_UPDATE, 0, 1, is_requested), HANDSHAKE)
        self._use(expand(self._secret, b"traffic upd", 48))
        return record

    def key_updates(self, size, is_requested=False):
        """Return at least so many bytes of KeyUpdates."""
        records = bytearray()
        while len(records) < size:
            records += self.key_update(is_requested)
        return bytes(records)

    def _use(self, secret):
        self._secret, self._sequence = secret, 0
        self._key, self._iv = AESGCM(expand(secret, b"key", 32)), int.from_bytes(expand(secret, b"iv", 12))

    def _record(self, content, content_type, padding=0):
        inner = content + bytes([content_type]) + bytes(padding)
        header = struct.pack(">BHH", APPLICATION_DATA, ssl.TLSVersion.TLSv1_2, len(inner) + 16)
        nonce = (self._iv ^ self._sequence).to_bytes(12)
        self._sequence += 1
        return header + self._key.encrypt(nonce, inner, header)


def expand(secret, label, size):
    """HKDF-Expand-Label without a context (RFC 8446, section 7.1)."""
    label = b"tls13 " + label
    return HKDFExpand(SHA384(), size, struct.pack(">HB", size, len(label)) + label + b"\0").derive(secret)
