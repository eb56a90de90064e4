"""SHELL (HTTP, files, the wall clock, a lock): fetches tokens of OAUTHBEARER from an identity provider."""

import time
import uuid
from http.client import HTTPException
from threading import Lock
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from broker.client.security.assertion import make_assertion
from broker.client.security.token_request import TokenCache, TokenRequest, parse_answer, reason_in

TIMEOUT_SECONDS = 10.0
BYTES_MAX = 1 << 20


class _NoRedirect(HTTPRedirectHandler):
    """Refuses redirections, because they would take the client's secret to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class TokenEndpoint:
    """The token endpoint of an identity provider. Any thread may call it."""

    def __init__(self, request: TokenRequest) -> None:
        self._request = request
        self._cache = TokenCache()
        self._lock = Lock()
        self._opener = build_opener(_NoRedirect)

    @property
    def is_due(self) -> bool:
        """Return True if a token is to be fetched before a login now."""
        return self._cache.is_due(time.time())

    def fetch(self) -> None:
        """Fetch a token if it is due. This blocks for some seconds if the provider does not answer."""
        with self._lock:
            if not self.is_due:
                return
            try:
                body = self._request.body(self._assertion())
            except ValueError as error:
                self._cache.failed(str(error), time.time())
                return
            try:
                token = parse_answer(self._answer(body), time.time())
            except (OSError, ValueError, HTTPException) as error:
                self._cache.failed(f"{self._request.url} gives none: {error}", time.time())
            else:
                self._cache.fetched(token, time.time())

    def token(self) -> str:
        """Return a token, and fetch one before if it is due. Raise ValueError with the reason if there is none."""
        self.fetch()
        return self._cache.present(time.time())

    def _assertion(self) -> str:
        """Return the assertion for a request now, "" if it needs none. Raise InvalidSetting, which is a ValueError."""
        config = self._request.assertion
        return "" if config is None else make_assertion(config, _read, time.time(), str(uuid.uuid4()))

    def _answer(self, body: bytes) -> bytes:
        request = Request(self._request.url, body, self._request.headers)  # its scheme is checked
        try:
            with self._opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                data: bytes = answer.read(BYTES_MAX + 1)
        except HTTPError as error:
            with error:
                reason = reason_in(error.read(BYTES_MAX))
            raise ValueError(f"it answers {error.code} {error.reason}{reason}") from None
        if len(data) > BYTES_MAX:
            raise ValueError(f"its answer is larger than {BYTES_MAX} bytes")
        return data


def _read(location: str) -> bytes:
    with open(location, "rb") as file:
        return file.read(BYTES_MAX)
