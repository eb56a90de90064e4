"""Templates: requests that were decoded once and are recognised by their constant bytes afterwards.

Clients repeat their requests with other records or another offset. A template holds the decoded request without what
changes, and the answer without its numbers; its key is the bytes that are constant. So a request that repeats them
costs one lookup, and gives the same request object as the full decoder. A request without a template is decoded in
full.

    Produce      for one partition: all but the records                         broker.wire.produce_template
    Produce      for partitions of one topic: all but their indexes and records broker.wire.multi_produce_template
    Fetch        of one partition: all but session, epoch and fetch offset      broker.wire.fetch_template
    ListOffsets  of places in logs, such as their ends: the whole request       broker.wire.list_offsets_template
"""

from typing import Any, Protocol, TypeAlias

from broker.wire.frame import Part, RequestHeader

KEY_BYTES_MAX = 512  # a template keeps its key; a request with a client id or topic name this long is decoded each time

Key: TypeAlias = tuple[int, *tuple[bytes, ...]]
"""API key and version, as they are in a frame, then the constant bytes of the request."""


class TemplateStore:
    """The templates of one broker, at most `most` of them; those unused for longest are dropped.

    Half of the room is for templates used lately. When it is full, it becomes the half of the older ones, and the
    older ones are dropped: a hit costs one lookup, with no order to keep. A key may have None in place of a template,
    so that it is not tried again.
    """

    def __init__(self, most: int) -> None:
        self._most_lately = max(most // 2, 1)
        self._keeps_before = most > 1
        self.lately: dict[Key, Any] = {}
        """The half of the templates used lately, for a lookup without a call; `find` searches both halves."""
        self._before: dict[Key, Any] = {}

    def __len__(self) -> int:
        return len(self.lately) + len(self._before)

    def __contains__(self, key: Key) -> bool:
        return key in self.lately or key in self._before

    def find(self, key: Key) -> Any:
        """Return the template of a key, or None. The template counts as used lately from now on."""
        # None is a value here: a key that was tried and has no template. Only a key that is missing is looked up in the
        # older half, and moves to the younger one.
        template = self.lately.get(key)
        if template is None and key not in self.lately and key in self._before:
            template = self._before[key]
            self.add(key, template)
        return template

    def add(self, key: Key, template: Any) -> None:
        if len(self.lately) >= self._most_lately:
            self._before, self.lately = self.lately if self._keeps_before else {}, {}
        self.lately[key] = template


class Template(Protocol):
    """The template of a request that its handler executes as if it had been decoded in full."""

    api_key: int
    version: int
    client_id: str | None

    def encode(self, correlation_id: int, response: Any) -> tuple[list[Part], int] | None:
        """Return the whole answer and its size in bytes; None if it has to be encoded in full."""
        ...


Opened: TypeAlias = tuple[Template, int, Any, memoryview | None]
"""A frame that a template has read: the template, the correlation id, the request, and the records.

A Produce for one partition has its records here, because its request is always the template's. Others have None.
"""


class Templates(Protocol):
    """The templates of one API."""

    def open(self, frame: memoryview) -> Opened | None:
        """Return what a template reads of a frame; None if it has to be decoded in full.

        The frame is without its length.
        """
        ...

    def learn(self, frame: memoryview, header: RequestHeader, request: Any) -> None:
        """Make a template of a request that was decoded in full, if one like it may come again."""
        ...
