"""Where each record of unpacked batches starts (record layout: broker.record.records).

A record begins with its length, so the start of one is known only after the one before it. A Python loop over all
records would take half of the time to decode short ones. `record_starts` walks many chains at once instead: one numpy
operation moves all of them to their next records. Each batch is a chain. A large batch is cut into several, at places
that look like the start of a record (`_guess`).

A guess may be wrong, so every chain must end exactly where the next one begins, and the batch's last chain at the
batch's end, with as many records as its header counts. Then the records are those that a walk from the batch's start
finds. If not, the Python loop decides: it finds the starts, or raises CorruptBatch.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from broker.record.batch import CorruptBatch
from broker.record.records import RECORD_BYTES_MIN
from broker.record.varint import read_varint
from broker.wire.primitives import Buffer

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

PADDING_BYTES = 16  # after the records, for reads that start at their end
_CHAINED_RECORDS_MIN = 1_000  # with fewer, the loop is as fast as numpy's calls
_RECORD_BYTES_MAX = 600  # on average; guesses read twice as many bytes, and long records cost more elsewhere
_STEPS_MIN = 4
_CALLS_PER_RECORD = 50  # a step over all chains costs as much as starting this many chains
_STEPS_MAX = 8  # times the planned number, before the loop takes over: a guess was wrong, or lengths are very uneven
_HOPS = 4  # records in a row that must look like records before a guess


def _advances() -> Ints:
    """Return the bytes of a record with its length, by the length's first two bytes; 0 if they are not enough."""
    first, second = np.arange(256, dtype=np.int64), np.arange(256, dtype=np.int64)[:, None]
    short = np.where(first & 1, 0, (first >> 1) + 1) + 0 * second
    long = np.where((first & 1) | (second >= 0x80), 0, ((first & 0x7F | second << 7) >> 1) + 2)
    return np.where(first < 0x80, short, long).astype(np.int64).ravel()


_ADVANCE = _advances()
"""Indexed by first byte + 256 * second byte. Odd lengths are negative, and longer ones need a third byte."""
_HIGH = np.arange(256, dtype=np.int64) << 8


def record_starts(plain: bytes, sizes: Sequence[int], counts: Sequence[int]) -> Ints:
    """Return the positions of all records in `plain`, the records of batches with these sizes and record counts.

    `plain` ends with PADDING_BYTES more. Raise CorruptBatch unless the records of each batch fill its bytes.
    """
    for size, count in zip(sizes, counts, strict=True):
        if not 0 <= count <= size // RECORD_BYTES_MIN:
            raise CorruptBatch(f"the header counts {count} records, {size} bytes cannot hold them")
    total, records = sum(sizes), sum(counts)
    if records >= _CHAINED_RECORDS_MIN and total <= records * _RECORD_BYTES_MAX:
        record_positions = _by_chains(
            np.frombuffer(plain, np.uint8), np.array(sizes, np.int64), np.array(counts, np.int64)
        )
        if record_positions is not None:
            return record_positions
    starts: list[int] = []
    base = 0
    for size, count in zip(sizes, counts, strict=True):
        _walk(plain, base, base + size, count, starts)
        base += size
    return np.array(starts, np.int64)


# --- one by one ------------------------------------------------------------------------------------------------------


def _walk(data: Buffer, begin: int, end: int, count: int, starts: list[int]) -> None:
    """Append the start of each record between `begin` and `end`. Raise CorruptBatch unless the records fill it."""
    add = starts.append
    position = begin
    for _ in range(count):
        if position >= end:
            raise CorruptBatch(f"{count} records counted, the batch ends before them")
        add(position)
        byte = data[position]
        if byte < 0x80:
            length, position = byte, position + 1
        elif (high := data[position + 1]) < 0x80:
            length, position = byte & 0x7F | high << 7, position + 2
        else:
            signed, position = read_varint(data, position)
            length = signed << 1 if signed >= 0 else 1
        if length & 1:  # zigzag: an odd number is negative
            raise CorruptBatch("a record says a length below zero")
        position += length >> 1
    if position != end:
        raise CorruptBatch(f"{count} records end at byte {position - begin} of {end - begin}")


# --- many at once ----------------------------------------------------------------------------------------------------


def _by_chains(at: Bytes, sizes: Ints, counts: Ints) -> Ints | None:
    """Return the starts of all records, None if the chains do not fit together."""
    sizes, counts = sizes[sizes > 0], counts[sizes > 0]  # an empty batch has no records
    records, total = int(counts.sum()), int(sizes.sum())
    steps = max(_STEPS_MIN, int((records / _CALLS_PER_RECORD) ** 0.5))
    ends = np.cumsum(sizes)
    begins = ends - sizes
    chains = np.concatenate((begins, _guess(at, begins, ends, steps * total // records, 2 * total // records)))
    chains.sort()
    if records > len(chains) * steps * _STEPS_MAX:
        return None
    limits = np.append(chains[1:], total)
    rows = _step(at, chains, limits, steps * _STEPS_MAX)
    if rows is None:
        return None
    inside = rows < limits[:, None]
    if not np.array_equal(rows[np.arange(len(rows)), inside.sum(axis=1)], limits):
        return None
    starts = rows[inside]
    in_batches = np.searchsorted(starts, np.append(begins, total))
    return starts if np.array_equal(np.diff(in_batches), counts) else None


def _step(at: Bytes, chains: Ints, limits: Ints, steps_max: int) -> Ints | None:
    """Return a row of positions for each chain, at least up to its limit; None if that takes more steps."""
    second = at[1:]
    columns = [chains]
    position = chains
    for _ in range(steps_max):
        position = position + _ADVANCE[at[position] + _HIGH[second[position]]]
        np.minimum(position, limits[-1], out=position)
        columns.append(position)
        if (position >= limits).all():
            return np.array(columns).T
    return None


def _guess(at: Bytes, begins: Ints, ends: Ints, segment: int, window: int) -> Ints:
    """Return positions about every `segment` bytes of large batches that are most likely starts of records.

    In `window` bytes, each zero may be the attributes of a record, behind its length. The first one from which
    `_HOPS` steps lead to zeros again counts, and its last step is the guess: also from a wrong place, steps soon meet
    the right ones.
    """
    numbers = np.maximum((ends - begins) // segment - 1, 0)
    of_batch = np.repeat(np.arange(len(begins)), numbers)
    within = np.arange(len(of_batch)) - np.repeat(np.cumsum(numbers) - numbers, numbers) + 1
    window_starts = begins[of_batch] + within * segment
    end = ends[of_batch]
    inside = window_starts + window < end
    window_starts, end = window_starts[inside], end[inside]
    if not len(window_starts):
        return np.zeros(0, np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(at, window)[window_starts]
    lane, offset = np.divmod(np.flatnonzero(windows == 0), window)
    position = window_starts[lane] + offset
    position -= 1 + (at[position - 2] >= 0x80)
    for _ in range(_HOPS):
        first = at[position]
        advance = _ADVANCE[first + _HIGH[at[position + 1]]]
        zero = at[position + 1 + (first >= 0x80)] == 0
        good = np.flatnonzero(zero & (advance >= RECORD_BYTES_MIN) & (position + advance < end[lane]))
        lane, position = lane[good], position[good] + advance[good]
    first_of_lane = np.ones(len(lane), bool)
    first_of_lane[1:] = lane[1:] != lane[:-1]
    starts: Ints = position[first_of_lane]
    return starts[np.append(True, starts[1:] > starts[:-1])] if len(starts) else starts
