"""TLS over any transport, without I/O: bytes of the network go in and out, and plain bytes too.

    stream = TlsStream(context, "broker.example")
    transport.write(stream.take_outgoing())            the handshake's first bytes
    plain = stream.receive(data)                       and take_outgoing() again
    stream.send(plain)                                 and take_outgoing() again

For Twisted; asyncio and blocking sockets have TLS of their own in Python.
"""

import ssl

READ_BYTES = 1 << 16


class TlsStream:
    """The client's end of one connection. Errors are those of `ssl`."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.is_secured = False
        """True once the handshake has succeeded."""
        self.has_ended = False
        """True once the peer has said that nothing more comes."""
        self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the network; return the plain bytes in them."""
        self._incoming.write(data)
        if not self.is_secured:
            self._shake_hands()
        return self._read() if self.is_secured else b""

    def send(self, data: bytes) -> None:
        """Encrypt plain bytes, after the handshake."""
        self._tls.write(data)

    def take_outgoing(self) -> bytes:
        """Return the bytes that the network has to carry now."""
        return self._outgoing.read()

    def end(self) -> None:
        """Tell the peer that nothing more comes."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the peer has not said its end yet, and need not

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_secured = True

    def _read(self) -> bytes:
        parts = []
        while True:
            try:
                part = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                part = b""
            if not part:
                self.has_ended = True
                break
            parts.append(part)
        return b"".join(parts)
