"""The pages that read messages. Each checks its fields, and reads in a thread; the result is a view."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

from broker.client.blocking import Client
from broker.client.log_record import Record
from broker.client.records import PoisonBatch
from broker.services.context import BrokerServices
from coordination.errors import quoted
from flakelog.config import ServerConfig
from flakelog.console import messages
from flakelog.console.access import Access
from flakelog.console.pages import NotThere, View
from flakelog.console.partitions_elsewhere import UNKNOWN, all_bounds, candidates_elsewhere, led_elsewhere
from flakelog.console.visit import BadField, Fields
from idgen.layout import ID_BITS, Layout

HERE = "/console/topics"


class Jobs(Protocol):
    """Threads with a client of the broker."""

    def run(self, job: Callable[[Client], Any], /) -> Any:
        """Return a Deferred of the job's result."""
        ...

    def change(self, job: Callable[[Client], Any], ended: Callable[[Any], Any], /) -> Any:
        """Run a job that changes something, to its end; return a Deferred of what `ended` makes of its result."""
        ...


class Raw(NamedTuple):
    """Bytes of a message, to be downloaded under a name."""

    name: str
    data: bytes


class MessagePages:
    """The pages of messages of one broker."""

    def __init__(
        self, services: BrokerServices, access: Access, jobs: Jobs, config: ServerConfig, layout: Layout
    ) -> None:
        self._services = services
        self._access = access
        self._jobs = jobs
        self._limits = messages.Limits(config.console_page_records, config.console_page_bytes)
        self._layout = layout

    def messages_page(self, fields: Fields, name: str) -> Any:
        """Return a Deferred of the page of a topic's messages, or the form of one that is refused, with the reason."""
        self._check(name)
        start, value = fields.text("start", messages.NEWEST), fields.text("value")
        spans, elsewhere = messages.spans_of(self._services, name), led_elsewhere(self._services, name)
        choices = dict(sorted({**dict.fromkeys(elsewhere, UNKNOWN), **spans}.items()))
        try:
            query = messages.query_of(name, fields.text("partition"), start, value)
        except BadField as error:
            refused = messages.Query(name, _number_in(choices, fields.text("partition")), start, text=value)
            page = messages.MessagePage(refused, (), choices, None, None, {}, wrong=str(error))
            return View("messages.html", f"Messages of {name}", HERE, page, status=400)
        if query.partition is not None and query.partition not in choices:
            offline = self._services.logs.offline.get(f"{name}-{query.partition}")
            why = "has no such partition, or no broker serves it now" if offline is None else f"is offline: {offline}"
            raise NotThere(f"{name}-{query.partition} {why}")

        def view(page: messages.MessagePage) -> View:
            stream = ""
            if query.start == messages.NEWEST:
                only = "" if query.partition is None else f"&partition={query.partition}"
                shown = {number: at for number, at in page.positions.items() if query.partition in (None, number)}
                stream = f"tail&topic={quote(name)}{only}&at={messages.positions_text(shown)}"
            return View("messages.html", f"Messages of {name}", HERE, page, stream)

        def read(client: Client) -> messages.MessagePage:
            if query.partition is None:
                return messages.read_page(client, query, all_bounds(client, name, spans, elsewhere), self._limits)
            wanted = {query.partition} & {*elsewhere}
            return messages.read_page(client, query, choices | all_bounds(client, name, {}, wanted), self._limits)

        return self._jobs.run(read).addCallback(view)

    def message_page(self, fields: Fields, name: str) -> Any:
        """Return a Deferred of the page of one message."""
        partition, offset = fields.number("partition"), fields.number("offset")

        def view(read: tuple[Record, messages.PartitionBounds]) -> View:
            record, span = read
            row = messages.row_of(partition, record, messages.WHOLE_CHARACTERS)
            parts = None if row.id is None else self._layout.unpack(row.id)
            model = {"topic": name, "row": row, "id": parts, "span": span}
            return View("message.html", f"{name}-{partition}, offset {offset}", HERE, model)

        self._check(name)
        return self._read_one(name, partition, offset).addCallback(view)

    def raw(self, fields: Fields, name: str) -> Any:
        """Return a Deferred of a message's value or key, as Raw."""
        partition, offset, part = fields.number("partition"), fields.number("offset"), fields.text("part", "value")
        self._check(name)

        def raw_of(read: tuple[Record, messages.PartitionBounds]) -> Raw:
            record, _ = read
            return Raw(f"{name}-{partition}-{offset}.{part}", (record.key if part == "key" else record.value) or b"")

        if part not in ("key", "value"):
            raise NotThere(f"a message has a key and a value, and no {quoted(part)}")
        return self._read_one(name, partition, offset).addCallback(raw_of)

    def find_page(self, fields: Fields) -> Any:
        """Return a Deferred of the address of the message with an id. Raise NotThere."""
        id = fields.number("id")
        if not 0 < id < 1 << ID_BITS:
            raise NotThere("no message has the id 0")
        sees_topic = self._access.sees_topic
        candidates = messages.candidates(self._services, id, sees_topic)
        candidates += candidates_elsewhere(self._services, messages.CANDIDATES_MAX - len(candidates), sees_topic)

        def address(position: tuple[str, int, int] | None) -> str:
            if position is None:
                raise NotThere(f"no message has the id {id}; {len(candidates):,} partitions may hold it, and do not")
            return f"{HERE}/{position[0]}/message?" + urlencode({"partition": position[1], "offset": position[2]})

        return self._jobs.run(lambda client: messages.find_id(client, candidates, id)).addCallback(address)

    # --- the live tail -------------------------------------------------------------------------------------------

    def tail(self, fields: Fields, last: str) -> "TailOf":
        """Return the live tail of a topic from the positions that `last` or the field `at` names. Raise NotThere.

        It follows one partition if the field `partition` names one, and otherwise all, those added later included.
        """
        name = fields.text("topic")
        self._check(name)
        return TailOf(name, messages.parse_positions(last or fields.text("at")), not fields.text("partition"), self)

    def spans(self, name: str) -> dict[int, messages.PartitionBounds]:
        """Return the offsets of each partition of a topic. Raise NotThere."""
        self._check(name)
        return messages.spans_of(self._services, name)

    def read_tail(self, name: str, positions: dict[int, int], spans: dict[int, messages.PartitionBounds]) -> Any:
        """Return a Deferred of the Tail after these positions, or None at once if nothing is new."""
        if not any(number in spans and spans[number].end > at for number, at in positions.items()):
            return None
        return self._jobs.run(lambda client: messages.read_tail(client, name, positions, spans, self._limits))

    # --- internals

    def _check(self, name: str) -> None:
        """Raise MissingRight or NotThere unless the topic may be seen."""
        self._access.require_topic(name)
        if self._services.metadata.topic(name) is None:
            raise NotThere(f"there is no topic {name!r}")

    def _read_one(self, name: str, partition: int, offset: int) -> Any:
        """Return a Deferred of the message at an offset, and of the offsets of its partition."""
        spans = messages.spans_of(self._services, name)
        wanted = {partition} & {*led_elsewhere(self._services, name)}
        nothing = f"{name}-{partition} has no message at offset {offset}"

        def check(span: messages.PartitionBounds | None) -> messages.PartitionBounds:
            if span is None or not span.start <= offset < span.end:
                raise NotThere(nothing)
            return span

        def read(client: Client) -> tuple[Record, messages.PartitionBounds]:
            span = check(all_bounds(client, name, spans, wanted).get(partition))
            return checked(messages.read_one(client, name, partition, offset)), span

        def checked(record: Record | PoisonBatch | None) -> Record:
            if record is None:  # compaction removed it, or it is the marker of a transaction
                query = urlencode({"partition": partition, "start": messages.OFFSET, "value": offset})
                raise NotThere(nothing, (f"{HERE}/{name}/messages?{query}", "Show the next messages"))
            if isinstance(record, PoisonBatch):
                raise NotThere(f"the message cannot be shown: {record}")
            return record

        if not wanted:
            check(spans.get(partition))
        return self._jobs.run(read)


def _number_in(spans: dict[int, messages.PartitionBounds], partition: str) -> int | None:
    """Return the number of a partition that is here, None for any other text."""
    return next((number for number in spans if str(number) == partition), None)


class TailOf:
    """The live tail of one page: the positions that were shown, from which it continues."""

    def __init__(self, topic: str, positions: dict[int, int], follows_all: bool, pages: MessagePages) -> None:
        self.topic = topic
        self.positions = positions
        self._follows_all = follows_all
        self._begun = False
        self._pages = pages

    def read(self) -> Any:
        """Return a Deferred of a Tail, whose positions are taken over, or None if nothing is new.

        Raise NotThere if the topic was deleted. A topic that was made again is read from its start.
        """
        spans = self._pages.spans(self.topic)
        for number, span in spans.items():
            if self.positions.get(number, 0) > span.end:
                self.positions[number] = span.start
        if self._follows_all:
            for number, span in spans.items():  # a partition that was not known before is new, and read from its start
                self.positions.setdefault(number, span.start if self._begun else span.end)
        self._begun = True
        tail = self._pages.read_tail(self.topic, self.positions, spans)
        return None if tail is None else tail.addCallback(self._take)

    def _take(self, tail: messages.Tail) -> messages.Tail:
        self.positions = dict(tail.positions)
        return tail
