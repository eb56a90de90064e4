"""What a measured producer sends: how much, how fast, and messages of which sizes and keys."""

from collections.abc import Callable
from typing import NamedTuple

VALUES_MAX = 1_000  # different values; they are made before the run, so that it measures no random numbers
VALUES_BYTES_MAX = 16 << 20  # of all these values together, unless the first alone has more
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # as in kafka-producer-perf-test, so that compression has something to do


class Limit(NamedTuple):
    """When a run ends: after so many things, after so many seconds, or at what comes first."""

    things: int | None = None
    seconds: float | None = None

    def is_reached(self, things: int, seconds: float) -> bool:
        return (self.things is not None and things >= self.things) or (
            self.seconds is not None and seconds >= self.seconds
        )


class Sizes(NamedTuple):
    """Bytes of a value: each size from `least` to `most` is as likely as any other."""

    least: int
    most: int


def parse_sizes(text: str, size_max: int) -> Sizes:
    """Return the sizes of "100" or "20..180". Raise ValueError for other text, and for sizes beyond `size_max`."""
    first, dots, last = text.partition("..")
    numbers = [first, last] if dots else [first, first]
    if not all(number.isascii() and number.isdigit() and len(number) <= 18 for number in numbers):
        raise ValueError(f"{text!r} is no size; give bytes such as 100, or a range such as 20..180")
    least, most = map(int, numbers)
    if least > most:
        raise ValueError(f"the range {text} ends below its start; give {most}..{least}")
    if most > size_max:
        raise ValueError(f"{most:,} bytes are more than a message may have, {size_max:,}")
    return Sizes(least, most)


def make_values(sizes: Sizes, between: Callable[[int, int], int], letters: Callable[[int], bytes]) -> list[bytes]:
    """Return values to send by turns, of letters that do not repeat.

    `between(a, b)` returns a random whole number from a to b, `letters(n)` n random letters.
    """
    values: list[bytes] = []
    size = 0
    while len(values) < VALUES_MAX and (not values or size < VALUES_BYTES_MAX):
        values.append(letters(between(sizes.least, sizes.most)))
        size += len(values[-1])
    return values


def wait_seconds(sent: int, seconds: float, throughput: float | None) -> float:
    """Return how long the next message waits, so that at most `throughput` messages a second are sent; None: all."""
    return 0.0 if throughput is None else max(sent / throughput - seconds, 0.0)
