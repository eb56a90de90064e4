"""Which transactional batches the cleaner may drop (KIP-98, KIP-534), decided in offset order.

The cleaner drops the records of an aborted transaction. It may drop a marker once no batch of its transaction is left,
and only after the marker's delete horizon, because a reader in the middle of the transaction must still see it.
"""

from collections import deque
from collections.abc import Iterable

from broker.log.index.txn_index import AbortedTransaction
from broker.record.batch import TRANSACTIONAL_BIT, BatchHeader
from broker.record.control import Marker


class Transactions:
    """State of the transactions met so far; the caller passes every batch in order.

    `aborted` lists the aborted transactions with records or a marker in the part that is read.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_met: set[int] = set()
        self._committed_met: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def take_kept(self) -> list[AbortedTransaction]:
        """Return the aborted transactions that still have batches and whose marker was passed since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def _come_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0].first_offset <= offset:
            aborted = self._to_come.popleft()
            self._aborted[aborted.producer_id] = aborted

    def may_drop_data(self, header: BatchHeader) -> bool:
        """Return True if a data batch belongs to an aborted transaction."""
        if not header.attributes & TRANSACTIONAL_BIT:
            return False
        self._come_to(header.last_offset)
        if header.producer_id in self._aborted:
            self._aborted_met.add(header.producer_id)
            return True
        self._committed_met.add(header.producer_id)
        return False

    def may_drop_marker(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Return True if no batch of a marker's transaction has been met.

        `marker` is None if the control batch is emptied, or is not about transactions.
        """
        self._come_to(header.last_offset)
        if marker is None:
            return header.record_count == 0
        producer_id = header.producer_id
        if marker.commit:
            met = producer_id in self._committed_met
            self._committed_met.discard(producer_id)
            return not met
        met = producer_id in self._aborted_met
        self._aborted_met.discard(producer_id)
        aborted = self._aborted.pop(producer_id, None)
        if aborted is not None and met:
            self._kept.append(aborted)
        return aborted is None or not met
