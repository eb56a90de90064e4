"""A half-open range of offsets of one partition: exactly what one task reads."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Offsets `start` <= offset < `end` of a partition; may be empty. Raise ValueError for an invalid range."""

    topic: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not self.topic:
            raise ValueError("an offset range needs a topic")
        if self.partition < 0:
            raise ValueError(f"partition {self.partition} of {self.topic!r} is negative")
        if not 0 <= self.start <= self.end:
            raise ValueError(f"offsets {self.start} to {self.end} of {self.name} are no range: 0 <= start <= end")

    @property
    def name(self) -> str:
        """Return `topic-partition`, as Kafka writes it."""
        return f"{self.topic}-{self.partition}"

    @property
    def offsets(self) -> int:
        """Return the number of offsets in the range, which is the maximum number of records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.name}[{self.start}, {self.end})"

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def to_dict(self) -> dict[str, Any]:
        return {"topic": self.topic, "partition": self.partition, "start": self.start, "end": self.end}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "OffsetRange":
        """Invert `to_dict`. Raise ValueError naming the field that is missing, unknown or not a number."""
        if set(fields) != {"topic", "partition", "start", "end"}:
            raise ValueError(f"an offset range has topic, partition, start, end; got {sorted(fields)}")
        for name in ("partition", "start", "end"):
            if type(fields[name]) is not int:
                raise ValueError(f"{name} of an offset range is a whole number; got {fields[name]!r}")
        return cls(str(fields["topic"]), fields["partition"], fields["start"], fields["end"])
