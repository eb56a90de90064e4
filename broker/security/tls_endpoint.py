"""One end of a TLS connection in memory, without I/O, for the server's connections and for Twisted's clients.

    endpoint = TlsEndpoint(context)                    a server; a client gives the server's name
    endpoint.incoming.write(data)                      ciphertext of the peer
    endpoint.shake_hands()                             True once the handshake is over
    size = endpoint.read_into(view)                    plain bytes
    endpoint.write(plain)                              all of it, in records of RECORD_BYTES
    data = endpoint.outgoing.read()                    ciphertext for the peer, after each of these calls

OpenSSL puts alerts, tickets and answers to KeyUpdate into `outgoing` at any of these calls (RFC 8446, sections 4.6
and 6). The errors are those of `ssl`. After an error `outgoing` has the alert for the peer.

A MemoryBIO keeps the largest size that it once had. So the caller writes and reads in pieces, and not all at once.

`_sslobj` of `ssl.SSLObject` is a private name of Python's. It saves a call for each record.
"""

import ssl
from collections.abc import Callable
from typing import Any, cast

RECORD_BYTES = 1 << 14
"""The most plain bytes of one record (RFC 8446, section 5.1)."""
HANDSHAKE_TURNS = 5
"""The most turns of each end in a handshake in memory; the longest one, of TLS 1.2, takes three."""


class HandshakeRefused(ssl.SSLError):
    """An end of a handshake refuses the other one. `by_client` says which end, and `cause` has OpenSSL's reason."""

    def __init__(self, cause: ssl.SSLError, *, by_client: bool) -> None:
        super().__init__(*cause.args)
        self.cause = cause
        self.by_client = by_client


class TlsEndpoint:
    """The end of a client, which names its server, or the end of a server."""

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=server_name is None, server_hostname=server_name
        )
        openssl: Any = cast(Any, self._tls)._sslobj
        self._read: Callable[[int, memoryview], int] = openssl.read
        self._pending: Callable[[], int] = openssl.pending
        self.write: Callable[[bytes | bytearray | memoryview], int] = openssl.write
        """Encrypt plain bytes, in records of at most RECORD_BYTES. Return how many, which is all of them."""
        self.has_more = False
        """True if `read_into` has more to do: its view was full, an error comes next, or the peer sent bytes right
        behind the handshake."""
        self.has_ended = False
        """True once the peer has said that nothing more comes (close_notify). The caller sets it at the end of the
        connection."""
        self._error: ssl.SSLError | None = None

    def shake_hands(self) -> bool:
        """Go on with the handshake as far as `incoming` allows. Return True once it is over.

        Raise SSLEOFError if the peer has ended it; Python 3.11.2 has SSLZeroReturnError for that.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError as error:
            raise ssl.SSLEOFError(*error.args) from None
        self.has_more = self.incoming.pending > 0
        return True

    def read_into(self, view: memoryview) -> int:
        """Decrypt into a view until it is full, or no whole record is left. Return the number of bytes.

        The bytes before a broken record are returned. The next call raises the error, as do all that follow.
        """
        if self._error is not None:
            raise self._error
        incoming, read, room = self.incoming, self._read, view
        self.has_more = False
        try:
            while size := read(RECORD_BYTES, room):  # one record at most; 0 bytes once the view is full
                room = room[size:]
                if not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            self._error = error
            if len(room) == len(view):
                raise
            self.has_more = True
        else:
            if not room:
                self.has_more = incoming.pending > 0 or self._pending() > 0
            elif not size:
                self.has_ended = True
        return len(view) - len(room)

    def end(self) -> None:
        """Tell the peer that nothing more comes (close_notify), without a wait for its answer."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # the peer has not said its end yet, and need not

    def certificate(self) -> bytes | None:
        """Return the peer's certificate (DER), None if it showed none."""
        return self._tls.getpeercert(binary_form=True)


def check_handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Let two contexts shake hands in memory. Raise HandshakeRefused if one refuses the other.

    The client must not check names, because the server has none here.
    """
    ends = TlsEndpoint(client, "localhost"), TlsEndpoint(server)
    are_over = [False, False]
    for _ in range(HANDSHAKE_TURNS):
        for number, (end, peer) in enumerate((ends, ends[::-1])):
            if not are_over[number]:
                try:
                    are_over[number] = end.shake_hands()
                except ssl.SSLError as error:
                    raise HandshakeRefused(error, by_client=end is ends[0]) from error
            peer.incoming.write(end.outgoing.read())
        if all(are_over):
            return
    raise ssl.SSLError(ssl.SSL_ERROR_SSL, f"no handshake within {HANDSHAKE_TURNS} turns")
