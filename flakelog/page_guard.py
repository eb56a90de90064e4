"""Which requests may see /health and /metrics: all, or those that send the operator's token."""

import json
from collections.abc import Callable
from typing import Any

from flakelog.config import ServerConfig
from flakelog.console.security import OperatorToken, RequestRefused

Serve = Callable[[Any], Any]


class PageGuard:
    """The rules of one HTTP port. `now_ms` is a clock that does not fall."""

    def __init__(self, config: ServerConfig, now_ms: Callable[[], int]) -> None:
        self._health_is_open = config.http_health_open
        self._metrics_is_open = config.http_metrics_open
        self._operator = OperatorToken(config.console_token)
        self._now_ms = now_ms

    def of_health(self, serve: Serve) -> Serve:
        """Return a page that is served as flakelog.http.health.open says."""
        return serve if self._health_is_open else self._guarded(serve)

    def of_metrics(self, serve: Serve) -> Serve:
        """Return a page that is served as flakelog.http.metrics.open says."""
        return serve if self._metrics_is_open else self._guarded(serve)

    def shows_details(self, request: Any) -> bool:
        """Return True if /health/ready may answer with more than whether the server is ready.

        A wrong token is no failed guess there, because everyone may ask for that page.
        """
        return self._health_is_open or self._operator.is_in_header(_authorization(request))

    def _guarded(self, serve: Serve) -> Serve:
        def guarded(request: Any) -> Any:
            try:
                self._operator.check_header(_authorization(request), self._now_ms())
            except RequestRefused as refused:
                return _refuse(request, refused)
            return serve(request)

        return guarded


class OpenGuard(PageGuard):
    """The rules of a port that only processes of this server reach: everything is open."""

    def __init__(self) -> None:
        super().__init__(ServerConfig(), lambda: 0)


def _authorization(request: Any) -> str:
    header: bytes = request.getHeader(b"authorization") or b""
    return header.decode(errors="replace")


def _refuse(request: Any, refused: RequestRefused) -> bytes:
    request.setResponseCode(refused.status)
    if refused.status == 401:
        request.setHeader(b"WWW-Authenticate", b"Bearer")
    request.setHeader(b"Content-Type", b"application/json")
    error = "Unauthorized" if refused.status == 401 else "TooManyRequests"
    return json.dumps({"error": error, "message": refused.reason}).encode()
