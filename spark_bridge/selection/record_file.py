"""Files that a replay or a load wrote about itself: manifests, plans, receipts, records of parts.

    receipt = read_record(storage, "_receipt.json", receipts.load, "Put it back from a copy")

Such a file is written whole or not at all, so one that does not parse was damaged or edited later. Its data files may
be as good as before, so the error names the file and the way out.
"""

import json
from collections.abc import Callable
from typing import TypeVar

from coordination.errors import FlakelogError
from spark_bridge.output.storage import Storage

Record = TypeVar("Record")


class DamagedRecord(FlakelogError):
    """A manifest, plan or receipt that cannot be read; the message names the file and the way out."""


def read_record(storage: Storage, name: str, parse: Callable[[bytes], Record], way_out: str) -> Record:
    """Return what `parse` makes of a file's bytes.

    `parse` raises FlakelogError or ValueError for bytes that it does not understand; DamagedRecord comes of it.
    Raise FileNotFoundError if there is no such file.
    """
    data = storage.read(name)
    try:
        return parse(data)
    except (FlakelogError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise DamagedRecord(f"{storage.name_of(name)} is damaged or was edited: {reason}. {way_out}") from None


def in_words(error: Exception) -> str:
    """Return why fields of JSON are no record: `error` is what Python raised for them."""
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON: {error}"
    if isinstance(error, KeyError):
        return f"its field {error} is missing or of another format"
    return str(error)
