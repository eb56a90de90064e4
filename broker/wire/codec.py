"""The codecs of the APIs: how the bytes of a request are decoded, and those of its answer encoded.

Produce, Fetch and ListOffsets have codecs of their own, written by hand, because nearly all requests are theirs. All
other APIs share `ColdCodec`, which reads the schemas of the protocol (broker.wire.cold).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from broker.steps import Steps
from broker.wire import fetch, list_offsets, produce
from broker.wire.frame import Part
from broker.wire.request_limits import DEFAULT_LIMITS, RequestLimits

API_VERSIONS = 18

Request = tuple[Any, Any, Any]
"""A decoded request, the request as sent, and its unknown tags; the last two are None without a schema."""


class Codec(ABC):
    """The codec of one API. `flexible` is the first flexible version (KIP-482)."""

    is_cold = False

    def __init__(self, key: int, name: str, newest: int, flexible: int) -> None:
        self.key = key
        self.name = name
        self.newest = newest
        self.flexible = flexible

    def answer_tags(self, version: int) -> bytes:
        """Return the tags in the header of an answer. That of ApiVersions never has any (KIP-511)."""
        return b"\0" if version >= self.flexible and self.key != API_VERSIONS else b""

    @abstractmethod
    def decode(self, version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS) -> Request:
        """Return a request. Raise WireError."""

    def decode_in_steps(self, version: int, data: memoryview, position: int, limits: RequestLimits) -> Steps[Request]:
        """Decode a request as `decode` does, in slices. `data` must stay valid until the last slice.

        A request with a hand-written codec is decoded in one slice, because its partitions take half a microsecond.
        """
        yield from ()
        return self.decode(version, data, position, limits)

    @abstractmethod
    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        """Return the body of the answer, with the throttle time if the answer has a field for it.

        Raise LargeMessage for an answer of a cold API that takes long to encode; `encode_in_steps` encodes it.
        """

    def encode_in_steps(self, version: int, response: Any, throttle_ms: int = 0) -> Steps[list[Part]]:
        """Return the body of the answer as `encode` does, in slices."""
        yield from ()
        return self.encode(version, response, throttle_ms)


class ProduceCodec(Codec):
    def decode(self, version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS) -> Request:
        return produce.decode_request(version, data, position, limits), None, None

    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        return [produce.encode_response(version, response, throttle_ms)]


class FetchCodec(Codec):
    def decode(self, version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS) -> Request:
        return fetch.decode_request(version, data, position, limits), None, None

    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        response.throttle_ms = throttle_ms
        return fetch.encode_response(version, response)


class ListOffsetsCodec(Codec):
    def decode(self, version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS) -> Request:
        return list_offsets.decode_request(version, data, position, limits), None, None

    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        return [list_offsets.encode_response(version, response, throttle_ms)]


class ColdCodec(Codec):
    """The codec of an API that is described by its schema. Its module is imported at the first request."""

    is_cold = True

    def decode(self, version: int, data: memoryview, position: int, limits: RequestLimits = DEFAULT_LIMITS) -> Request:
        from broker.wire import cold

        limits.check_bytes(f"{self.name} v{version}", len(data))
        message = cold.decode(self.key, version, "request", data, position, self.newest, limits)
        return message.newest, message.original, message.tags

    def decode_in_steps(self, version: int, data: memoryview, position: int, limits: RequestLimits) -> Steps[Request]:
        from broker.wire import cold

        limits.check_bytes(f"{self.name} v{version}", len(data))
        message = yield from cold.decode_in_steps(self.key, version, "request", data, position, self.newest, limits)
        return message.newest, message.original, message.tags

    def encode(self, version: int, response: Any, throttle_ms: int = 0) -> list[Part]:
        from broker.wire import cold

        return [cold.encode_short(self.key, version, "response", _throttled(response, throttle_ms))]

    def encode_in_steps(self, version: int, response: Any, throttle_ms: int = 0) -> Steps[list[Part]]:
        from broker.wire import cold

        body = yield from cold.encode_in_steps(self.key, version, "response", _throttled(response, throttle_ms))
        return [body]


def _throttled(fields: Mapping[str, Any], throttle_ms: int) -> Mapping[str, Any]:
    """Return the fields of a cold API's answer with the throttle time, if the answer has a field for it."""
    if throttle_ms and "throttle_time" in fields:
        return {**fields, "throttle_time": throttle_ms}
    return fields


_HAND_WRITTEN: dict[int, type[Codec]] = {
    produce.API_KEY: ProduceCodec,
    fetch.API_KEY: FetchCodec,
    list_offsets.API_KEY: ListOffsetsCodec,
}


def codec_of(key: int, name: str, newest: int, flexible: int) -> Codec:
    """Return the codec of an API."""
    return _HAND_WRITTEN.get(key, ColdCodec)(key, name, newest, flexible)
