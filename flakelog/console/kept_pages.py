"""Answers to forms, kept for a while, so that a browser gets each by a GET and can return to it (post-redirect-get).

A page belongs to the session whose form it answers. When the pages have too many bytes, the oldest ones go.
"""

from typing import NamedTuple

from flakelog.console.pages import NotThere

KEPT_MS = 30 * 60_000  # longer than most visitors stay on a form's page
KEPT_BYTES_MAX = 4 << 20  # hundreds of usual pages, or 16 plans of the longest messages
GONE = "this page was kept for a while only, and is gone; the server's log says what was done"


class KeptPage(NamedTuple):
    """A page as it was made: its HTTP status and its HTML."""

    session_id: str
    expires_ms: int
    status: int
    html: bytes


class KeptPages:
    """The kept pages of one server process, by their keys, oldest first."""

    def __init__(self) -> None:
        self._pages: dict[str, KeptPage] = {}
        self._bytes = 0

    def keep(self, key: str, session_id: str, status: int, html: bytes, now_ms: int) -> None:
        """Keep a page under a random key. The newest page is kept, however large it is."""
        self._pages[key] = KeptPage(session_id, now_ms + KEPT_MS, status, html)
        self._bytes += len(html)
        while len(self._pages) > 1:
            oldest = next(iter(self._pages))
            if self._bytes <= KEPT_BYTES_MAX and self._pages[oldest].expires_ms > now_ms:
                break
            self._bytes -= len(self._pages.pop(oldest).html)

    def page(self, key: str, session_id: str, now_ms: int) -> KeptPage:
        """Return a page of this session. Raise NotThere."""
        page = self._pages.get(key)
        if page is None or page.session_id != session_id or page.expires_ms <= now_ms:
            raise NotThere(GONE, ("/console/topics", "Show the topics"))
        return page
