"""The producer ids of one broker: it gives them away from blocks that the controller reserved for it (KIP-98)."""

from collections import deque
from collections.abc import Callable

from broker.log.storage.port import StorageError
from broker.record.records import LONG_MAX

BLOCK = 1000  # as Kafka's
ALL = LONG_MAX
"""The end of doubtful ids while it is not known which of them were given away."""
AHEAD = 100  # as Kafka, get the next block when a tenth is left; a restart skips at most 1,100 ids


class NoProducerIds(StorageError):
    """No producer id is left. A block of them must be reserved first."""

    def __init__(self) -> None:
        super().__init__("producer ids", "no block of producer ids is reserved yet")


class ProducerIds:
    """The reserved producer ids that are still unused."""

    def __init__(self) -> None:
        self._blocks: deque[range] = deque()
        self.left = 0
        """The number of reserved ids."""
        self.doubtful_end = 0
        """Transactional ids get a new producer id in place of one below it (broker.txn.coordinator).

        ALL, until the next block comes, on a broker of a cluster after an unclean start.
        """
        self.reserve: Callable[[], None] = lambda: None
        """Called when few ids are left; it has the next block reserved."""

    def add(self, block: range) -> None:
        """Add ids that are reserved for this broker; they are given away after those it has."""
        self._blocks.append(block)
        if self.doubtful_end == ALL:
            self.doubtful_end = block.start  # blocks rise, so all earlier ids are below this one
        self.left += len(block)

    def take(self) -> int:
        """Return an unused producer id. Raise NoProducerIds."""
        if self.left <= AHEAD:
            self.reserve()
        if not self.left:
            raise NoProducerIds
        block = self._blocks[0]
        self.left -= 1
        if len(block) == 1:
            self._blocks.popleft()
        else:
            self._blocks[0] = block[1:]
        return block[0]
