"""TLS over any transport, without I/O: bytes of the network go in and out, and plain bytes too.

    stream = TlsStream(context, "broker.example")
    transport.write(stream.take_outgoing())            the handshake's first bytes
    plain = stream.receive(data)                       and take_outgoing() again
    stream.send(plain)                                 and take_outgoing() again

For Twisted; asyncio and blocking sockets have TLS of their own in Python.
"""

import ssl

from broker.security.tls_endpoint import TlsEndpoint

READ_BYTES = 1 << 16


class TlsStream:
    """The client's end of one connection. Errors are those of `ssl`."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._endpoint = TlsEndpoint(context, server_name)
        self.is_secured = self._endpoint.shake_hands()
        """True once the handshake has succeeded."""

    @property
    def has_ended(self) -> bool:
        """True once the peer has said that nothing more comes."""
        return self._endpoint.has_ended

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the network; return the plain bytes in them."""
        endpoint = self._endpoint
        endpoint.incoming.write(data)
        if not self.is_secured:
            self.is_secured = endpoint.shake_hands()
        return self._read() if self.is_secured else b""

    def send(self, data: bytes) -> None:
        """Encrypt plain bytes, after the handshake."""
        self._endpoint.write(data)

    def take_outgoing(self) -> bytes:
        """Return the bytes that the network has to carry now."""
        return self._endpoint.outgoing.read()

    def end(self) -> None:
        """Tell the peer that nothing more comes."""
        self._endpoint.end()

    def _read(self) -> bytes:
        view = memoryview(bytearray(READ_BYTES))
        parts = [bytes(view[: self._endpoint.read_into(view)])]
        while self._endpoint.has_more:
            parts.append(bytes(view[: self._endpoint.read_into(view)]))
        return b"".join(parts)
