"""The client's side of a connection, without its socket: encodes requests, decodes answers by correlation id."""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from broker.client.core import CLIENT_ID, Exchange
from broker.wire.errors import WireError
from broker.wire.frame import request_header
from broker.wire.frame_decoder import FrameDecoder
from broker.wire.primitives import skip_tags

if TYPE_CHECKING:
    from broker.client.security.client_security import ClientSecurity

API_VERSIONS = 18
MAX_ANSWER_BYTES = 256 << 20
"""Flakelog's fetch limits are far below. A length above this is no frame's: a TLS alert reads as 352 MB."""
SPEAKS_HTTP = "it speaks HTTP, not Kafka's protocol"
SPEAKS_TLS = "it speaks TLS: set security.protocol=SSL, or SASL_SSL where it asks for a login"
_TLS_ALERT = b"\x15\x03"  # the first bytes of a TLS alert record (RFC 8446, section 5.1)


def not_a_frame(first: bytes) -> str | None:
    """Return what a peer speaks whose first bytes are these, if it is known and not Kafka's protocol."""
    if first[:4] == b"HTTP":
        return SPEAKS_HTTP
    return SPEAKS_TLS if first[:2] == _TLS_ALERT else None


class Answer(NamedTuple):
    correlation_id: int
    body: memoryview


class ClientConnection:
    """The requests and answers of a connection. Correlation ids rise by one; answers out of order are an error.

    With `is_trusted`, the peer is another broker of the cluster, whose answers are as large as it announces.
    """

    def __init__(self, client_id: str = CLIENT_ID, *, is_trusted: bool = False) -> None:
        self._client_id = client_id
        self._decoder = FrameDecoder(MAX_ANSWER_BYTES, is_trusted=is_trusted)
        self._expected: deque[tuple[int, bool]] = deque()
        self._next_id = 1

    @property
    def waiting(self) -> int:
        """Number of requests that wait for their answers."""
        return len(self._expected)

    def with_hint(self, reason: str, security: "ClientSecurity | None") -> str:
        """Return why the connection has ended, with what its listener may have wanted in place of the first requests.

        A listener of TLS ends a plain connection at its first bytes, and one that asks for a login after ApiVersions.
        In TLS 1.3 one that asks for a certificate ends the connection after the handshake.
        """
        answered = self._next_id - 1 - self.waiting
        if not self.waiting or answered > 1:
            return reason
        if security is None and not answered:
            return f"{reason}; if it speaks TLS, set security.protocol=SSL or SASL_SSL"
        if security is not None and not answered and not security.settings.has_own_certificate and security.is_tls:
            return f"{reason}; if it asks for a certificate of this client, set ssl.keystore.location"
        if answered and (security is None or not security.asks_login):
            protocol = "SASL_SSL" if security is not None else "SASL_PLAINTEXT"
            return f"{reason}; if it asks for a login, set security.protocol={protocol} and sasl.mechanism"
        return reason

    def request(self, exchange: Exchange) -> tuple[int, bytes]:
        """Return (correlation id, the bytes to send)."""
        correlation_id = self._next_id
        self._next_id = correlation_id + 1 & 0x7FFFFFFF
        head = request_header(exchange.api_key, exchange.version, correlation_id, self._client_id, exchange.flexible)
        if exchange.expects_reply:
            tagged = exchange.flexible and exchange.api_key != API_VERSIONS
            self._expected.append((correlation_id, tagged))
        return correlation_id, (len(head) + len(exchange.body)).to_bytes(4, "big") + head + exchange.body

    def wanted(self) -> memoryview | None:
        """Return a buffer to receive the next bytes into without a copy, or None to use any buffer."""
        return self._decoder.wanted()

    def receive(self, data: memoryview, *, is_reused: bool) -> list[Answer]:
        """Feed received bytes; return the answers that are complete.

        If the memory of `data` `is_reused` by the caller, bodies that lie in it are copied. Raise WireError for bytes
        that are no expected answer.
        """
        decoder = self._decoder
        decoder.feed(data)
        answers = []
        while decoder.has_frame() and (frame := self._next_frame(data)) is not None:
            answer = self.take(frame)
            if is_reused and answer.body.obj is data.obj:
                answer = answer._replace(body=memoryview(bytes(answer.body)))
            answers.append(answer)
        return answers

    def _next_frame(self, data: memoryview) -> memoryview | None:
        try:
            return self._decoder.next_frame()
        except WireError as error:
            raise WireError(not_a_frame(bytes(data[:4])) or str(error)) from None

    def take(self, frame: memoryview) -> Answer:
        """Return the answer in a whole frame, without its length. The body is a view of `frame`.

        For a shell that reads frames itself. Raise WireError for a frame that is no expected answer.
        """
        if not self._expected or len(frame) < 4:
            raise WireError(f"{len(frame)} bytes came that no request asked for")
        correlation_id, tagged = self._expected.popleft()
        got = int.from_bytes(frame[:4], "big")
        if got != correlation_id:
            raise WireError(f"the answer has correlation id {got}, {correlation_id} is next")
        return Answer(correlation_id, frame[skip_tags(frame, 4) if tagged else 4 :])
