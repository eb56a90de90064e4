"""The bytes that a fetch asks for: what the rest of its range is expected to take.

A range is given in offsets, and the size of its records is unknown before the first answer. So the first fetch guesses,
and the others use the mean of the records so far. A fetch is cut at its size, even inside a batch, so the size of the
largest batch is added.
"""

BYTES_MIN = 64 << 10
"""Smaller fetches of small ranges would save nothing: a request costs the broker about as much as 64 KiB do."""

RECORD_BYTES_GUESS = 128
"""A guess for the first fetch. If records are larger, the second fetch knows; if smaller, the first gets too much."""


def fetch_size(offsets_left: int, passed: int, passed_bytes: int, largest_batch_bytes: int, bytes_max: int) -> int:
    """Return the bytes to ask for, from BYTES_MIN to `bytes_max`, which wins if it is smaller.

    `offsets_left` is the number of offsets to read. `passed` offsets took `passed_bytes`, the largest batch of them
    `largest_batch_bytes`; all three are 0 before the first answer.
    """
    wanted = (
        offsets_left * passed_bytes // passed + largest_batch_bytes
        if passed_bytes
        else offsets_left * RECORD_BYTES_GUESS
    )
    return min(max(wanted, BYTES_MIN), bytes_max)
