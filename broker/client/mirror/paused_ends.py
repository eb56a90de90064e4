"""SHELL (asyncio): the ends of the source's partitions. A paused mirror fetches nothing, so it asks for them."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from broker.client.asyncio import AsyncClient
from broker.client.core import LATEST
from broker.client.errors import ClientError
from broker.client.leaders import Partition
from broker.client.mirror.figures import PartitionLag
from broker.client.mirror.owned_partitions import OwnedPartitions
from broker.wire.fetch import READ_COMMITTED

_log = logging.getLogger("broker.client.mirror")


class PausedEnds:
    """The ends of the partitions of a paused mirror. All calls are made on the loop."""

    def __init__(self, source: AsyncClient, partitions: OwnedPartitions) -> None:
        self._source = source
        self._partitions = partitions
        self._ends: dict[Partition, int] = {}

    def lags(self) -> dict[Partition, PartitionLag]:
        """Return how far each partition was copied. Ends that are not known while the mirror is paused are None."""
        lags = self._partitions.lags()
        if not self._partitions.is_paused:
            return lags
        return {key: PartitionLag(lag.copied, self._ends.get(key)) for key, lag in lags.items()}

    async def follow_by_time(self, interval_ms: int) -> None:
        """Ask the source for the ends, again and again while the mirror is paused."""
        while True:
            if self._partitions.is_paused:
                try:
                    self._ends = await self._find(self._partitions.lags())
                except ClientError as error:
                    self._ends = {}
                    _log.warning("ends of partitions: %s; they are looked up again", error)
            else:
                self._ends = {}
            await asyncio.sleep(interval_ms / 1000)

    async def _find(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the ends of committed records, without partitions that do not tell it. Raise ClientError."""
        failed: dict[Partition, ClientError] = {}
        core = self._source.core
        steps = core.list_offsets(list(partitions), LATEST, isolation_level=READ_COMMITTED, failed=failed)
        ends: Mapping[Partition, int | None] = await self._source.run(steps)
        return {key: end for key, end in ends.items() if end is not None}
