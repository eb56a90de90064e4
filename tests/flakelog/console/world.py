"""A server process for the console's pages, over a broker in memory, and the HTML of its pages."""

from types import SimpleNamespace

from flakelog.console.broker_pages import BrokerPages
from flakelog.console.pages import environment, render, render_part
from flakelog.console.security import Session
from flakelog.console.visit import Fields
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


class World:
    """A broker in memory, and the pages over it."""

    def __init__(self, **settings):
        self.broker = EngineBroker(**settings)
        self.clock = Clock()
        self.server = SimpleNamespace(
            settings=Settings({}), engine=self.broker.engine, service=None, peers=None, clock=self.clock, claims=(),
            scope="memory", addresses={"broker": "127.0.0.1:9092", "http": "127.0.0.1:8609"}, serving=True,
            stopped=False, reactor=None,
        )  # fmt: skip
        self.pages = BrokerPages(self.server, self.broker.engine)

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
    return Fields({name.encode(): [str(value).encode()] for name, value in fields.items()})


def html_of(view):
    return render(TEMPLATES, view, Session("a", "csrf"), False).decode()
