"""The field `__message`: where a tuple comes from, as text that travels with it through all bolts.

    [[[spout, topic, partition, offset, watermark, name], ...], [[component, number], ...]]

First come the messages, each with its place (spout.origin.MessagePlace), a watermark and the name of its topic. The
watermark is that of the partition's stored progress at the time of the emit, or -1 without any. A message of a user's
spout has null for watermark and name. Then comes the path of emits. An emit adds one item to the end of the path, so a
bolt changes the text without reading it.

If fields to group by had to change their type for Storm, a line comes first with their places and values:

    [[place, value], ...]
"""

import json
from collections.abc import Mapping, MutableMapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from spout.api import Emitter, Tuple
from spout.multilang.values import json_of, value_of, values_of
from spout.origin import Link, MessagePlace

NO_WATERMARK = -1

_loads = json.JSONDecoder().decode
_dumps = json.JSONEncoder(separators=(",", ":")).encode

Watermarks = MutableMapping[tuple[str, str, int], int]
"""The highest watermark seen of each partition, by spout, topic and partition."""


class _Source:
    """The source of messages that came over the wire. The id of a message is (place, name of its topic or None)."""

    def place(self, id: Any) -> MessagePlace:
        place: MessagePlace = id[0]
        return place

    def details(self, id: Any) -> Mapping[str, object]:
        place, name = id
        if name is None:
            return {"id": place.offset}
        return {"topic": name or place.topic, "partition": place.partition, "offset": place.offset}


_SOURCE = _Source()


class StormTuple(Tuple):
    """A tuple that Storm brought. `anchors` is its id there; `text` is the field `__message` without its first line.

    `came_ms` is when it came, by the process's clock; `wire` has its values and the field as they came. `is_again` is
    True for a tuple that spout.multilang.held kept.
    """

    __slots__ = ("text", "came_ms", "wire", "is_again", "_watermarks", "_link")

    def __init__(
        self,
        values: Sequence[Any],
        emitter: Emitter,
        id: str,
        text: str | None,
        watermarks: Watermarks,
        came_ms: int = 0,
        wire: tuple[Sequence[Any], str | None] = ((), None),
    ) -> None:
        super().__init__(values, emitter, id)
        self.text = text
        self.came_ms = came_ms
        self.wire = wire
        self.is_again = False
        self._watermarks = watermarks
        self._link: Link | None = None

    def again(self) -> "StormTuple":
        """Return a tuple to be executed in place of this one, as it came: its emits are numbered from 0 again.

        The bolt may have changed a list or a dict in its values.
        """
        row, field = self.wire
        values = values_of(row)
        restored(field, values)
        tup = StormTuple(
            tuple(values), self.emitter, self.anchors, self.text, self._watermarks, self.came_ms, self.wire
        )
        tup.is_again = True
        return tup

    @property
    def link(self) -> Link | None:
        """Return its link to what it was emitted from, or None if that is nothing. Note the watermarks on the way."""
        if self._link is None and self.text:
            messages, path = _loads(self.text)
            _note(messages, self._watermarks)
            self._link = _link_of(messages, path)
        return self._link

    def is_passed(self) -> bool:
        """Return True if stored progress has passed a message of the tuple, so that its attempt has ended."""
        if not self.text:
            return False
        for spout, topic, partition, offset, watermark, _ in _loads(self.text)[0]:
            stored = self._watermarks.get((spout, topic, partition))
            if watermark is not None and stored is not None and offset < stored:
                return True
        return False


def message_text(spout: str, number: int, place: MessagePlace | None, watermark: int | None, name: str | None) -> str:
    """Return the text of a tuple that a spout emits; without an id, it has no place."""
    path = f"[[{_dumps(spout)},{number}]]"
    if place is None:
        return f"[[],{path}]"
    position = f"{json_of(place.topic)},{json_of(place.partition)},{json_of(place.offset)}"
    return f"[[[{_dumps(spout)},{position},{_dumps(watermark)},{_dumps(name)}]],{path}]"


def message_parts(spout: str, topic: str, partition: int, name: str | None = None) -> tuple[str, str]:
    """Return the text of a message, inside JSON, in two parts: `offset,watermark` goes between, `number]]]"` after."""
    own = _dumps(spout)
    begin, end = f"[[[{own},{json_of(topic)},{partition},", f",{_dumps(name)}]],[[{own},"
    return f'"{inside_json(begin)}', inside_json(end)


def inside_json(text: str) -> str:
    """Return text as it stands between the quotes of JSON."""
    return encode_basestring(text)[1:-1]


def text_of_emit(component: str, number: int, anchors: Sequence[Tuple]) -> str | None:
    """Return the text of a tuple that a bolt emits, anchored to these; None if they come from nothing."""
    texts = [tup.text for tup in anchors if isinstance(tup, StormTuple) and tup.text]
    if not texts:
        return None
    step = f",[{_dumps(component)},{number}]]]"
    if len(texts) == 1:
        return texts[0][:-2] + step
    messages: dict[str, list[Any]] = {}
    for text in texts:
        for message in _loads(text)[0]:
            key = _dumps(message[:4])
            former = messages.get(key)
            if former is None or (message[4] is not None and message[4] > former[4]):
                messages[key] = message
    path = _loads(texts[0])[1]
    return _dumps([list(messages.values()), path])[:-2] + step


def field_of(text: str | None, originals: Sequence[tuple[int, Any]]) -> str | None:
    """Return the field `__message` for a text and the values, by place, that Storm has in another type."""
    if not originals:
        return text
    line = ",".join([f"[{index},{json_of(value)}]" for index, value in originals])
    return f"[{line}]\n{text or ''}"


def field_json(field: str | None) -> str:
    """Return the field as JSON."""
    return "null" if field is None else encode_basestring(field)


def restored(field: str | None, values: list[Any]) -> str | None:
    """Return the text of the field, after putting the values of its first line back into `values`."""
    if field is None or "\n" not in field:
        return field
    line, _, text = field.partition("\n")
    for index, value in _loads(line):
        values[index] = value_of(value)
    return text or None


def _link_of(messages: Sequence[Any], path: Sequence[Any]) -> Link:
    ids = [(MessagePlace(value_of(m[1]), value_of(m[2]), value_of(m[3])), m[5]) for m in messages]
    (spout, number), *steps = path
    link = Link(spout, number, _SOURCE, ids[0] if ids else None)
    others = tuple([Link(message[0], 0, _SOURCE, id) for message, id in zip(messages[1:], ids[1:])])
    for component, number in steps:
        link = Link(component, number, None, None, (link, *others))
        others = ()
    return link


def _note(messages: Sequence[Any], watermarks: Watermarks) -> None:
    for spout, topic, partition, _, watermark, _ in messages:
        if watermark is not None and watermark > watermarks.get((spout, topic, partition), NO_WATERMARK):
            watermarks[spout, topic, partition] = watermark
