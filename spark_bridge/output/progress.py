"""SHELL (a lock): rows and bytes that a replay or a load read, over time. The time is an argument, in seconds."""

import threading
from dataclasses import dataclass
from typing import NamedTuple

SAMPLES_MAX = 1_000
"""Samples that are kept for a report or a plot. With more, every second one is dropped."""
SAMPLE_SECONDS = 0.1  # at first between two samples; doubled each time that samples are dropped


class Sample(NamedTuple):
    """The rows and bytes read in the first `seconds`."""

    seconds: float
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a run. `bytes` counts rows in memory, `file_bytes` files."""

    rows: int
    bytes: int
    files: int
    file_bytes: int
    seconds: float
    samples: tuple[Sample, ...]

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0


class Progress:
    """The progress of a run. Any thread may call its methods."""

    def __init__(self, now: float) -> None:
        self.rows = self.bytes = self.files = self.file_bytes = 0
        self._start = now
        self._interval = SAMPLE_SECONDS
        self._samples = [Sample(0.0, 0, 0)]
        self._lock = threading.Lock()

    def read(self, rows: int, size: int, now: float) -> None:
        """Count rows that were read, and their bytes in memory."""
        with self._lock:
            self.rows += rows
            self.bytes += size
            if now - self._start - self._samples[-1].seconds >= self._interval:
                self._sample(now)

    def wrote(self, size: int) -> None:
        """Count a file with its size in bytes."""
        with self._lock:
            self.files += 1
            self.file_bytes += size

    def report(self, now: float) -> Report:
        with self._lock:
            self._sample(now)
            seconds = now - self._start
            return Report(self.rows, self.bytes, self.files, self.file_bytes, seconds, tuple(self._samples))

    def _sample(self, now: float) -> None:
        if len(self._samples) >= SAMPLES_MAX:
            self._samples = self._samples[::2]
            self._interval *= 2
        self._samples.append(Sample(now - self._start, self.rows, self.bytes))
