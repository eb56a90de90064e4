"""The pages of topologies, of dead letters, and of replays and loads, which are read from topics."""

from typing import Any
from urllib.parse import quote

from broker.client.blocking import Client
from broker.services.context import BrokerServices
from flakelog.config import ServerConfig
from flakelog.console import letters, messages, replays, topologies
from flakelog.console.access import Access
from flakelog.console.broker_pages import ConsoleServer, LivePart
from flakelog.console.history import INTERVAL_MS, SeriesByName
from flakelog.console.message_pages import Jobs
from flakelog.console.pages import NotThere, View
from flakelog.console.partitions_elsewhere import UNKNOWN, all_bounds, bounds_elsewhere, led_elsewhere
from flakelog.console.visit import Fields
from spark_bridge.output.replay_topic import TOPIC as REPLAYS_TOPIC

TOPOLOGIES, REPLAYS = "/console/topologies", "/console/replays"
TOPOLOGIES_TOPIC = "__flakelog_topologies"


class WorkPages:
    """The pages of what works on the log. Each method returns a Deferred of a View."""

    def __init__(
        self, server: ConsoleServer, services: BrokerServices, access: Access, jobs: Jobs, config: ServerConfig
    ) -> None:
        self._server = server
        self._access = access
        self._services = services
        self._jobs = jobs
        self._limits = messages.Limits(config.console_page_records, config.console_page_bytes)
        self._series = SeriesByName(topologies.POINTS)
        self._read_ms = -1
        self._read: list[dict[str, Any]] = []
        """The documents as read at `_read_ms`. Streams of several pages share them."""

    def live(self, fields: Fields, since_ms: int) -> Any:
        """Return the live part of a page or a Deferred of it, None if `page` is not one of these. Raise NotThere."""
        id = fields.text("id")

        def rows(documents: list[dict[str, Any]]) -> LivePart:
            return LivePart("topologies_live.html", topologies.topology_rows(documents))

        def topology(documents: list[dict[str, Any]]) -> LivePart:
            page = self._running(documents, id)
            return LivePart("topology_live.html", page, {"topology": self._series.of(id).columns(since_ms)})

        part = {"topologies": rows, "topology": topology}.get(fields.text("page"))
        if part is None:
            return None
        now_ms = self._server.clock.now_ms()
        if 0 <= now_ms - self._read_ms < INTERVAL_MS // 2:
            return part(self._read)
        return self._documents(now_ms).addCallback(part)

    # --- topologies ----------------------------------------------------------------------------------------------

    def topologies_page(self, fields: Fields) -> Any:
        def view(documents: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> View:
            now, lost = documents
            model = {"now": topologies.topology_rows(now), "lost": topologies.lost_rows(lost)}
            return View("topologies.html", "Topologies", TOPOLOGIES, model, "topologies")

        return self._with_lost().addCallback(view)

    def topology_page(self, fields: Fields) -> Any:
        id = fields.text("id")

        def view(documents: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> View:
            now, lost = documents
            page, stream = topologies.lost_page(lost, id), ""
            if page is None:
                page, stream = self._running(now, id), f"topology&id={quote(id, safe='')}"
            model = {"now": page, "points": self._series.of(id).columns()}
            return View("topology.html", f"Topology {page.row.name}", TOPOLOGIES, model, stream)

        return self._with_lost().addCallback(view)

    def _running(self, documents: list[dict[str, Any]], id: str) -> topologies.TopologyPage:
        """Return the page of a topology that runs, and take a sample of its figures. Raise NotThere."""
        page = topologies.topology_page(documents, id)
        if page is None:
            raise NotThere(f"no topology with the id {id!r} runs now")
        series, now_ms = self._series.of(id), self._server.clock.now_ms()
        if series.is_due(now_ms):
            series.add(now_ms, topologies.points_of(page.row, page.components))
        return page

    def _documents(self, now_ms: int) -> Any:
        """Return a Deferred of the documents of the processes that run."""
        partitions = [
            *messages.spans_of(self._services, TOPOLOGIES_TOPIC), *led_elsewhere(self._services, TOPOLOGIES_TOPIC)
        ]  # fmt: skip

        def keep(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
            self._read_ms, self._read = now_ms, documents
            return documents

        read = self._jobs.run(lambda client: topologies.read_documents(client, TOPOLOGIES_TOPIC, partitions, now_ms))
        return read.addCallback(keep)

    def _with_lost(self) -> Any:
        """Return a Deferred of the documents of the processes that run, and of those that are lost."""
        starts = messages.starts_of(self._services, TOPOLOGIES_TOPIC, topologies.LOST_BYTES_MAX)
        elsewhere = led_elsewhere(self._services, TOPOLOGIES_TOPIC)
        now_ms = self._server.clock.now_ms()

        def read(client: Client) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
            bounds = bounds_elsewhere(client, TOPOLOGIES_TOPIC, elsewhere)
            begins = {number: span.start for number, span in bounds.items()} | starts
            now = topologies.read_documents(client, TOPOLOGIES_TOPIC, list(begins), now_ms)
            return now, topologies.read_lost(client, TOPOLOGIES_TOPIC, begins, now_ms)

        return self._jobs.run(read)

    # --- dead letters --------------------------------------------------------------------------------------------

    def letters_page(self, fields: Fields, name: str) -> Any:
        self._access.require_topic(name)
        if self._services.metadata.topic(name) is None:
            raise NotThere(f"there is no topic {name!r}; no message was given up, or its letters are elsewhere")
        spans = messages.spans_of(self._services, name)

        def view(page: letters.LettersPage) -> View:
            return View("letters.html", f"Dead letters in {name}", TOPOLOGIES, page)

        elsewhere = led_elsewhere(self._services, name)

        def read(client: Client) -> letters.LettersPage:
            return letters.read_letters(client, name, all_bounds(client, name, spans, elsewhere), self._limits)

        return self._jobs.run(read).addCallback(view)

    # --- replays and loads ---------------------------------------------------------------------------------------

    def replays_page(self, fields: Fields) -> Any:
        def view(documents: dict[str, Any]) -> View:
            rows = replays.work_rows(documents)
            model = {"rows": rows, "points": replays.rows_over_time(rows)}
            return View("replays.html", "Replays and loads", REPLAYS, model)

        return self._work().addCallback(view)

    def replay_page(self, fields: Fields) -> Any:
        key = fields.text("key")

        def view(documents: dict[str, Any]) -> View:
            if key not in documents:
                raise NotThere(f"no replay or load has the key {key!r}")
            return View("replay.html", f"Of {key}", REPLAYS, replays.work_page(key, documents[key]))

        return self._work().addCallback(view)

    def _work(self) -> Any:
        spans = messages.spans_of(self._services, REPLAYS_TOPIC)
        elsewhere = led_elsewhere(self._services, REPLAYS_TOPIC)

        def read(client: Client) -> dict[str, Any]:
            span = all_bounds(client, REPLAYS_TOPIC, spans, elsewhere).get(0, UNKNOWN)
            return {} if span.end == span.start else replays.read_documents(client, span)

        return self._jobs.run(read)
