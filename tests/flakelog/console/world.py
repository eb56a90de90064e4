"""A server process for the console's pages, over a broker in memory, and the HTML of its pages."""

from contextlib import contextmanager
from types import SimpleNamespace

from twisted.internet.defer import maybeDeferred

from broker.client.blocking import Client
from broker.client.connection import ClientConnection
from broker.client.errors import BrokerError
from broker.metadata.image import RegisteredBroker
from broker.security.altered_tls import AlteredTls
from flakelog.config import ServerConfig
from flakelog.console.access import Access
from flakelog.console.action_pages import ActionPages
from flakelog.console.broker_pages import BrokerPages
from flakelog.console.message_pages import MessagePages
from flakelog.console.pages import environment, render, render_part
from flakelog.console.rule_pages import RulePages
from flakelog.console.search_pages import SearchPages
from flakelog.console.security import Session
from flakelog.console.visit import Fields
from flakelog.console.work_pages import WorkPages
from flakelog.settings import Settings
from tests.broker.engine_client import WALL_MS, EngineBroker

TEMPLATES = environment()


class Clock:
    """The id clock of the server, moved by the test."""

    skew_ms = 0

    def __init__(self):
        self.ms = WALL_MS

    def now_ms(self):
        return self.ms


class MemoryClient(Client):
    """The blocking client of a broker in memory."""

    def __init__(self, broker, access=None):
        super().__init__("127.0.0.1:9092")
        self._access = access or Access(broker.services)
        self._api_key = -1
        self._peer = broker.connect(listener=broker.services.own_listener or "")
        self._decoder = ClientConnection("console")

    @contextmanager
    def explaining(self):
        try:
            yield
        except BrokerError as error:
            raise self._access.explained(error, self._api_key) from error

    def run(self, steps):
        with self.explaining():
            return super().run(steps)

    def give_up(self, address):
        """Every request is answered at once."""

    def send(self, exchange):
        self._api_key = exchange.api_key
        self._peer.feed(self._decoder.request(exchange)[1])

    def receive(self, address):
        size = 4 + int.from_bytes(self._peer.received[:4], "big")
        frame = memoryview(bytes(self._peer.received[4:size]))
        del self._peer.received[:size]
        return self._decoder.take(frame).body


class Jobs:
    """Jobs that are done at once, in the test's thread."""

    def __init__(self, broker, access):
        self.client = MemoryClient(broker, access)

    def run(self, job):
        return maybeDeferred(self._carry_out, job)

    def _carry_out(self, job):
        with self.client.explaining():
            return job(self.client)

    def change(self, job, ended):
        return self.run(job).addBoth(ended)


class World:
    """A broker in memory, and the pages over it. `user` is that of the console, which then has a separate listener."""

    def __init__(self, *, page_records=100, page_bytes=1 << 20, search_bytes=1 << 28, user=None, **settings):
        if user is not None:
            own = RegisteredBroker(1, {"": ("localhost", 9092), "CONSOLE": ("console", 0)})
            settings |= {"own": own, "membership": {"own_listener": "CONSOLE", "own_user": user}}
        self.broker = EngineBroker(**settings)
        self.clock = Clock()
        self.server = SimpleNamespace(
            settings=Settings({}), engine=self.broker.engine, service=None, peers=None, clock=self.clock, claims=(),
            tls=AlteredTls({}, {}, print),
            scope="memory", addresses={"broker": "127.0.0.1:9092", "http": "127.0.0.1:8609"}, serving=True,
            stopped=False, reactor=None,
        )  # fmt: skip
        access = Access(self.broker.services)
        self.pages = BrokerPages(self.server, self.broker.engine, access)
        self.jobs = Jobs(self.broker, access)
        config = ServerConfig(
            console_page_records=page_records, console_page_bytes=page_bytes, console_search_bytes=search_bytes
        )
        services = self.broker.services
        self.messages = MessagePages(services, access, self.jobs, config, self.pages.layout)
        self.search = SearchPages(services, access, self.jobs, config, self.clock.now_ms)
        self.work = WorkPages(self.server, services, access, self.jobs, config)
        self.actions = ActionPages(services, access, self.jobs, self.clock.now_ms)
        self.rules = RulePages(services, self.jobs)

    @property
    def client(self):
        return self.jobs.client

    def view(self, name, *path, **fields):
        return getattr(self.pages, f"{name}_page")(fields_of(fields), *path)

    def html(self, name, *path, **fields):
        """Return the page as a browser gets it."""
        return html_of(self.view(name, *path, **fields))

    def live(self, **fields):
        """Return the live part of a page and its points."""
        part = self.pages.live(fields_of(fields), 0)
        return render_part(TEMPLATES, part.template, part.model), part.points


def fields_of(fields):
    """Return fields as a form has them; a list gives one of them several times."""
    every = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    return Fields({name.encode(): [str(value).encode() for value in values] for name, values in every.items()})


def now(deferred):
    """Return the result of a Deferred that has fired; raise its error."""
    results = []
    deferred.addBoth(results.append)
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    return results[0]


def html_of(view):
    return render(TEMPLATES, view, Session("a", "csrf"), False).decode()
