"""The pages of mirrors, which are read from the topic of their documents."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from flakelog.console import mirrors
from flakelog.console.broker_pages import ConsoleServer, LivePart
from flakelog.console.history import SeriesByName
from flakelog.console.message_pages import Jobs
from flakelog.console.pages import NotThere, View
from flakelog.console.visit import Fields
from flakelog.operations import mirrors as operations

MIRRORS = "/console/mirrors"
PAGES = ("mirrors", "mirror")

Documents = Sequence[dict[str, Any]]


class MirrorPages:
    """The pages of the mirrors that copy into a cluster. Each method returns a Deferred."""

    def __init__(self, server: ConsoleServer, jobs: Jobs) -> None:
        self._server = server
        self._jobs = jobs
        self._series = SeriesByName(mirrors.POINTS)

    def live(self, fields: Fields, since_ms: int) -> Any:
        """Return a Deferred of the live part of a page of PAGES. Raise NotThere."""

        def rows(documents: Documents) -> LivePart:
            return LivePart("mirrors_live.html", mirrors.mirror_rows(documents))

        def mirror(documents: Documents) -> LivePart:
            page, key = self._running(documents, fields)
            return LivePart("mirror_live.html", page, {"mirror": self._series.of(key).columns(since_ms)})

        return self._documents().addCallback(mirror if fields.text("page") == "mirror" else rows)

    def mirrors_page(self, fields: Fields) -> Any:
        """Return a Deferred of the list."""

        def view(documents: Documents) -> View:
            return View("mirrors.html", "Mirrors", MIRRORS, mirrors.mirror_rows(documents), "mirrors")

        return self._documents().addCallback(view)

    def mirror_page(self, fields: Fields) -> Any:
        """Return a Deferred of one mirror, by its name and its source."""

        def view(documents: Documents) -> View:
            page, key = self._running(documents, fields)
            stream = f"mirror&name={quote(page.row.name, safe='')}&from={quote(page.row.source, safe='')}"
            model = {"now": page, "points": self._series.of(key).columns()}
            return View("mirror.html", f"Mirror {page.row.name}", MIRRORS, model, stream)

        return self._documents().addCallback(view)

    def _running(self, documents: Documents, fields: Fields) -> tuple[mirrors.MirrorPage, str]:
        """Return a mirror that runs and the name of its series, and take a sample of its figures. Raise NotThere."""
        name, source = fields.text("name"), fields.text("from")
        page = mirrors.mirror_page(documents, name, source)
        if page is None:
            raise NotThere(f"no mirror {name!r} of {source!r} runs now", (MIRRORS, "Show the mirrors"))
        key = f"{name}/{source}"
        series, now_ms = self._series.of(key), self._server.clock.now_ms()
        if series.is_due(now_ms):
            series.add(now_ms, mirrors.points_of(page.row))
        return page, key

    def _documents(self) -> Any:
        now_ms = self._server.clock.now_ms()
        return self._jobs.run(lambda client: operations.list_mirrors(client, now_ms))
