"""A pyarrow.RecordBatchReader whose `close()` reaches the Python iterator that makes its batches.

`RecordBatchReader.from_batches` leaves the iterator open until it is collected as garbage. A reader of a C stream
releases the stream when it is closed or collected (https://arrow.apache.org/docs/format/CStreamInterface.html), so the
iterator is offered as one. An exception of the iterator reaches the caller as pyarrow.ArrowInvalid; the first line of
its message has the name and the message of the exception.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa


class ReadError(Exception):
    """An error on its way through Arrow, which keeps only its text."""


def closing_reader(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], close: Callable[[], object]
) -> pa.RecordBatchReader:
    """Return a reader of `batches`. `close` is called once, when the reader ends, is closed or is collected."""
    inner = pa.RecordBatchReader.from_batches(schema, _closing(batches, close))
    return pa.RecordBatchReader.from_stream(inner)


def _closing(batches: Iterator[pa.RecordBatch], close: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as error:
        raise ReadError(" ".join(f"{type(error).__name__}: {error}".split())) from None
    finally:
        close()
