"""The bit layout of an id (Twitter's snowflake-2010).

     63   62                                  22 21          17 16      12 11         0
    +---+---------------------------------------+--------------+----------+------------+
    | 0 | milliseconds since the epoch     (41) | datacenter 5 | worker 5 |  sequence  |
    +---+---------------------------------------+--------------+----------+------------+

The highest bit stays 0, so that a signed 64-bit integer holds every id as a positive number. A worker *number* is
datacenter and worker together (10 bits, 1,024 of them). The registry hands out numbers; the split only shows in decoded
ids.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from idgen.errors import LayoutExhausted

TWITTER_EPOCH_MS = 1288834974657  # 2010-11-04T01:42:54.657Z
ENDING_MS = 365 * 86_400_000  # warn this long before the end, because widths cannot be changed in a day
ID_BITS = 63  # without the sign bit
WORKER_NUMBER_BITS_MAX = 16  # a claim tries the numbers in turn; more than 65,536 of them would take too long


def utc_text(time_ms: int) -> str | None:
    """Return a time in UTC for people; None past the year 9999, which a layout may reach."""
    try:
        text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None


class IdParts(NamedTuple):
    """A decoded id; `time_ms` is Unix time, `worker_number` is datacenter and worker as one number."""

    time_ms: int
    datacenter: int
    worker: int
    sequence: int
    worker_number: int


@dataclass(frozen=True)
class Layout:
    """The widths of an id's fields in bits, and the epoch in Unix ms. ValueError unless the widths fill 63 bits."""

    time_bits: int = 41
    datacenter_bits: int = 5
    worker_bits: int = 5
    sequence_bits: int = 12
    epoch_ms: int = TWITTER_EPOCH_MS

    def __post_init__(self) -> None:
        widths = (self.time_bits, self.datacenter_bits, self.worker_bits, self.sequence_bits)
        if min(widths) < 0 or self.time_bits < 1 or self.sequence_bits < 1:
            raise ValueError(f"widths {widths}: none is negative, time and sequence have at least one bit")
        if sum(widths) != ID_BITS:
            raise ValueError(f"widths {widths} add up to {sum(widths)} bits; an id has {ID_BITS} and a sign bit of 0")
        if self.datacenter_bits + self.worker_bits > WORKER_NUMBER_BITS_MAX:
            raise ValueError(
                f"a worker number has at most {WORKER_NUMBER_BITS_MAX} bits, "
                f"not {self.datacenter_bits} + {self.worker_bits}"
            )
        if self.epoch_ms < 0:
            raise ValueError(f"epoch_ms {self.epoch_ms} is negative; it is Unix time in milliseconds")

    @property
    def workers(self) -> int:
        """The count of worker numbers."""
        return 1 << (self.datacenter_bits + self.worker_bits)

    @property
    def max_sequence(self) -> int:
        """The largest sequence of a millisecond."""
        return (1 << self.sequence_bits) - 1

    @property
    def last_ms(self) -> int:
        """The last Unix millisecond an id can name."""
        return self.epoch_ms + (1 << self.time_bits) - 1

    def ending(self, now_ms: int) -> str | None:
        """Return a warning for people, with the time left and the remedy; None until a year before the end."""
        left_ms = self.last_ms - now_ms
        if left_ms > ENDING_MS:
            return None
        when = f"in {left_ms // 86_400_000} days" if left_ms >= 0 else "since then none are made"
        return (
            f"the id layout ends at Unix ms {self.last_ms}, {when}: move to a registry of its own with more "
            f"flakelog.ids.time.bits, or a later flakelog.ids.epoch.ms"
        )

    @property
    def worker_shift(self) -> int:
        """The position of the worker's lowest bit in an id."""
        return self.sequence_bits

    @property
    def time_shift(self) -> int:
        """The position of the time's lowest bit in an id."""
        return self.datacenter_bits + self.worker_bits + self.sequence_bits

    def pack(self, time_ms: int, worker: int, sequence: int) -> int:
        """Return the id of these parts; `worker` is the worker number.

        LayoutExhausted past the last millisecond, ValueError for a time before the epoch or a part out of range.
        """
        self.check_worker(worker)
        if not 0 <= sequence <= self.max_sequence:
            raise ValueError(f"sequence {sequence} is not in 0..{self.max_sequence}")
        return self.first_id(time_ms) | worker << self.worker_shift | sequence

    def unpack(self, id: int) -> IdParts:
        """Return the parts of an id. ValueError unless 0 <= id < 2**63."""
        if not 0 <= id < 1 << ID_BITS:
            raise ValueError(f"{id} is no id: ids are in 0..2**{ID_BITS}-1")
        number = id >> self.worker_shift & self.workers - 1
        return IdParts(
            time_ms=self.epoch_ms + (id >> self.time_shift),
            datacenter=number >> self.worker_bits,
            worker=number & (1 << self.worker_bits) - 1,
            sequence=id & self.max_sequence,
            worker_number=number,
        )

    def first_id(self, time_ms: int) -> int:
        """Return the least id that any worker can issue at `time_ms` or later."""
        if time_ms > self.last_ms:
            raise LayoutExhausted(time_ms, self.last_ms)
        if time_ms < self.epoch_ms:
            raise ValueError(f"{time_ms} is before the epoch, {self.epoch_ms}")
        return time_ms - self.epoch_ms << self.time_shift

    def id_range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return (first, end): the ids of start_ms <= time < end_ms are those of first <= id < end.

        A time outside the layout counts as the nearer end of the layout, so that every time span has a range of ids.
        """
        if end_ms < start_ms:
            raise ValueError(f"the range ends at {end_ms}, before its start {start_ms}")
        return self._bound(start_ms), self._bound(end_ms)

    def _bound(self, time_ms: int) -> int:
        ticks = min(max(time_ms - self.epoch_ms, 0), 1 << self.time_bits)
        return ticks << self.time_shift

    def worker_number(self, datacenter: int, worker: int) -> int:
        """Return datacenter and worker as one number. ValueError if one does not fit its bits."""
        if not 0 <= datacenter < 1 << self.datacenter_bits:
            raise ValueError(f"datacenter {datacenter} is not in 0..{(1 << self.datacenter_bits) - 1}")
        if not 0 <= worker < 1 << self.worker_bits:
            raise ValueError(f"worker {worker} is not in 0..{(1 << self.worker_bits) - 1}")
        return datacenter << self.worker_bits | worker

    def numbers_of(self, datacenter: int | None) -> range:
        """Return the worker numbers of one datacenter, or all of them."""
        if datacenter is None:
            return range(self.workers)
        first = self.worker_number(datacenter, 0)
        return range(first, first + (1 << self.worker_bits))

    def check_worker(self, number: int) -> None:
        """Raise ValueError unless `number` is a worker number of this layout."""
        if not 0 <= number < self.workers:
            raise ValueError(f"worker number {number} is not in 0..{self.workers - 1}")

    def to_dict(self) -> dict[str, int]:
        """Return the layout as recorded beside the worker numbers."""
        return asdict(self)

    @classmethod
    def from_dict(cls, recorded: Mapping[str, int]) -> "Layout":
        """Return the layout that `to_dict` recorded. ValueError, with the keys, if one is missing or unknown."""
        known = set(cls.__dataclass_fields__)
        if set(recorded) != known:
            raise ValueError(f"a recorded layout has the keys {sorted(known)}, this one {sorted(recorded)}")
        return cls(**recorded)
