"""SHELL (asyncio): what a consumer commits for its group, and what the group has committed."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from broker.client.asyncio import AsyncClient
from broker.client.consumer_core import ConsumerCore
from broker.client.core import Address
from broker.client.errors import BrokerError, ClientError, CommitFailed, Unreachable
from broker.client.group_protocol import Partition
from broker.client.group_requests import (
    CommittedOffset,
    GroupIdentity,
    commit_offsets,
    fetch_offsets,
    find_coordinator,
)
from broker.client.group_thread import GroupThread
from broker.client.subscription import named
from broker.wire.errors import ErrorCode

RETRY_SECONDS = 0.2
RETRIES_MAX = 25  # five seconds, for a rebalance, a former owner's transaction, or a coordinator that moves
LAST_COMMIT_SECONDS = 10.0  # longest wait for the commit of partitions that the consumer hands over

PASSING = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)

_log = logging.getLogger("broker.client.consumer")


class ConsumerOffsets:
    """The committed offsets of a consumer's group. `thread` is its member, once it joins."""

    def __init__(self, client: AsyncClient, group: str | None, core: ConsumerCore) -> None:
        self.thread: GroupThread | None = None
        self._client = client
        self._group = group
        self._core = core
        self._coordinator: Address | None = None
        self._latest: dict[Partition, object] = {}  # the latest commit of each partition

    @property
    def identity(self) -> GroupIdentity:
        """The member as commits name it. Raise CommitFailed without a group."""
        if self.thread is None:
            raise CommitFailed("this consumer is in no group now")
        return self.thread.identity

    async def commit(self, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Commit offsets for the group; wait for a rebalance that passes. Raise CommitFailed.

        A later commit of the same partition takes the place of one that is tried again.
        """
        self._need_group()
        left, this = dict(offsets), object()
        self._latest |= dict.fromkeys(left, this)
        resets = {key: self._core.resets_of(key) for key in left}

        def is_current(key: Partition) -> bool:
            """Return True unless a later commit has taken this one's place, or the log has become another."""
            return self._latest[key] is this and self._core.resets_of(key) == resets[key]

        problem, cause = "its coordinator is not known", None
        for _ in range(RETRIES_MAX):
            left = {key: offset for key, offset in left.items() if is_current(key)}
            if not left:
                return
            gone = [key for key in left if self.thread is not None and not self.thread.owns(key)]
            if gone:
                raise CommitFailed(f"group {self._group}: this consumer does not own {named(gone)} now")
            try:
                at = await self._found_coordinator()
                codes = await self._client.run(commit_offsets(self._client.core, at, self.identity, left))
            except (BrokerError, Unreachable) as error:
                if not passes(error):
                    raise
                problem, cause = str(error), error
            else:
                done = {key: offset for key, offset in left.items() if codes.get(key) is ErrorCode.NONE}
                self._core.committed({key: offset for key, offset in done.items() if is_current(key)})
                left = {key: offset for key, offset in left.items() if key not in done}
                if not left:
                    self._core.figures.commits += 1
                    return
                cause = None
                problem = ", ".join(sorted({code.name for key in left if (code := codes.get(key)) is not None}))
                if any(codes.get(key) not in PASSING for key in left):
                    break
            self.forget_coordinator()
            await asyncio.sleep(RETRY_SECONDS)
        raise CommitFailed(f"group {self._group}: {named(left)} not committed: {problem}") from cause

    async def commit_last(self, partitions: Iterable[Partition]) -> None:
        """Commit partitions that the consumer gives up. A failure is logged."""
        offsets, wanted = self._core.to_commit(), set(partitions)
        try:
            async with asyncio.timeout(LAST_COMMIT_SECONDS):
                await self.commit({key: offset for key, offset in offsets.items() if key in wanted})
        except ClientError as error:
            _log.warning("%s; records since the last commit come again", error)
        except TimeoutError:
            waited = f"group {self._group}: no commit within {LAST_COMMIT_SECONDS:g} s"
            _log.warning("%s; records since the last commit come again", waited)

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, CommittedOffset]:
        """Return what the group has committed, without partitions of which it has committed nothing.

        Raise BrokerError UNSTABLE_OFFSET_COMMIT while an open transaction may change it (KIP-447).
        """
        if self._group is None:
            return {}
        coordinator = await self._found_coordinator()
        offsets = await self._client.run(fetch_offsets(self._client.core, coordinator, self._group, partitions))
        return {partition: committed for partition, committed in offsets.items() if committed.offset >= 0}

    async def settled(self, partitions: Iterable[Partition]) -> dict[Partition, CommittedOffset]:
        """Return what the group has committed, after transactions that are about to end. Raise CommitFailed."""
        self._need_group()
        wanted = list(partitions)
        for left in reversed(range(RETRIES_MAX)):
            try:
                return await self.committed(wanted)
            except (BrokerError, Unreachable) as error:
                if not left or not passes(error):
                    raise
            self.forget_coordinator()
            await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError("the last attempt returns or raises")

    def forget_coordinator(self) -> None:
        """Look up the coordinator again."""
        self._coordinator = None

    def _need_group(self) -> None:
        if self._group is None:
            raise CommitFailed("this consumer has no group, so it commits nothing: give it group='...'")

    async def _found_coordinator(self) -> Address:
        known = self.thread.coordinator if self.thread is not None else None
        at = known or self._coordinator
        if at is None:
            at = self._coordinator = await self._client.run(find_coordinator(self._client.core, str(self._group)))
        return at


def passes(error: BrokerError | Unreachable) -> bool:
    """Return True for an error that another attempt may not meet."""
    return isinstance(error, Unreachable) or error.retriable or error.code in PASSING
