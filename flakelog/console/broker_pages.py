"""The pages that need no message: each takes the fields of its address and returns a view of the broker's own state."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from broker.engine.engine import Engine
from broker.security.authorization.acl import Operation, ResourceType
from flakelog import health as told
from flakelog.console import groups, ids, overview, quotas, topics, transactions
from flakelog.console.access import Access
from flakelog.console.history import INTERVAL_MS, RateSeries, SeriesByName
from flakelog.console.own_place import OwnPlace
from flakelog.console.pages import NotThere, View
from flakelog.console.visit import Fields
from flakelog.settings import Settings

HOME = "/"


class ConsoleServer(told.WatchedServer, Protocol):
    """The parts of a server process that the console shows."""

    settings: Settings
    reactor: Any
    own_place: OwnPlace | None


class LivePart(NamedTuple):
    """The part of a page that changes: a template with its model, and the new points of the page's charts."""

    template: str
    model: Any
    points: Mapping[str, Any] = {}


class BrokerPages:
    """The pages of one server's broker, with the history of their charts."""

    def __init__(self, server: ConsoleServer, engine: Engine, access: Access) -> None:
        self._access = access
        self._server = server
        self._engine = engine
        self._services = engine.services
        self._throughput = RateSeries(overview.THROUGHPUT)
        self._ids = RateSeries(ids.RATE)
        self._lag = SeriesByName(groups.LAG)
        self._seen: tuple[int, overview.Overview] | None = None
        """The latest overview and its time. It counts all partitions, so the streams of several pages share it."""
        self.layout = server.settings.idgen.layout

    def live(self, fields: Fields, since_ms: int) -> LivePart:
        """Return the live part of the page that `page` names, with the points after a time. Raise NotThere."""
        match fields.text("page"):
            case "overview":
                model = self._overview(is_shared=True)
                return LivePart("overview_live.html", model, {"throughput": self._throughput.columns(since_ms)})
            case "group":
                group_id = fields.text("group")
                group = self._group(group_id, fields.number("number"))
                return LivePart("group_live.html", group, {"lag": self._lag.of(group_id).columns(since_ms)})
            case "transactions":
                return LivePart("transactions_live.html", self._transactions(fields.number("number")))
            case "ids":
                return LivePart("ids_live.html", self._ids_now(), {"ids": self._ids.columns(since_ms)})
            case page:
                raise NotThere(f"no page {page!r} has live figures")

    # --- pages ---------------------------------------------------------------------------------------------------

    def overview_page(self, fields: Fields) -> View:
        model = {"now": self._overview(), "throughput": self._throughput.columns()}
        return View("overview.html", "Overview", HOME, model, "overview")

    def topics_page(self, fields: Fields) -> View:
        search, sort = fields.text("search"), fields.text("sort", "name")
        of_broker, page = bool(fields.text("internal")), fields.number("page")
        model = topics.topic_list(self._services, self._access, search, sort, page, of_broker)
        return View("topics.html", "Topics", "/console/topics", model)

    def topic_page(self, fields: Fields, name: str) -> View:
        self._access.require_topic(name)
        model = topics.topic_page(self._services, self._access, name, fields.number("page"))
        if model is None:
            raise NotThere(f"there is no topic {name!r}")
        return View("topic.html", f"Topic {name}", "/console/topics", model)

    def groups_page(self, fields: Fields) -> View:
        model = groups.group_list(self._services, self._access, fields.text("search"), fields.number("page"))
        return View("groups.html", "Consumer groups", "/console/groups", model)

    def group_page(self, fields: Fields) -> View:
        group_id, page = fields.text("group"), fields.number("page")
        model = {"now": self._group(group_id, page), "lag": self._lag.of(group_id).columns()}
        stream = f"group&group={quote(group_id, safe='')}&number={page}"
        return View("group.html", f"Group {group_id}", "/console/groups", model, stream)

    def transactions_page(self, fields: Fields) -> View:
        page = fields.number("page")
        model = self._transactions(page)
        return View("transactions.html", "Transactions", "/console/transactions", model, f"transactions&number={page}")

    def quotas_page(self, fields: Fields) -> View:
        self._access.require(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        model = quotas.quota_page(self._services, fields.number("page"))
        return View("quotas.html", "Quotas", "/console/quotas", model)

    def ids_page(self, fields: Fields) -> View:
        text = fields.text("id")
        decoded = ids.decoded(text, self.layout) if text else None
        model = {"now": self._ids_now(), "rate": self._ids.columns(), "decoded": decoded}
        return View("ids.html", "Ids", "/console/ids", model, "ids")

    # --- samples -------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self._server.clock.now_ms()

    def sample(self) -> None:
        """Take a sample of throughput and ids, if one is due. Pages with live figures call this, so charts go on."""
        now_ms, service = self.now_ms, self._server.service
        if self._throughput.is_due(now_ms):
            self._throughput.count(now_ms, overview.counters(self._engine))
        if service is not None and self._ids.is_due(now_ms):
            self._ids.count(now_ms, [service.counters.ids])

    def _overview(self, is_shared: bool = False) -> overview.Overview:
        self._access.require(Operation.DESCRIBE, ResourceType.CLUSTER)
        now_ms = self.now_ms
        if is_shared and self._seen is not None and 0 <= now_ms - self._seen[0] < INTERVAL_MS // 2:
            return self._seen[1]
        self.sample()
        model = overview.overview(self._server, self._engine, self._throughput)
        self._seen = now_ms, model
        return model

    def _group(self, group_id: str, page: int) -> groups.GroupPage:
        self._access.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        model = groups.group_page(self._services, self._access, group_id, page)
        if model is None:
            raise NotThere(f"there is no group {group_id!r}")
        series, now_ms = self._lag.of(group_id), self.now_ms
        if series.is_due(now_ms):
            series.add(now_ms, [model.lag])
        return model

    def _transactions(self, page: int) -> transactions.Transactions:
        return transactions.transactions(self._services, self._access, self.now_ms, page)

    def _ids_now(self) -> ids.IdsPage:
        self.sample()
        last = self._ids.last
        return ids.ids_page(self._server, self.now_ms, None if last is None else last.values[0], self.layout)
