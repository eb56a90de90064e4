"""The fast path for one id per request, POST /id: recognised by its bytes and answered without a web server.

A request is plain if it is HTTP/1.1, asks for `POST /id` and nothing more, has no body, names this server in Host, and
has no header that changes the form of the answer or the end of the request, or that names the site which sent it.
The fast path serves a connection as long as its requests are plain;
the first other request and all that follow it go to a web server (`NotPlain`). A program sends the same bytes again and
again, so only the first of equal requests is parsed: RFC 9112, sections 2 to 6.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from idgen.errors import IdError, SequenceExhausted
from idgen.fair_queue import TurnBudget
from idgen.http_api import USER_AGENT, refusal
from idgen.http_hosts import EVERY_HOST, OwnHosts
from idgen.service import IdService

HEAD_BYTES_MAX = 4_096  # of a request's head, which is remembered; real ones have fewer than 300
START = b"POST /id HTTP/1.1\r\n"
_END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEANS_MORE = (
    rb"(?:Connection|Content-Length|Expect|HTTP2-Settings|Keep-Alive|Origin|TE|Trailer|Transfer-Encoding|Upgrade)"
)
_HOST = re.compile(rb"(?i:\r\nHost:)([\t\x20-\x7e]*)")
_HEADERS = re.compile(
    rb"(?i:(?:Content-Length:[ \t]*0\r\n|Connection:[ \t]*keep-alive\r\n|(?!" + _MEANS_MORE + rb":)"
    rb"" + _TOKEN + rb":[\t\x20-\x7e]*\r\n)*)\r\n"
)
_REASONS = {400: b"Bad Request", 503: b"Service Unavailable"}
REQUEST_MS = 10_000  # for a whole request, where no setting says another time


def closing_answer(status: bytes, error: str, message: str) -> bytes:
    """Return the answer to a request that is refused before it is read whole; its connection is closed then."""
    body = json.dumps({"error": error, "message": message}).encode() + b"\n"
    head = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


LATE = closing_answer(
    b"408 Request Timeout", "RequestTimeout", "the request did not come whole in flakelog.http.request.ms"
)
"""The answer to a request that did not arrive whole in time."""


class NotPlain(Exception):
    """The bytes received from here on are for a web server."""


class Heads:
    """Heads of good answers, cached for one second, because only their date and length change."""

    def __init__(self) -> None:
        self._second = -1
        self._by_length: dict[int, bytes] = {}

    def of(self, length: int, now_ms: int) -> bytes:
        """Return the head of a good answer with `length` bytes of body."""
        second = now_ms // 1_000
        if second != self._second:
            self._second, self._by_length = second, {}
        head = self._by_length.get(length)
        if head is None:
            head = self._by_length[length] = _head(b"200 OK", length, now_ms)
        return head


def _head(status: bytes, length: int, now_ms: int, more: bytes = b"") -> bytes:
    date = datetime.fromtimestamp(now_ms // 1_000, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT").encode()
    lines = (b"HTTP/1.1 " + status, b"Date: " + date, b"Content-Type: application/json", b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n" + more + b"\r\n"


class PlainCaller:
    """The plain requests of one connection (idgen.fair_queue.Caller). NotPlain if it cannot read a request."""

    def __init__(self, service: IdService, heads: Heads, budget: TurnBudget, hosts: OwnHosts = EVERY_HOST) -> None:
        self._service = service
        self._hosts = hosts
        self._heads = heads
        self._budget = budget
        self._request = b""  # the last request, whole
        self._data = b""
        self._at = 0  # where the first unanswered request begins
        self.idle = True

    @property
    def in_request(self) -> bool:
        """True if a request has begun and its end is not received."""
        return self.idle and bool(self._data)

    def receive(self, data: bytes) -> None:
        self._data = self.take_unanswered() + data
        self.idle = False

    def take_unanswered(self) -> bytes:
        """Return the unanswered bytes, and forget them so that another protocol can answer them."""
        unanswered, self._data, self._at = self._data[self._at :], b"", 0
        self.idle = True
        return unanswered

    def answers(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        allowance = most
        try:
            while size := self._request_bytes():
                if not allowance or self._budget.calls <= 0:
                    return
                answer = self._answer(now_ms, skew_ms)
                allowance -= 1
                self._budget.calls -= 1
                self._at += size
                yield answer
        except SequenceExhausted:
            if allowance == most:
                raise
            return
        self._data = self.take_unanswered()

    def _request_bytes(self) -> int:
        """Return the length of the next request, or 0 if it is not complete. NotPlain."""
        data, at, last_request = self._data, self._at, self._request
        if last_request and data.startswith(last_request, at):
            return len(last_request)
        received = len(data) - at
        if not data.startswith(START[:received], at):
            raise NotPlain
        end = data.find(_END, at, at + HEAD_BYTES_MAX)
        if end < 0:
            if received >= HEAD_BYTES_MAX:
                raise NotPlain
            return 0
        self._request = data[at : end + len(_END)]
        if not is_plain(self._request, self._hosts):
            self._request = b""
            raise NotPlain
        return len(self._request)

    def _answer(self, now_ms: int, skew_ms: int) -> bytes:
        try:
            id = self._service.next_id(USER_AGENT, now_ms, skew_ms)
        except SequenceExhausted:
            raise
        except IdError as error:
            return self._refused(error, now_ms)
        body = b'{"id": %d, "id_str": "%d"}\n' % (id, id)
        return self._heads.of(len(body), now_ms) + body

    def _refused(self, error: IdError, now_ms: int) -> bytes:
        self._service.counters.refused(error)
        status, answer = refusal(error)
        body = json.dumps(answer).encode() + b"\n"
        return _head(b"%d %b" % (status, _REASONS[status]), len(body), now_ms, b"Retry-After: 1\r\n") + body


def is_plain(request: bytes, hosts: OwnHosts = EVERY_HOST) -> bool:
    """Return True if this head, with the empty line at its end, belongs to a plain request."""
    if not request.startswith(START) or request.lower().count(b"\r\ncontent-length:") > 1:
        return False
    if _HEADERS.fullmatch(request, len(START)) is None:
        return False
    named = _HOST.findall(request)
    return not named or (len(named) == 1 and hosts.accepts(named[0].decode()))
