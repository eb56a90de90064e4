"""Fetches of one partition that repeat all but session and offset: decoded once (broker.wire.templates).

A consumer asks for the same partition again and again, each time from a later offset, mostly within a session. The
bytes around these numbers are the key of a template. Fetches of several partitions have no template.

    api key, version | correlation id | client id ... limits | session id, epoch | topic ... | fetch offset | the rest
    4 bytes          | 4 bytes        | key                  | 8 bytes           | key       | 8 bytes      | key
"""

import struct

from broker.wire import fetch
from broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse
from broker.wire.frame import LENGTH_BYTES, FileRegion, Part, RequestHeader, request_header
from broker.wire.primitives import length
from broker.wire.templates import KEY_BYTES_MAX, Key, TemplateStore
from broker.wire.topics import topic as encode_topic

VERSION_MIN = 11  # the first with all fields around the offset, and with a preferred replica in the answer

_head_from = struct.Struct(">Iih").unpack_from  # API key and version, correlation id, length of the client id
_session_from = struct.Struct(">ii").unpack_from  # its id, epoch
_i16_from = struct.Struct(">h").unpack_from
_i64_from = struct.Struct(">q").unpack_from
_KEY_START = 8
_CLIENT_START = 10  # where the client id begins
_SESSION_BYTES = 8
_OFFSET_BYTES = 8
_REPLICA_ID_BYTES = 4
_LIMITS_BYTES = 13
_INDEX_BYTES = 8  # of a partition, with the current leader epoch
_HEADS = {fetch.API_KEY << 16 | version: version for version in range(VERSION_MIN, fetch.VERSION_MAX + 1)}


def _session_at(version: int) -> int:
    """Return where the session id is in a frame with an empty client id."""
    replica_id_bytes = _REPLICA_ID_BYTES if version < fetch.REPLICA_STATES else 0
    return _CLIENT_START + (version >= fetch.FLEXIBLE) + replica_id_bytes + _LIMITS_BYTES


_SESSION_AT = {head: _session_at(version) for head, version in _HEADS.items()}
_BY_ID = fetch.API_KEY << 16 | fetch.TOPIC_IDS
_FLEXIBLE = fetch.API_KEY << 16 | fetch.FLEXIBLE
_ID_BYTES = 16

_record = tuple.__new__  # as FetchRequest(...), at half its price


class FetchTemplate:
    """A request for one partition without its session and offset, and the plain answer to it."""

    __slots__ = (
        "api_key", "version", "client_id", "_request", "_asked", "_topic", "_index", "_flexible", "_head", "_before",
        "_between", "_after", "_tail", "_fixed_bytes",
    )  # fmt: skip

    def __init__(self, version: int, client_id: str | None, request: FetchRequest) -> None:
        self.api_key = fetch.API_KEY
        self.version = version
        self.client_id = client_id
        self._request = request
        (self._asked,) = request.partitions
        self._topic = self._asked.topic
        self._index = self._asked.partition
        flexible = self._flexible = version >= fetch.FLEXIBLE
        tag = b"\0" if flexible else b""
        one = length(1, flexible)
        self._before = tag + bytes(6)  # no throttle time, no error
        self._between = one + encode_topic(self._topic, flexible, version >= fetch.TOPIC_IDS) + one
        self._head = struct.Struct(f">ii{len(self._before)}si{len(self._between)}sihqqq")
        self._after = fetch.nothing_aborted(version, False), fetch.nothing_aborted(version, True)
        self._tail = tag * 3
        self._fixed_bytes = self._head.size + len(self._tail)

    def request(self, session_id: int, session_epoch: int, fetch_offset: int) -> FetchRequest:
        """Return the request with these numbers."""
        topic, index, _, limit, leader_epoch, last_epoch, log_start = self._asked
        asked = _record(FetchPartition, (topic, index, fetch_offset, limit, leader_epoch, last_epoch, log_start))
        wait, least, most, _, level, _, _, forgotten, rack, replica_id, wants_ids, replica_epoch = self._request
        return _record(
            FetchRequest,
            (
                wait, least, most, [asked], level, session_id, session_epoch, forgotten, rack, replica_id, wants_ids,
                replica_epoch,
            ),  # fmt: skip
        )

    def encode(self, correlation_id: int, response: FetchResponse) -> tuple[list[Part], int] | None:
        """Return the whole answer and its bytes; None if it has to be encoded in full."""
        partitions = response.partitions
        if len(partitions) != 1 or response.error_code or response.throttle_ms:
            return None
        partition = partitions[0]
        records = partition.records
        if (
            partition.error_code
            or partition.aborted
            or partition.ids is not None
            or partition.diverging is not None
            or partition.partition != self._index
            or (partition.topic is not self._topic and partition.topic != self._topic)
            or records.__class__ is not FileRegion
        ):
            return None
        size = records.length
        after = self._after[partition.aborted is not None] + length(size, self._flexible)
        size += self._fixed_bytes + len(after)
        head = self._head.pack(
            size - LENGTH_BYTES, correlation_id, self._before, response.session_id, self._between, self._index, 0,
            partition.high_watermark, partition.last_stable_offset, partition.log_start_offset,
        )  # fmt: skip
        parts: list[Part] = [head + after, records, self._tail] if self._flexible else [head + after, records]
        return parts, size


class FetchTemplates:
    """The templates of Fetch in a store."""

    def __init__(self, store: TemplateStore) -> None:
        self._store = store

    def open(self, frame: memoryview) -> tuple[FetchTemplate, int, FetchRequest, None] | None:
        """Return the template of a frame without its length, and the request; None if it has none."""
        try:
            head, correlation_id, client_bytes = _head_from(frame)
            split = _split(frame, head, client_bytes)
            if split is None:
                return None
            key, session_at, offset_at = split
            store = self._store
            template: FetchTemplate | None = store.lately.get(key)
            if template is None:
                template = store.find(key)
                if template is None:
                    return None
            session_id, epoch = _session_from(frame, session_at)
            return template, correlation_id, template.request(session_id, epoch, _i64_from(frame, offset_at)[0]), None
        except (IndexError, struct.error):
            return None

    def learn(self, frame: memoryview, header: RequestHeader, request: FetchRequest) -> None:
        """Make a template of a request that was decoded in full, if it is for one partition."""
        head, _, client_bytes = _head_from(frame)
        split = _split(frame, head, client_bytes) if len(request.partitions) == 1 else None
        if split is None:
            return
        version, client_id = header.version, header.client_id
        whole = request_header(fetch.API_KEY, version, header.correlation_id, client_id, version >= fetch.FLEXIBLE)
        whole += fetch.encode_request(version, request)
        if whole == frame:  # a frame with unknown tags, or with a length in more bytes than needed, has no template
            self._store.add(split[0], FetchTemplate(version, client_id, request))


def _split(frame: memoryview, head: int, client_bytes: int) -> tuple[Key, int, int] | None:
    """Return the key of a Fetch of one topic and one partition, and where its session id and its fetch offset are.

    For any other request the result is None, or a key that no template has.
    """
    session_at = _SESSION_AT.get(head)
    if session_at is None or len(frame) > KEY_BYTES_MAX:
        return None
    if client_bytes > 0:
        session_at += client_bytes
    topics_at = session_at + _SESSION_BYTES
    if head >= _BY_ID:
        offset_at = topics_at + 2 + _ID_BYTES + _INDEX_BYTES
    elif head >= _FLEXIBLE:
        topic_bytes = frame[topics_at + 1]
        if topic_bytes >= 0x80:
            return None  # its length takes two bytes
        offset_at = topics_at + 2 + topic_bytes + _INDEX_BYTES
    else:
        offset_at = topics_at + 10 + _i16_from(frame, topics_at + 4)[0] + _INDEX_BYTES
    before, between = frame[_KEY_START:session_at].tobytes(), frame[topics_at:offset_at].tobytes()
    return (head, before, between, frame[offset_at + _OFFSET_BYTES :].tobytes()), session_at, offset_at
