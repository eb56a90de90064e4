"""The limits of a request, checked before its items are decoded, so that a refused request costs little."""

from typing import NamedTuple

from broker.wire.errors import OverLimit


class RequestLimits(NamedTuple):
    """Limits for one request. Each check raises OverLimit, which names the setting."""

    cold_bytes: int = 16 << 20
    """flakelog.max.cold.request.bytes: bytes of a request of any API but Produce, Fetch and ListOffsets."""
    items: int = 50_000
    """flakelog.max.request.items: array items of such a request, over all its arrays."""
    partitions: int = 10_000
    """flakelog.max.request.partitions: partitions that a request of any API names."""

    def check_bytes(self, name: str, number: int) -> None:
        """Check the bytes of a request, whose API and version `name` says."""
        if number > self.cold_bytes:
            raise OverLimit(f"{name}: {number} bytes; flakelog.max.cold.request.bytes is {self.cold_bytes}")

    def check_items(self, number: int) -> None:
        if number > self.items:
            raise OverLimit(f"{number} array items or more; flakelog.max.request.items is {self.items}")

    def check_partitions(self, number: int) -> None:
        if number > self.partitions:
            raise OverLimit(f"{number} partitions or more; flakelog.max.request.partitions is {self.partitions}")


DEFAULT_LIMITS = RequestLimits()
