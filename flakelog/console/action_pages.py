"""The pages of actions: a form, a plan to confirm, and the outcome. The log has a line for each confirmed action."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from broker.metadata.topic import Topic
from broker.services.context import BrokerServices
from flakelog.console import actions, rule_actions, user_actions
from flakelog.console.access import Access
from flakelog.console.actions import Action, Done, Planned, Task
from flakelog.console.message_pages import Jobs
from flakelog.console.pages import NotThere, View, error_view
from flakelog.console.topics import config_rows
from flakelog.console.visit import Fields
from flakelog.visible_text import visible_line

ACTIONS = actions.ACTIONS | rule_actions.ACTIONS | user_actions.ACTIONS
CONFIRMED = "yes"
LINE_CHARACTERS_MAX = 500


class ActionPages:
    """The actions of one broker."""

    def __init__(self, services: BrokerServices, access: Access, jobs: Jobs, now_ms: Callable[[], int]) -> None:
        self._services = services
        self._access = access
        self._now_ms = now_ms
        self._jobs = jobs

    def form_page(self, fields: Fields, name: str) -> View:
        """Return the form of an action. Raise NotThere, also for a topic that is not there."""
        action = self._action(name)
        if not action.form:
            raise NotThere(f"{action.title.lower()} begins on another page")
        topic = fields.text("topic").strip()
        if topic and self._topic(topic) is None:
            raise NotThere(f"there is no topic {topic!r}")
        return self._form(fields, name, action)

    def _topic(self, name: str) -> Topic | None:
        """Return a topic that the visitor may see, None if there is none."""
        topic = self._services.metadata.topic(name)
        return topic if topic is not None and self._access.sees_topic(topic.name) else None

    def refused(self, fields: Fields, name: str, status: int, reason: str) -> View:
        """Return the form of a refused action, with the visitor's fields and the reason. Raise NotThere."""
        action = self._action(name)
        if not action.form:
            return error_view(status, reason, (_back(fields), "Back"), "Not done")
        return self._form(fields, name, action, reason, status)

    def _form(self, fields: Fields, name: str, action: Action, wrong: str = "", status: int = 200) -> View:
        topic = self._topic(fields.text("topic").strip())
        model = {
            "name": name,
            "title": action.title,
            "wrong": wrong,
            "given": {field: fields.text(field) for field in action.fields},
            "configs": [] if topic is None else config_rows(self._services, self._access, topic),
            "partitions": 0 if topic is None else len(topic.partitions),
        }
        return View(action.form, action.title, "", model, status=status)

    def act(self, fields: Fields, name: str, peer: str, *, is_in_plain_text: bool = False) -> Any:
        """Return a Deferred of the plan to confirm, or of the outcome if the form says that it was confirmed.

        `is_in_plain_text` says that the network can read what the visitor sends; a plan that asks for a password warns.
        """
        action = self._action(name)
        if fields.text("confirmed") != CONFIRMED:
            planned = self._jobs.run(lambda client: action.plan(client, fields))
            return planned.addCallback(
                lambda plan: self._plan_view(name, action, fields, plan, is_in_plain_text=is_in_plain_text)
            )
        lines: list[str] = []

        def ended(result: Any) -> Any:
            is_done = isinstance(result, Done)
            outcome = "done" if is_done else f"failed: {result.getErrorMessage()}"
            self._services.report(_line(f"console: {peer} asked for {name} ({_given(action, fields)}): {outcome}"))
            for line in lines:
                self._services.report(_line(f"console: {line}"))
            return View("done.html", action.title, "", result) if is_done else result

        task = Task(lines.append, self._now_ms())
        return self._jobs.change(lambda client: action.carry_out(client, fields, task), ended)

    def _plan_view(
        self, name: str, action: Action, fields: Fields, planned: Planned, *, is_in_plain_text: bool
    ) -> View:
        hidden = [(field, value) for field in action.fields for value in fields.every(field)]
        hidden = [*(pair for pair in hidden if pair[0] not in planned.seen), *planned.seen.items()]
        if action.details is not None:
            planned = planned._replace(rows=[*planned.rows, *action.details(self._services, self._access, fields)])
        model: dict[str, Any] = {"name": name, "title": action.title, "planned": planned, "hidden": hidden}
        model |= {"back": _back(fields), "secrets": action.secrets, "is_in_plain_text": is_in_plain_text}
        return View("confirm.html", action.title, "", model)

    def _action(self, name: str) -> Action:
        if name not in ACTIONS:
            raise NotThere(f"there is no action {name!r}")
        return ACTIONS[name]


def _back(fields: Fields) -> str:
    """Return the page that an action was begun on."""
    if group := fields.text("group"):
        return f"/console/group?group={quote(group, safe='')}"
    if topic := fields.text("letters"):
        return f"/console/letters/{quote(topic, safe='')}"
    if fields.text("mirror"):
        return "/console/mirrors"
    if fields.text("principal"):
        return "/console/rules"
    if fields.text("user"):
        return "/console/users"
    return f"/console/topics/{quote(fields.text('topic'), safe='')}".rstrip("/")


def _given(action: Action, fields: Fields) -> str:
    logged = [field for field in action.fields if field not in action.unlogged and fields.text(field)]
    return ", ".join(f"{field}={'+'.join(fields.every(field))!r}" for field in logged)


def _line(text: str) -> str:
    """Return a line of the log, on which nothing is hidden and which is not too long."""
    shown = visible_line(text)
    return shown if len(shown) <= LINE_CHARACTERS_MAX else shown[: LINE_CHARACTERS_MAX - 1] + "…"
