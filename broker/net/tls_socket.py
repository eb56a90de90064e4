"""SHELL (sockets): a socket that speaks TLS, with one call of the system for many records.

OpenSSL alone makes two calls for each record that it reads, and one for each that it writes. Here it works in memory.

Reading: the ciphertext of many records is received into a buffer that all connections share. OpenSSL decrypts it
straight into the caller's buffer. A record without plain bytes (KeyUpdate) costs far more CPU time than as many bytes
of a large record, and any peer can send it before its login. So a peer's first piece is small. Pieces grow while they
are mostly plain bytes, and a read ends with the first piece that is not. After such a piece they are smaller still:
requests are longer than the overhead of their records, so no client but one with padding notices.

Writing has two states:

    clear      No ciphertext is left. `send` encrypts at most `send_bytes`, and gives all to the socket in one call.
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

RECEIVE_BYTES = 256 * 1024  # of ciphertext; a read that has received as much ends
FEED_BYTES = 32 * 1024  # the largest piece of ciphertext; a connection keeps a buffer of a third more
FIRST_BYTES = 4 * 1024  # the first piece
MIXED_BYTES = 1024  # the one after a piece with plain bytes that are less than half of it; it has up to 38 KeyUpdates
SILENT_BYTES = 32 * 1024  # of ciphertext without a plain byte; one record has at most 18,437 (RFC 5246, 6.2.3)
WRITE_BYTES = 128 * 1024  # the most that is encrypted at once
BLOCKED_BYTES = 32 * 1024  # the most that is encrypted at once for a peer that is slow or new
ANSWERS_BYTES = 16 * 1024  # the most alerts and key updates that wait for one peer
_HANDSHAKE_RECORD = 22
_NOTHING = memoryview(b"")
_received = memoryview(bytearray(FEED_BYTES))
"""One piece of ciphertext. All connections share it, because OpenSSL copies it at once."""


class TlsSocket:
    """An accepted socket that speaks TLS and never blocks. The socket has to be in non-blocking mode.

    After BlockingIOError of `send` the caller must offer the same bytes again. More bytes may follow them.
    """

    def __init__(self, sock: Socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._endpoint = TlsEndpoint(context)
        self._is_secured = False
        self.has_more = False
        """True if bytes, the peer's end or an error are left to read, for which the reactor has no event."""
        self.refusal = ""
        """Why `recv_into` has given the peer up with ConnectionAbortedError, for the log."""
        self.began_with_tls = False
        """True if the first byte of the peer is that of a TLS record with a handshake (RFC 8446, section 5.1)."""
        self._has_begun = False
        self.send_bytes = BLOCKED_BYTES
        """The most that the next `send` encrypts. It grows while the socket takes all, up to WRITE_BYTES."""
        self._piece_bytes = FIRST_BYTES
        self._silent_bytes = 0
        """The ciphertext that has come since the last plain byte."""
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
            if not self._has_begun:
                self._has_begun, self.began_with_tls = True, _received[0] == _HANDSHAKE_RECORD
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
        """Receive and decrypt into a view, which has room. Return the number of bytes, 0 at the peer's end.

        Raise BlockingIOError if no whole record has come, OSError if the peer breaks the protocol, and
        ConnectionAbortedError if it sends or provokes too much that is no plain byte. The plain bytes before a broken
        record come first: the next call raises the error.
        """
        assert len(view), "without room a caller would read for ever while `has_more`"
        endpoint = self._endpoint
        try:
            if self.has_more:
                total = endpoint.read_into(view)
            elif endpoint.has_ended:
                return 0
            else:
                total = self._receive(view)
        except ssl.SSLError:
            self._answer()  # the alert
            raise
        if endpoint.outgoing.pending:
            self._check_answers()
            self._answer()
        self.has_more = endpoint.has_more or endpoint.has_ended and total > 0
        if not total and not endpoint.has_ended:
            raise BlockingIOError
        return total

    def _receive(self, view: memoryview) -> int:
        """Receive and decrypt pieces, until the socket has no more or one is mostly not plain.

        OpenSSL keeps what the view has no room for: less than two records.
        """
        endpoint = self._endpoint
        room, received, total = len(view), 0, 0
        while True:
            wanted = min(max(room - total, RECORD_BYTES), self._piece_bytes)
            try:
                size = self._socket.recv_into(_received, wanted)
                endpoint.incoming.write(_received[:size])
                plain = endpoint.read_into(view[total:] if total else view)
            except ssl.SSLError:
                if not total:
                    raise
                endpoint.has_more = True  # the next read raises it again
                return total
            except OSError:
                if not total:
                    raise
                return total  # the next event of the socket tells of it
            if not size:
                endpoint.has_ended = True
                return total
            total += plain
            received += size
            self._weigh(size, plain)
            if size < wanted or total == room or 2 * plain < size or received >= RECEIVE_BYTES:
                return total
            if endpoint.has_more or endpoint.has_ended:
                return total

    def _weigh(self, size: int, plain: int) -> None:
        """Choose the size of the next piece. Raise ConnectionAbortedError after many without a plain byte."""
        if not plain:
            self._silent_bytes += size
            if self._silent_bytes >= SILENT_BYTES:
                self._refuse(f"it has sent {self._silent_bytes} bytes of TLS without a byte of a request in them")
            return
        self._silent_bytes = 0
        if size >= MIXED_BYTES and not self._endpoint.has_more:
            if 2 * plain < size:
                self._piece_bytes = MIXED_BYTES
            elif size >= self._piece_bytes:
                self._piece_bytes = min(2 * size, FEED_BYTES)

    def _check_answers(self) -> None:
        """Raise ConnectionAbortedError if too many alerts and key updates wait for the peer."""
        waiting = self._endpoint.outgoing.pending + (0 if self._encrypted else len(self._unsent))
        if waiting > ANSWERS_BYTES:
            self._refuse(f"{waiting} bytes of TLS alerts and key updates wait for it, and the most is {ANSWERS_BYTES}")

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        raise ConnectionAbortedError(reason)

    # --- writing -------------------------------------------------------------------------------------------------

    def send(self, data: Any, flags: int = 0) -> int:
        """Encrypt and send at most `send_bytes`. Return how many bytes have left; BlockingIOError if none have.

        `flags` are a plain socket's, and mean nothing here.
        """
        if self._unsent and (sent := self.flush()):
            return sent
        endpoint, size = self._endpoint, len(data)
        if size > RECORD_BYTES:
            return self._send_records(memoryview(data)[: self.send_bytes])
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
        if self.send_bytes < WRITE_BYTES:
            self.send_bytes += RECORD_BYTES
        return len(view)

    def _block(self, unsent: memoryview, encrypted: int) -> None:
        self._unsent, self._encrypted = unsent, encrypted
        self.send_bytes = BLOCKED_BYTES
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
            with suppress(OSError):  # the next read raises it
                self.flush()
