"""A checksum of rows that depends on the rows and their order, and not on the Arrow batches they come in.

Each column is one or more streams of bytes, and each stream has a CRC-32C:

    numbers, times     8 or 4 little-endian bytes a row, 0 for null; and a byte a row, 1 unless null
    strings, binaries  the length of each row as 8 bytes, -1 for null; and the bytes of all rows
    lists              the length of each row as 8 bytes, -1 for null; and the streams of their elements
    structs            a byte a row, 1 unless null; and the streams of their fields

The checksum is a SHA-256 over the number of rows and the names and CRCs of the streams. So a row that is lost,
repeated, moved or changed is found, at the speed of a CRC.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KIND = "crc32c"
_Stream: TypeAlias = tuple[str, npt.NDArray[Any]]


class RowSum:
    """The checksum of the rows added so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            for stream, data in _streams(name, values):
                contiguous = np.ascontiguousarray(data).view(np.uint8)
                self._sums[stream] = crc32c.crc32c(contiguous.data, self._sums.get(stream, 0))

    def digest(self) -> str:
        """Return the checksum in hexadecimal."""
        lines = [f"{self.rows} rows", *(f"{stream} {value:08x}" for stream, value in sorted(self._sums.items()))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def combine(digests: Iterable[str]) -> str:
    """Return one checksum of the checksums of several ranges, in their order, with its kind in front."""
    return f"{KIND}:{hashlib.sha256(' '.join(digests).encode()).hexdigest()[:32]}"


def _streams(name: str, values: pa.Array) -> Iterator[_Stream]:
    kind = values.type
    if pa.types.is_struct(kind):
        yield f"{name} valid", _valid(values)
        for number in range(kind.num_fields):
            yield from _streams(f"{name}.{kind.field(number).name}", pc.struct_field(values, number))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield f"{name} lengths", _lengths(pc.list_value_length(values))
        yield from _streams(f"{name}[]", pc.list_flatten(values))
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        yield f"{name} lengths", _lengths(pc.binary_length(values))
        yield f"{name} bytes", _bytes(values)
    else:
        yield f"{name} valid", _valid(values)
        plain = values.cast(pa.int64()) if pa.types.is_timestamp(kind) else values
        yield f"{name} values", pc.fill_null(plain, 0).to_numpy(zero_copy_only=False)


def _valid(values: pa.Array) -> npt.NDArray[np.uint8]:
    if not values.null_count:
        return np.ones(len(values), np.uint8)
    valid: npt.NDArray[np.uint8] = pc.is_valid(values).to_numpy(zero_copy_only=False).astype(np.uint8)
    return valid


def _lengths(lengths: pa.Array) -> npt.NDArray[np.int64]:
    sizes: npt.NDArray[np.int64] = pc.fill_null(lengths, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def _bytes(values: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all rows, one after the other."""
    if values.null_count:
        values = values.drop_null()  # a null may have bytes behind it
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return np.zeros(0, np.uint8)
    edges = np.frombuffer(offsets, np.int32)[values.offset :]
    return np.frombuffer(data, np.uint8)[edges[0] : edges[len(values)]]
