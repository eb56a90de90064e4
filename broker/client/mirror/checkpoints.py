"""SHELL (asyncio): the progress that a mirror keeps at its target, as committed offsets of a group without members."""

import asyncio
from collections.abc import Iterable, Mapping

from broker.client.address import Address
from broker.client.asyncio import AsyncClient
from broker.client.errors import RETRIABLE, BrokerError, CommitFailed, Unreachable
from broker.client.group_requests import (
    CommittedOffset,
    GroupIdentity,
    commit_offsets,
    fetch_offsets,
    find_coordinator,
)
from broker.client.leaders import Partition
from broker.client.subscription import named
from broker.wire.errors import ErrorCode

RETRY_SECONDS = 0.2
RETRIES_MAX = 25  # five seconds, for a coordinator that moves
PASSING = RETRIABLE | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT}


class Checkpoints:
    """Commits of the group `group`, which has no members."""

    def __init__(self, client: AsyncClient, group: str = "") -> None:
        self.group = group
        self._client = client
        self._coordinator: Address | None = None

    async def read(self, partitions: Iterable[Partition]) -> dict[Partition, CommittedOffset]:
        """Return the committed offsets; partitions without one are left out. Raise BrokerError, Unreachable."""
        try:
            at = await self._found_coordinator()
            stored = await self._client.run(fetch_offsets(self._client.core, at, self.group, partitions))
        except (BrokerError, Unreachable):
            self._coordinator = None
            raise
        return {key: committed for key, committed in stored.items() if committed.offset >= 0}

    async def write(self, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Commit offsets. Raise CommitFailed, BrokerError or Unreachable."""
        for left in reversed(range(RETRIES_MAX)):
            try:
                at = await self._found_coordinator()
                who = GroupIdentity(self.group)
                codes = await self._client.run(commit_offsets(self._client.core, at, who, offsets))
            except (BrokerError, Unreachable) as error:
                if not left or not (isinstance(error, Unreachable) or error.retriable):
                    raise
            else:
                failed = {key: code for key, code in codes.items() if code is not ErrorCode.NONE}
                if not failed:
                    return
                if not left or not set(failed.values()) <= PASSING:
                    reasons = ", ".join(sorted({code.name for code in failed.values()}))
                    raise CommitFailed(f"group {self.group}: {named(failed)} not committed: {reasons}")
                offsets = {key: offset for key, offset in offsets.items() if key in failed}
            self._coordinator = None
            await asyncio.sleep(RETRY_SECONDS)

    async def _found_coordinator(self) -> Address:
        if self._coordinator is None:
            self._coordinator = await self._client.run(find_coordinator(self._client.core, self.group))
        return self._coordinator
