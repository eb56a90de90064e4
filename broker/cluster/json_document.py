"""The JSON of nodes: encoded as Kafka writes it, decoded with errors that name the node and the key."""

import json
from collections.abc import Mapping
from typing import Any


class DamagedDocument(Exception):
    """A node whose data is not the JSON that its path promises. The message names the node and the reason."""


def encode_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode_json(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise DamagedDocument(f"{path}: {data[:40]!r} is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise DamagedDocument(f"{path}: {data[:40]!r} is no JSON object")
    return document


def json_value(path: str, document: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return the value of a key. Raise DamagedDocument if it is missing or of another type."""
    value = document.get(key)
    if not isinstance(value, kind):
        raise DamagedDocument(f"{path}: {key!r} is {value!r}, not a JSON {kind.__name__}")
    return value


def json_number(path: str, document: Mapping[str, Any], key: str) -> int:
    """Return a number. Kafka writes some numbers as text, such as times and producer ids."""
    try:
        return int(document[key])
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedDocument(f"{path}: {key!r} is {document.get(key)!r}, not a number") from error
