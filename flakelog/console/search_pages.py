"""The page of a search. It shows one part of the range, and has the address of the next part.

The page's script asks for one part after the other, until the search has read, found or taken as much as a round may.
Nothing is kept here between two parts, so a search ends with its page.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from broker.client.blocking import Client
from broker.services.context import BrokerServices
from flakelog.config import ServerConfig
from flakelog.console import messages, search
from flakelog.console.access import Access
from flakelog.console.message_pages import HERE, Jobs
from flakelog.console.pages import NotThere, View
from flakelog.console.partitions_elsewhere import all_bounds, led_elsewhere
from flakelog.console.visit import BadField, Fields

Bounds = Mapping[int, messages.PartitionBounds]
RANGE = ("text", "partition", "start", "value", "end", "end_value")


class Counts(NamedTuple):
    """How much a search has read and found so far, in which round, and when that round began."""

    bytes: int
    messages: int
    matches: int
    round: int
    since_ms: int


class SearchPage(NamedTuple):
    """A part of a search. `following` is the address of the next part, empty at the end.

    `goes_on` says that the script asks for it at once; otherwise the visitor may. Without a text, nothing is searched.
    `wrong` is why the form was refused.
    """

    topic: str
    given: dict[str, str]
    partitions: list[int]
    matches: Any = ()
    counts: Counts | None = None
    percent: int = 0
    following: str = ""
    goes_on: bool = False
    wrong: str = ""


class SearchPages:
    """The searches in one broker."""

    def __init__(
        self,
        services: BrokerServices,
        access: Access,
        jobs: Jobs,
        config: ServerConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._services = services
        self._access = access
        self._jobs = jobs
        self._matches_max = config.console_page_records
        self._bytes_max = config.console_search_bytes
        self._timeout_ms = config.console_search_timeout_ms
        self._now_ms = now_ms

    def search_page(self, fields: Fields, name: str) -> Any:
        """Return the form of a search, or a Deferred of the part that the fields ask for. Raise NotThere, BadField.

        A range that is refused is shown with its form, so that the visitor can correct it.
        """
        self._access.require_topic(name)
        if self._services.metadata.topic(name) is None:
            raise NotThere(f"there is no topic {name!r}")
        spans, elsewhere = messages.spans_of(self._services, name), led_elsewhere(self._services, name)
        partitions = sorted({*spans, *elsewhere})
        page = SearchPage(name, {field: fields.text(field) for field in RANGE}, partitions)
        remainder = search.parse_remainder(fields.text("at"))
        try:
            wanted = search.search_of(name, fields)
        except BadField as error:
            return self._view(page._replace(wrong=str(error)))._replace(status=400)
        partition = wanted.start.partition
        if partition is not None and partition not in partitions:
            raise NotThere(f"{name}-{partition} is not here, or is offline")
        if not wanted.text:
            return self._view(page)
        before = self._counts(fields)

        def view(read: tuple[search.Slice, Bounds]) -> View:
            part, bounds = read
            counts = before._replace(
                bytes=before.bytes + part.bytes,
                messages=before.messages + part.messages,
                matches=before.matches + sum(bool(match.hits) for match in part.matches),
            )
            goes_on = part.remainder is not None and not self._is_over(counts)
            following = "" if part.remainder is None else self._address(page, part.remainder, counts, goes_on)
            percent = search.progress(wanted, part.remainder, bounds)
            return self._view(page._replace(
                matches=part.matches, counts=counts, percent=percent, following=following, goes_on=goes_on
            ))  # fmt: skip

        matches_max = min(max(before.round * self._matches_max - before.matches, 1), self._matches_max)

        def read(client: Client) -> tuple[search.Slice, Bounds]:
            bounds = all_bounds(client, name, spans, elsewhere)
            return search.search_slice(client, wanted, remainder, bounds, matches_max), bounds

        return self._jobs.run(read).addCallback(view)

    def _view(self, page: SearchPage) -> View:
        return View("search.html", f"Search in {page.topic}", HERE, page)

    def _counts(self, fields: Fields) -> Counts:
        read, count, matches = (fields.number(field) for field in ("read", "messages", "found"))
        return Counts(read, count, matches, fields.number("round", 1), fields.number("since", self._now_ms()))

    def _is_over(self, counts: Counts) -> bool:
        """Return True if a round of the search is over."""
        is_late = self._now_ms() - counts.since_ms >= self._timeout_ms
        is_much = counts.bytes >= counts.round * self._bytes_max or counts.matches >= counts.round * self._matches_max
        return is_late or is_much

    def _address(self, page: SearchPage, remainder: search.Remainder, counts: Counts, goes_on: bool) -> str:
        """Return the address of the next part, which begins a new round unless this one goes on."""
        more: dict[str, Any] = {"at": "-".join(map(str, remainder)), "read": counts.bytes}
        more |= {"messages": counts.messages, "found": counts.matches}
        more |= {"round": counts.round, "since": counts.since_ms} if goes_on else {"round": self._next_round(counts)}
        given = {name: value for name, value in page.given.items() if value}
        return f"{HERE}/{page.topic}/search?" + urlencode(given | more)

    def _next_round(self, counts: Counts) -> int:
        return max(counts.round, counts.bytes // self._bytes_max, counts.matches // self._matches_max) + 1
