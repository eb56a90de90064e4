"""SHELL (sockets): a socket that speaks TLS, with one call of the system for many records.

OpenSSL alone makes two calls for each record that it reads, and one for each that it writes. Here it works in memory.

Reading: one `recv_into` takes the ciphertext of many records into a buffer that all connections share. OpenSSL gets it
in pieces and decrypts them straight into the caller's buffer.

Writing has two states:

    clear      No ciphertext is left. `send` encrypts at most WRITE_BYTES and gives all of it to the socket in one call.
    blocked    The socket took less. `_unsent` is the rest of the ciphertext, and stands for `_encrypted` plain bytes,
               which no `send` has returned yet. Each `send` offers the same bytes again, and sends the rest.

So the caller counts bytes as sent once their ciphertext has left. Its own queue is not empty in the state blocked: it
asks the reactor for an event, and closes nothing before the ciphertext is out.
"""

import ssl
from contextlib import suppress
from socket import socket as Socket
from typing import Any

from broker.security.tls_endpoint import RECORD_BYTES, TlsEndpoint

RECEIVE_BYTES = 256 * 1024  # room for the ciphertext of one read
FEED_BYTES = 32 * 1024  # of ciphertext that OpenSSL gets at once; a connection keeps a buffer of a third more
WRITE_BYTES = 128 * 1024  # the most that is encrypted at once
ANSWERS_BYTES = 16 * 1024  # of alerts and key updates that a peer may leave unread
_NOTHING = memoryview(b"")
_received = memoryview(bytearray(RECEIVE_BYTES))
"""The ciphertext of one read; one for all connections, because OpenSSL copies it at once."""


class TlsSocket:
    """An accepted socket that speaks TLS and never blocks. The socket has to be in non-blocking mode.

    After BlockingIOError of `send` the caller must offer the same bytes again. More bytes may follow them.
    """

    def __init__(self, sock: Socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._endpoint = TlsEndpoint(context)
        self._is_secured = False
        self.has_more = False
        """True if bytes or the peer's end are left to read, for which the reactor has no event."""
        self._unsent = _NOTHING
        self._encrypted = 0
        self.fileno = sock.fileno
        self.setblocking = sock.setblocking
        self.setsockopt = sock.setsockopt
        self.getsockopt = sock.getsockopt
        self.getsockname = sock.getsockname
        self.shutdown = sock.shutdown
        self.close = sock.close

    def do_handshake(self) -> None:
        """Go on with the handshake, with at most one read of the socket.

        Raise SSLWantReadError or SSLWantWriteError until it is over, another SSLError or OSError if it cannot succeed.
        """
        self._flush_handshake()
        if self._is_secured:
            return
        self._receive_handshake()
        try:
            self._is_secured = self._endpoint.shake_hands()
        except ssl.SSLError:
            self._answer()  # the alert
            raise
        self.has_more = self._endpoint.has_more
        self._flush_handshake()
        if not self._is_secured:
            raise ssl.SSLWantReadError

    def _receive_handshake(self) -> None:
        try:
            size = self._socket.recv_into(_received, RECORD_BYTES)
        except BlockingIOError:
            raise ssl.SSLWantReadError from None
        if size:
            self._endpoint.incoming.write(_received[:size])
        else:
            self._endpoint.incoming.write_eof()

    def _flush_handshake(self) -> None:
        try:
            self.flush()
        except BlockingIOError:
            raise ssl.SSLWantWriteError from None

    def certificate(self) -> bytes | None:
        """Return the peer's certificate (DER), None if it showed none."""
        return self._endpoint.certificate()

    # --- reading -------------------------------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """Receive at most once, and decrypt into a view. Return the number of bytes, 0 at the peer's end.

        Raise BlockingIOError if no whole record has come, OSError if the peer breaks the protocol.
        """
        endpoint = self._endpoint
        try:
            if self.has_more:
                total = endpoint.read_into(view)
            elif endpoint.has_ended:
                return 0
            else:
                size = self._socket.recv_into(_received, min(max(len(view), RECORD_BYTES), RECEIVE_BYTES))
                if not size:
                    return 0
                total = self._decrypt(size, view)
        except ssl.SSLError:
            self._answer()  # the alert
            raise
        if endpoint.outgoing.pending:
            self._answer()
            if endpoint.outgoing.pending > ANSWERS_BYTES:
                raise ConnectionAbortedError(f"the peer leaves more than {ANSWERS_BYTES} bytes of alerts unread")
        self.has_more = endpoint.has_more or endpoint.has_ended and total > 0
        if not total and not endpoint.has_ended:
            raise BlockingIOError
        return total

    def _decrypt(self, size: int, view: memoryview) -> int:
        """Decrypt received bytes. OpenSSL keeps what the view has no room for: less than two records."""
        endpoint = self._endpoint
        if size <= FEED_BYTES:
            endpoint.incoming.write(_received[:size])
            return endpoint.read_into(view)
        at = total = 0
        while at < size:
            end = min(at + FEED_BYTES, size)
            endpoint.incoming.write(_received[at:end])
            total += endpoint.read_into(view[total:])
            if endpoint.has_ended:
                break
            at = end
        return total

    # --- writing -------------------------------------------------------------------------------------------------

    def send(self, data: Any, flags: int = 0) -> int:
        """Encrypt and send at most WRITE_BYTES. Return how many bytes have left; BlockingIOError if none have.

        `flags` are a plain socket's, and mean nothing here.
        """
        if self._unsent and (sent := self.flush()):
            return sent
        endpoint, size = self._endpoint, len(data)
        if size > RECORD_BYTES:
            return self._send_records(memoryview(data)[:WRITE_BYTES])
        endpoint.write(data)
        ciphertext = endpoint.outgoing.read()
        try:
            sent = self._socket.send(ciphertext)
        except BlockingIOError:
            sent = 0
        if sent < len(ciphertext):
            self._block(memoryview(ciphertext)[sent:], size)
        return size

    def _send_records(self, view: memoryview) -> int:
        """Encrypt record by record, so that OpenSSL keeps one, and send all in one call."""
        endpoint, records = self._endpoint, []
        for at in range(0, len(view), RECORD_BYTES):
            endpoint.write(view[at : at + RECORD_BYTES])
            records.append(endpoint.outgoing.read())
        try:
            sent = self._socket.sendmsg(records)
        except BlockingIOError:
            sent = 0
        if sent < sum(map(len, records)):
            self._block(memoryview(b"".join(records))[sent:], len(view))
        return len(view)

    def _block(self, unsent: memoryview, encrypted: int) -> None:
        self._unsent, self._encrypted = unsent, encrypted
        raise BlockingIOError

    @property
    def is_blocked(self) -> bool:
        """True if ciphertext is left. Then `flush` and `send` do the same."""
        return self._encrypted > 0

    def flush(self) -> int:
        """Send all ciphertext. Return how many plain bytes of `send` are in it. BlockingIOError if some is left."""
        while self._unsent or self._endpoint.outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._endpoint.outgoing.read())
            sent = self._socket.send(self._unsent)
            self._unsent = self._unsent[sent:] if sent < len(self._unsent) else _NOTHING
        encrypted, self._encrypted = self._encrypted, 0
        return encrypted

    # --- alerts, tickets and key updates -------------------------------------------------------------------------

    def say_end(self) -> None:
        """Tell the peer that nothing more comes (close_notify), without a wait for its answer."""
        self._endpoint.end()
        self._answer()

    def _answer(self) -> None:
        """Send alerts, tickets and key updates, unless bytes of the caller are due first. Leave the rest to `send`."""
        if not self._encrypted:
            with suppress(OSError):  # the next read meets a peer that is gone
                self.flush()
