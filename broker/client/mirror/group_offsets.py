"""SHELL (asyncio): writes the offsets of the source's groups into the target, translated by the pairs of offsets.

A group is left alone that has members at the target, and an offset there that is as far or farther.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from broker.client.asyncio import AsyncClient
from broker.client.errors import BrokerError, ClientError, CommitFailed
from broker.client.group_admin import committed_offsets, list_groups
from broker.client.group_requests import CommittedOffset
from broker.client.leaders import Partition
from broker.client.mirror.checkpoints import Checkpoints
from broker.client.mirror.names import is_mirror_group
from broker.client.mirror.offset_pairs import OffsetPairs
from broker.client.mirror.translation import takes_offsets, translated

_log = logging.getLogger("broker.client.mirror")


class GroupOffsets:
    """The offsets of all groups of the source that have committed some for the partitions of a mirror."""

    def __init__(
        self, source: AsyncClient, target: AsyncClient, target_of: Callable[[Partition], Partition]
    ) -> None:
        self._source = source
        self._target = target
        self._target_of = target_of
        self._logged: set[str] = set()  # troubles of the last time
        self._troubles: set[str] = set()

    async def follow_by_time(self, interval_ms: int, pairs: Callable[[], Mapping[Partition, OffsetPairs]]) -> None:
        """Write the offsets of the partitions with these pairs, again and again."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await self.follow(pairs())
            except ClientError as error:
                self._tell(f"offsets of groups: {error}; they are written later")
            self._logged, self._troubles = self._troubles, set()

    def _tell(self, trouble: str) -> None:
        """Log a trouble, once while it lasts."""
        self._troubles.add(trouble)
        if trouble not in self._logged:
            _log.warning("%s", trouble)

    async def follow(self, pairs: Mapping[Partition, OffsetPairs]) -> None:
        """Write the offsets once. Raise ClientError."""
        if not pairs:
            return
        groups = await self._source.run(list_groups(self._source.core))
        there = {group.group_id: group for group in await self._target.run(list_groups(self._target.core))}
        for group in groups:
            if not is_mirror_group(group.group_id) and takes_offsets(there.get(group.group_id)):
                try:
                    await self._follow_group(group.group_id, pairs)
                except (BrokerError, CommitFailed) as error:  # such as a group that this program may not read
                    self._tell(f"offsets of group {group.group_id}: {error}; they are written later")

    async def _follow_group(self, group_id: str, pairs: Mapping[Partition, OffsetPairs]) -> None:
        offsets = await self._source.run(committed_offsets(self._source.core, group_id))
        if offsets.keys().isdisjoint(pairs):
            return
        known = await self._target.run(committed_offsets(self._target.core, group_id))
        wanted = translated(offsets, pairs, known, self._target_of)
        if wanted:
            commits = {key: CommittedOffset(offset) for key, offset in wanted.items()}
            await Checkpoints(self._target, group_id).write(commits)
