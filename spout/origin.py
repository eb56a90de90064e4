"""Where a tuple comes from: its messages, and the path of emits that leads from them to it.

A message gives tuples with the same origins at every attempt, if each spout and bolt on the path emits the same tuples
in the same order for the same input. A bolt can therefore recognise a tuple it has applied before.

Each emit adds one link to its tuple. The origin is computed from the links only when a bolt asks for it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol


class MessagePlace(NamedTuple):
    """The place of a message in a log.

    `topic` is the topic's id, or its name where the broker has no ids. For a tuple of a user's spout, the three values
    are the spout's component, the index of its task and the id it emitted with.
    """

    topic: str
    partition: int
    offset: Any


class Origin(NamedTuple):
    """The messages of a tuple, and (component, number of the emit) of each emit from the spout to the tuple.

    Numbers start at 0 for each message in a spout, and for each input tuple in a bolt. A tuple anchored to several
    tuples has the messages of all of them and the path of the first.
    """

    messages: tuple[MessagePlace, ...]
    path: tuple[tuple[str, int], ...]


class OriginSpout(Protocol):
    """The spout, as far as an origin needs it."""

    def place(self, id: Any) -> MessagePlace: ...

    def details(self, id: Any) -> Mapping[str, object]: ...


class Link:
    """A link from a tuple to what it was emitted from: a spout's message, or the links of a bolt's anchors."""

    __slots__ = ("component", "number", "source", "id", "parents")

    def __init__(
        self, component: str, number: int, source: OriginSpout | None, id: Any = None, parents: "tuple[Link, ...]" = ()
    ) -> None:
        self.component = component
        self.number = number
        self.source = source
        self.id = id
        self.parents = parents

    def origin(self) -> Origin:
        """Return the origin of the link's tuple."""
        messages = {source.place(id): None for source, id in self.roots()}
        path = []
        link: Link | None = self
        while link is not None:
            path.append((link.component, link.number))
            link = link.parents[0] if link.parents else None
        return Origin(tuple(messages), tuple(reversed(path)))

    def details(self, limit: int) -> list[Mapping[str, object]]:
        """Return the details of the first `limit` messages, for the log."""
        messages: list[Mapping[str, object]] = []
        for source, id in self.roots():
            details = source.details(id)
            if details not in messages:
                messages.append(details)
            if len(messages) == limit:
                break
        return messages

    def roots(self) -> Iterator[tuple[OriginSpout, Any]]:
        """Iterate over the spouts and the ids that they emitted the tuple's messages with; a pair may come twice."""
        if self.source is not None and self.id is not None:
            yield self.source, self.id
        for parent in self.parents:
            yield from parent.roots()
