"""Latencies in buckets, because a run has too many to keep each: their mean, percentiles and maximum."""

BUCKET_BITS = 8  # significant bits of a latency that its bucket keeps, so a percentile is at most 0.8 % too high


class Latencies:
    """A histogram of latencies in microseconds."""

    def __init__(self) -> None:
        self.number = 0
        self.max_us = 0
        self._sum_us = 0
        self._counts: dict[int, int] = {}

    def add(self, latency_us: int) -> None:
        shift = max(latency_us.bit_length() - BUCKET_BITS, 0)
        bucket = latency_us >> shift << shift
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.number += 1
        self._sum_us += latency_us
        if latency_us > self.max_us:
            self.max_us = latency_us

    def merge(self, other: "Latencies") -> None:
        """Add the latencies of another histogram."""
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.number += other.number
        self._sum_us += other._sum_us
        self.max_us = max(self.max_us, other.max_us)

    @property
    def average_us(self) -> float:
        """The mean; 0 without latencies."""
        return self._sum_us / self.number if self.number else 0.0

    def percentile_us(self, per_mille: int) -> int:
        """Return the latency that `per_mille` of 1,000 do not pass, rounded up to its bucket's end; 0 without any."""
        rank = max(-(-self.number * per_mille // 1000), 1)
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                shift = max(bucket.bit_length() - BUCKET_BITS, 0)
                return min(bucket + (1 << shift) - 1, self.max_us)
        return 0
