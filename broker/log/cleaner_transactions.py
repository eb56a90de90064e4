"""Which transactional batches the cleaner may drop (KIP-98, KIP-534), as it goes through a log from offset to offset.

Records of an aborted transaction go. A marker may go once nothing of its transaction is left, and then only when its
delete horizon has passed: a reader on its way through the transaction must still meet it.
"""

from collections import deque
from collections.abc import Iterable

from broker.log.txn_index import AbortedTransaction
from broker.record.batch import BatchHeader
from broker.record.control import Marker


class Transactions:
    """Fed with every batch in order. `aborted` are those that have records or their marker in what is read."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_met: set[int] = set()
        self._committed_met: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def take_kept(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers were passed since the last call and of which batches are left."""
        kept, self._kept = self._kept, []
        return kept

    def _come_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0].first_offset <= offset:
            aborted = self._to_come.popleft()
            self._aborted[aborted.producer_id] = aborted

    def may_drop_data(self, header: BatchHeader) -> bool:
        """A batch of records: whether it is of a transaction that was aborted."""
        self._come_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted_met.add(header.producer_id)
            return True
        self._committed_met.add(header.producer_id)
        return False

    def may_drop_marker(self, header: BatchHeader, marker: Marker | None) -> bool:
        """A control batch: whether no batch of its transaction has been met. `marker` is None where it is emptied, or
        not about transactions."""
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
