"""Pages as values: a template with its model, and the HTML that Jinja makes of them.

Jinja escapes every value (autoescape), and refuses a name that the model does not have (StrictUndefined).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from broker.security.sasl.listeners import SCRAM_NUMBERS
from broker.version import VERSION
from flakelog.console import text
from flakelog.console.access import MissingRight
from flakelog.console.messages import Row
from flakelog.console.rules import KINDS, VERBS, word_of
from flakelog.console.security import Session
from flakelog.visible_text import visible

HTMX, UPLOT = "htmx-2.0.11.min.js", "uPlot-1.6.32"
NAVIGATION = (
    ("/", "Overview"),
    ("/console/topics", "Topics"),
    ("/console/groups", "Groups"),
    ("/console/transactions", "Transactions"),
    ("/console/quotas", "Quotas"),
    ("/console/rules", "Rules"),
    ("/console/users", "Users"),
    ("/console/ids", "Ids"),
    ("/console/topologies", "Topologies"),
    ("/console/mirrors", "Mirrors"),
    ("/console/replays", "Replays and loads"),
)


class View(NamedTuple):
    """A page to show. `here` is its place in the navigation; `stream` is its address of live figures, if it has any."""

    template: str
    title: str
    here: str
    model: Any
    stream: str = ""
    status: int = 200


class NotThere(Exception):
    """Something that a page's address names does not exist; the message says what.

    `more` is the address and the text of a link to something near it, if there is something.
    """

    def __init__(self, reason: str, more: tuple[str, str] | None = None) -> None:
        super().__init__(reason)
        self.more = more


def environment(principal: str = "") -> Environment:
    """Return the templates, compiled, with the filters that they use.

    With an authorizer, all pages name the principal that the console acts as.
    """
    made = Environment(
        loader=PackageLoader("flakelog.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=text.number, size=text.size, duration=text.duration, time=text.time, shown=text.shown,
        visible=visible, word=word_of,
    )  # fmt: skip
    made.tests.update(typable=text.is_typable)
    made.globals.update(kinds=tuple(KINDS), verbs=tuple(VERBS), mechanisms=tuple(SCRAM_NUMBERS))
    made.globals.update(version=VERSION, navigation=NAVIGATION, htmx=HTMX, uplot=UPLOT, principal=principal)
    for name in made.list_templates(["html"]):
        made.get_template(name)
    return made


def error_view(
    status: int, reason: str, more: tuple[str, str] | None = None, title: str = "Not shown"
) -> View:
    """Return the page that says why something is not shown, or not done; `more` is a link's address and text."""
    model = {"status": status, "reason": reason, "more": more, "command": ""}
    return View("error.html", title, "", model, status=status)


def missing_view(missing: MissingRight, title: str = "Not shown") -> View:
    """Return the page that names a right that the console lacks, with the command that grants it."""
    model = {"status": 403, "reason": missing.reason, "more": None, "command": missing.command}
    return View("error.html", title, "", model, status=403)


def render(templates: Environment, view: View, session: Session | None, is_locked: bool) -> bytes:
    """Return the HTML of a page."""
    csrf = "" if session is None else session.csrf
    html = templates.get_template(view.template).render(
        view=view, model=view.model, csrf=csrf, is_locked=is_locked and session is not None
    )
    return html.encode()


def render_part(templates: Environment, template: str, model: Any) -> str:
    """Return the HTML of a part of a page."""
    return templates.get_template(template).render(model=model, part="")


def render_rows(templates: Environment, topic: str, rows: Sequence[Row]) -> str:
    """Return the HTML of new rows of a live tail."""
    return templates.get_template("message_rows.html").render(rows=rows, topic=topic, fresh=True)
