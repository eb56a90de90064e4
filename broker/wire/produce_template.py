"""Produce requests that repeat all but their records: decoded once (broker.wire.templates).

A producer sends the same client id, acks, timeout, topic and partition around ever new records. The bytes from the
client id up to the length of the records are the key of a template. A request for several partitions of a topic has
another kind of template (broker.wire.multi_produce_template), with a key of the same form. Any other request, and one
with tagged fields, has no template: `broker.wire.produce` decodes it.

    api key, version | correlation id | client id ... partition index | length | records | three empty tag sections
    4 bytes          | 4 bytes        | the template's key            |        |         | in flexible versions
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from broker.wire import produce
from broker.wire.errors import WireError
from broker.wire.frame import LENGTH_BYTES, Part
from broker.wire.multi_produce_template import (
    KEY_START,
    MARK,
    NO_RECORDS,
    RESULT,
    MultiProduceTemplate,
    multi_template_of,
    request_of,
)
from broker.wire.primitives import read_length
from broker.wire.produce import LOG_START_OFFSETS, PartitionResult, ProduceRequest
from broker.wire.templates import KEY_BYTES_MAX, TemplateStore

_head_from = struct.Struct(">Iih").unpack_from  # API key and version, correlation id, length of the client id
_CLIENT_START = 10  # where the client id begins
_ACKS_TIMEOUT_BYTES = 6
_INDEX_BYTES = 4
_COUNT_BYTES = 4
_TOPIC_ID_BYTES = 16
_NO_TAGS = b"\0\0\0"  # of the partition, the topic and the request
_tags_from = struct.Struct(">HB").unpack_from  # as integers, because a slice of a view costs more
_TAG_BYTES = len(_NO_TAGS)
_NO_TAG_NUMBERS = 0, 0
_i16_from = struct.Struct(">h").unpack_from
_i32_from = struct.Struct(">i").unpack_from


@dataclass(slots=True)
class ProduceTemplate:
    """A request for one partition without its records, and the answer to it."""

    api_key = produce.API_KEY

    version: int
    client_id: str | None
    request: ProduceRequest
    """The request without records."""
    key_end: int
    """The end of the key in a frame without its length."""
    reply: Callable[..., bytes]
    reply_bytes: int
    """The size of an answer without its length."""
    before: bytes
    after: bytes

    def encode_reply(self, correlation_id: int, base_offset: int, append_ms: int, log_start_offset: int) -> bytes:
        """Return the whole answer to a batch that was appended, its length included."""
        return self.reply(
            self.reply_bytes, correlation_id, self.before, 0, base_offset, append_ms, log_start_offset, self.after
        )

    def encode(self, correlation_id: int, response: Any) -> tuple[list[Part], int] | None:
        """Return None: any other answer than `encode_reply`'s has to be encoded in full."""
        return None


AnyTemplate: TypeAlias = ProduceTemplate | MultiProduceTemplate | None

OpenedProduce: TypeAlias = tuple[ProduceTemplate | MultiProduceTemplate, int, ProduceRequest, memoryview | None]
"""`Opened`, with the types of Produce."""


class ProduceTemplates:
    """The templates of Produce in a store."""

    def __init__(self, store: TemplateStore) -> None:
        self._store = store

    def open(self, frame: memoryview, guess: int) -> OpenedProduce | None:
        """Return what a template reads of a frame; None if it has to be decoded in full.

        The frame comes without its length. `guess` is a likely end of the key: the `key_end` of the connection's last
        template. Records are views into the frame.
        """
        try:
            version, correlation_id, client_bytes = _head_from(frame)
            if version > produce.VERSION_MAX or version < LOG_START_OFFSETS:
                return None
            # A key contains its own length, so a match is the right template even if the guess was for another one.
            template: AnyTemplate = self._store.lately.get((version, frame[KEY_START:guess].tobytes()))
            if template is None:
                template = self._find(frame, version, client_bytes)
                if template is None:
                    return None
            if isinstance(template, MultiProduceTemplate):
                request = template.decode(frame)
                return None if request is None else (template, correlation_id, request, None)
            end = template.key_end
            if version < produce.FLEXIBLE:
                start = end + 4
                size: int = _i32_from(frame, end)[0]
                if size < 0 or start + size != len(frame):
                    return None
                return template, correlation_id, template.request, frame[start:]
            size = frame[end] - 1
            start = end + 1
            if size >= 0x7F:  # the length has more than one byte, nearly always two
                second = frame[start]
                if second < 0x80:
                    size += (second << 7) - 0x80
                    start += 1
                else:
                    size, start = read_length(frame, end, True)
            stop = start + size
            if size < 0 or stop + _TAG_BYTES != len(frame) or _tags_from(frame, stop) != _NO_TAG_NUMBERS:
                return None
            return template, correlation_id, template.request, frame[start:stop]
        except (IndexError, struct.error, WireError):
            return None

    def _find(self, frame: memoryview, version: int, client_bytes: int) -> AnyTemplate:
        """Find the end of the key from the frame's lengths, and return its template; make the template if it is new."""
        end = _key_end(frame, version, _CLIENT_START + max(client_bytes, 0))
        if end > KEY_BYTES_MAX:
            return None
        key = version, frame[KEY_START:end].tobytes()
        store = self._store
        if key in store.lately or key in store:
            template: AnyTemplate = store.find(key)
            return template
        template = template_of(*key) or multi_template_of(*key)
        store.add(key, template)
        return template


def _key_end(frame: memoryview, version: int, position: int) -> int:
    """Return where the length of the first records begins, if the request names one topic.

    `position` is the end of the client id. For any other request the result is a wrong place, and the bytes before it
    have no template.
    """
    if version >= produce.FLEXIBLE:
        id_bytes = frame[position + 1] or 1  # behind the header's tags: the transactional id, with its length
        position += 1 + id_bytes + _ACKS_TIMEOUT_BYTES + 1  # ... and the number of topics
        topic_bytes = _TOPIC_ID_BYTES if version >= produce.TOPIC_IDS else frame[position] or 1
        if id_bytes >= 0x80 or topic_bytes >= 0x80:
            return KEY_BYTES_MAX + 1  # their lengths take two bytes
        return position + topic_bytes + 1 + _INDEX_BYTES  # ... and the number of partitions
    transactional_id_bytes: int = _i16_from(frame, position)[0]
    position += 2 + max(transactional_id_bytes, 0) + _ACKS_TIMEOUT_BYTES + _COUNT_BYTES
    name_bytes: int = _i16_from(frame, position)[0]
    return position + 2 + max(name_bytes, 0) + _COUNT_BYTES + _INDEX_BYTES


def template_of(version: int, key: bytes) -> ProduceTemplate | None:
    """Return the template of a key; None if the key is not the whole request up to one partition's records."""
    flexible = version >= produce.FLEXIBLE
    decoded = request_of(version, key + NO_RECORDS[flexible] + (_NO_TAGS if flexible else b""))
    if decoded is None or len(decoded[1].partitions) != 1:
        return None
    client_id, request = decoded
    topic, partition, _ = request.partitions[0]
    marked = PartitionResult(topic, partition, *MARK)
    body = (b"\0" if flexible else b"") + produce.encode_response(version, [marked])
    before, _, after = body.partition(RESULT.pack(*MARK))
    reply = struct.Struct(f">ii{len(before)}shqqq{len(after)}s").pack
    key_end = KEY_START + len(key)
    return ProduceTemplate(version, client_id, request, key_end, reply, LENGTH_BYTES + len(body), before, after)
