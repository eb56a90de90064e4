"""ListOffsets that ask for places in logs, such as their ends: decoded once (broker.wire.templates).

A consumer that wants to know how far behind it is asks the same again and again, in the same bytes: Spark's connector
does with each poll. Requests for times are seldom repeated, so they have no template.

    api key, version | correlation id | the rest is the template's key
"""

import struct

from broker.wire import list_offsets
from broker.wire.frame import LENGTH_BYTES, Part, RequestHeader
from broker.wire.list_offsets import FoundOffset, ListOffsetsRequest, ListOffsetsResponse
from broker.wire.templates import KEY_BYTES_MAX, TemplateStore

_head_from = struct.Struct(">Ii").unpack_from  # API key and version, correlation id
_KEY_START = 8
_RESULT = struct.Struct(">hqqi")  # error, timestamp, offset, leader epoch
_MARK = 0x5A5A, -2, -3, -4


class ListOffsetsTemplate:
    """A request, and the answer to it if it asks for one partition."""

    __slots__ = ("api_key", "version", "client_id", "request", "_reply", "_reply_bytes", "_before", "_after")

    def __init__(self, version: int, client_id: str | None, request: ListOffsetsRequest) -> None:
        self.api_key = list_offsets.API_KEY
        self.version = version
        self.client_id = client_id
        self.request = request
        self._reply_bytes = 0
        if len(request.partitions) == 1 and version >= list_offsets.LEADER_EPOCHS:
            topic, partition, _, _ = request.partitions[0]
            marked = ListOffsetsResponse([FoundOffset(topic, partition, *_MARK)], request.by_id)
            tags = b"\0" if version >= list_offsets.FLEXIBLE else b""
            body = tags + list_offsets.encode_response(version, marked)
            self._before, _, self._after = body.partition(_RESULT.pack(*_MARK))
            self._reply_bytes = LENGTH_BYTES + len(body)
            self._reply = struct.Struct(f">ii{len(self._before)}shqqi{len(self._after)}s").pack

    def encode(self, correlation_id: int, response: ListOffsetsResponse) -> tuple[list[Part], int] | None:
        """Return the whole answer and its bytes; None if it has to be encoded in full."""
        size = self._reply_bytes
        if not size:
            return None
        _, _, error_code, timestamp, offset, leader_epoch = response.partitions[0]
        reply = self._reply(
            size, correlation_id, self._before, error_code, timestamp, offset, leader_epoch, self._after
        )
        return [reply], size + LENGTH_BYTES


class ListOffsetsTemplates:
    """The templates of ListOffsets in a store."""

    def __init__(self, store: TemplateStore) -> None:
        self._store = store

    def open(self, frame: memoryview) -> tuple[ListOffsetsTemplate, int, ListOffsetsRequest, None] | None:
        """Return the template of a frame without its length, and the request; None if it has none."""
        if not _KEY_START < len(frame) <= KEY_BYTES_MAX:
            return None
        head, correlation_id = _head_from(frame)
        key = head, frame[_KEY_START:].tobytes()
        store = self._store
        template = store.lately.get(key)
        if template is None:
            template = store.find(key)
            if template is None:
                return None
        return template, correlation_id, template.request, None

    def learn(self, frame: memoryview, header: RequestHeader, request: ListOffsetsRequest) -> None:
        """Make a template of a request that was decoded in full, if one like it may come again."""
        if len(frame) > KEY_BYTES_MAX or request.by_id:
            return
        if all(partition.timestamp < 0 for partition in request.partitions):
            key = _head_from(frame)[0], frame[_KEY_START:].tobytes()
            self._store.add(key, ListOffsetsTemplate(header.version, header.client_id, request))
