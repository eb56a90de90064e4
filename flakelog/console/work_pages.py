"""The pages of topologies, of dead letters, and of replays and loads, which are read from topics."""

from typing import Any
from urllib.parse import quote

from broker.services.context import BrokerServices
from flakelog.config import ServerConfig
from flakelog.console import letters, messages, replays, topologies
from flakelog.console.broker_pages import ConsoleServer, LivePart
from flakelog.console.history import SeriesByName
from flakelog.console.message_pages import Jobs
from flakelog.console.pages import NotThere, View
from flakelog.console.visit import Fields

TOPOLOGIES, REPLAYS = "/console/topologies", "/console/replays"
TOPOLOGIES_TOPIC = "__flakelog_topologies"


class WorkPages:
    """The pages of what works on the log. Each method returns a Deferred of a View."""

    def __init__(self, server: ConsoleServer, services: BrokerServices, jobs: Jobs, config: ServerConfig) -> None:
        self._server = server
        self._services = services
        self._jobs = jobs
        self._limits = messages.Limits(config.console_page_records, config.console_page_bytes)
        self._series = SeriesByName(topologies.POINTS)

    def live(self, fields: Fields, since_ms: int) -> Any:
        """Return a Deferred of the live part of a page, None if `page` is not one of these."""
        if fields.text("page") == "topologies":
            found = self._documents().addCallback(topologies.topology_rows)
            return found.addCallback(lambda rows: LivePart("topologies_live.html", rows))
        if fields.text("page") == "topology":
            id = fields.text("id")

            def part(page: topologies.TopologyPage) -> LivePart:
                return LivePart("topology_live.html", page, {"topology": self._series.of(id).columns(since_ms)})

            return self._topology(id).addCallback(part)
        return None

    # --- topologies ----------------------------------------------------------------------------------------------

    def topologies_page(self, fields: Fields) -> Any:
        def view(rows: list[topologies.TopologyRow]) -> View:
            return View("topologies.html", "Topologies", TOPOLOGIES, rows, "topologies")

        return self._documents().addCallback(topologies.topology_rows).addCallback(view)

    def topology_page(self, fields: Fields) -> Any:
        id = fields.text("id")

        def view(page: topologies.TopologyPage) -> View:
            model = {"now": page, "points": self._series.of(id).columns()}
            stream = f"topology&id={quote(id, safe='')}"
            return View("topology.html", f"Topology {page.row.name}", TOPOLOGIES, model, stream)

        return self._topology(id).addCallback(view)

    def _topology(self, id: str) -> Any:
        def found(documents: list[dict[str, Any]]) -> topologies.TopologyPage:
            page = topologies.topology_page(documents, id)
            if page is None:
                raise NotThere(f"no topology with the id {id!r} runs now")
            series, now_ms = self._series.of(id), self._server.clock.now_ms()
            if series.is_due(now_ms):
                series.add(now_ms, topologies.points_of(page.row, page.components))
            return page

        return self._documents().addCallback(found)

    def _documents(self) -> Any:
        partitions = list(messages.spans_of(self._services, TOPOLOGIES_TOPIC))
        now_ms = self._server.clock.now_ms()
        read = topologies.read_documents
        return self._jobs.run(lambda client: read(client, TOPOLOGIES_TOPIC, partitions, now_ms))

    # --- dead letters --------------------------------------------------------------------------------------------

    def letters_page(self, fields: Fields, name: str) -> Any:
        if self._services.metadata.topic(name) is None:
            raise NotThere(f"there is no topic {name!r}; no message was given up, or its letters are elsewhere")
        spans = messages.spans_of(self._services, name)

        def view(page: letters.LettersPage) -> View:
            return View("letters.html", f"Dead letters in {name}", TOPOLOGIES, page)

        return self._jobs.run(lambda client: letters.read_letters(client, name, spans, self._limits)).addCallback(view)

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
        spans = messages.spans_of(self._services, replays.TOPIC)
        span = spans.get(0, messages.Span(0, 0))
        return self._jobs.run(lambda client: {} if span.end == span.start else replays.read_documents(client, span))
