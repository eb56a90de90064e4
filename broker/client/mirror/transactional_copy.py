"""SHELL (asyncio): copies one partition in transactions of the target: its records and the source's offset together.

    open --> put, put, ... --> a transaction of what was put --> the next one

Each partition has a transactional id of its own. `open` fences the mirror that copied the partition before, and aborts
what it left open. After that the offset in the target is settled, and the copy goes on there. So a mirror that was
thought dead can write no more, and no record is copied twice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from broker.client.asyncio import AsyncClient
from broker.client.core import Steps
from broker.client.errors import ClientError, MustAbort, TryAgain
from broker.client.group_requests import GroupIdentity
from broker.client.leaders import Partition
from broker.client.mirror.progress import PartitionProgress, TakenBatch
from broker.client.mirror.source_batch import OutgoingBatch
from broker.client.transaction import TransactionalProducer, TransactionPhase

BATCHES_MAX = 100  # batches of one transaction
LINGER_SECONDS = 0.05  # a transaction begins so long after its first batch, so that it has several

_log = logging.getLogger("broker.client.mirror")


class TransactionalCopy:
    """The copy of one partition. `progress` is set once it is known where the copy goes on."""

    def __init__(
        self,
        client: AsyncClient,
        transactional_id: str,
        group: str,
        key: Partition,
        on_change: Callable[[], None],
        on_failure: Callable[[ClientError], None],
    ) -> None:
        """Copy into `key`, a partition of the target. `on_failure` is called if the partition has to be opened anew."""
        self.queued_bytes = 0
        self._client = client
        self._producer = TransactionalProducer(client.core, transactional_id)
        self._identity = GroupIdentity(group)
        self._key = key
        self._on_change = on_change
        self._on_failure = on_failure
        self._waiting: deque[tuple[TakenBatch, Sequence[OutgoingBatch]]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._progress: PartitionProgress | None = None

    async def open(self) -> None:
        """Fence the mirror that copied the partition before. Raise ClientError."""
        await self._carry_out(self._producer.begin)

    def begin(self, progress: PartitionProgress) -> None:
        """Copy what `put` adds from now on."""
        self._progress = progress
        self._task = asyncio.get_running_loop().create_task(self._run(progress))

    def put(self, taken: TakenBatch, batches: Sequence[OutgoingBatch]) -> None:
        """Queue the batches that were made of a batch of the source."""
        self._waiting.append((taken, batches))
        self.queued_bytes += sum(len(batch.data) for batch in batches)
        self._wake.set()

    async def close(self) -> None:
        """Copy no more. A transaction that is open is aborted by the broker, at the latest when `open` fences it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, progress: PartitionProgress) -> None:
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(LINGER_SECONDS)
                await self._transact(progress)
                if not self._waiting:
                    self._wake.clear()
        except MustAbort as error:
            try:
                await self._carry_out(self._producer.abort)
            except ClientError as second:
                _log.warning("%s", second)
            self._on_failure(error)
        except ClientError as error:
            self._on_failure(error)
        finally:
            self._waiting.clear()
            self.queued_bytes = 0

    async def _transact(self, progress: PartitionProgress) -> None:
        """Copy some batches in one transaction."""
        if self._producer.state is TransactionPhase.READY:
            await self._carry_out(self._producer.begin)
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCHES_MAX))]
        for _, batches in some:
            for batch in batches:
                self._producer.add_batch(*self._key, batch)
        await self._carry_out(self._producer.flush)
        offsets = iter(self._producer.base_offsets.get(self._key, []))
        for taken, batches in some:
            for batch in batches:
                offset = next(offsets)
                progress.acknowledged(taken, offset if offset >= 0 else None, batch.record_count, len(batch.data))
                self.queued_bytes -= len(batch.data)
        committed = progress.to_commit()
        if committed is not None:
            self._producer.add_offsets(self._identity, {self._key: committed})
        await self._carry_out(self._producer.commit)
        self._on_change()

    async def _carry_out(self, operation: Callable[[], Steps[None]]) -> None:
        last = ""
        while True:
            try:
                await self._client.run(operation())
                return
            except TryAgain as error:
                if str(error) != last and error.pause_ms > 200:  # the first repetitions are usual
                    last = str(error)
                    _log.warning("%s-%d: %s; it is tried again", *self._key, error)
                await asyncio.sleep(error.pause_ms / 1000)
