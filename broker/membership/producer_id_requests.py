"""Blocks of producer ids that this broker asks the controller for (KIP-730, AllocateProducerIds).

One request is under way at a time. A broker that is no longer the controller, or does not answer, is asked again after
a pause, as whoever is the controller then. A block whose answer was lost is never used: blocks are plenty.
"""

from collections.abc import Callable
from typing import Any

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.types import BrokerId
from kio.static.primitive import i64

from broker.membership.peer_calls import PeerCalls
from broker.metadata.image import NO_CONTROLLER
from broker.metadata.producer_ids import ProducerIds
from broker.now import Now
from broker.wire.errors import ErrorCode

RETRY_MS = 100  # as the pause of a controller's channel


class ProducerIdRequests:
    """Fills `producer_ids` with blocks. `controller_id` and `broker_epoch` return the present ones."""

    def __init__(
        self, broker_id: int, peers: PeerCalls, broker_epoch: Callable[[], int], controller_id: Callable[[], int]
    ) -> None:
        self.producer_ids = ProducerIds()
        self.producer_ids.reserve = self._reserve
        self.on_block: Callable[[Now], None] = lambda now: None
        """Called once there are more ids."""
        self._broker_id = broker_id
        self._peers = peers
        self._broker_epoch = broker_epoch
        self._controller_id = controller_id
        self._is_wanted = False
        self._is_under_way = False
        self._due_ms = 0

    def _reserve(self) -> None:
        self._is_wanted = True

    def request(self, now: Now) -> None:
        """Ask for a block, unless that is done already."""
        self._is_wanted = True
        self.tick(now)

    def tick(self, now: Now) -> None:
        """Send the request that waits, if it is due."""
        if not self._is_wanted or self._is_under_way or now.ms < self._due_ms:
            return
        controller_id = self._controller_id()
        if controller_id == NO_CONTROLLER:
            self._due_ms = now.ms + RETRY_MS
            return
        request = AllocateProducerIdsRequest(
            broker_id=BrokerId(self._broker_id), broker_epoch=i64(self._broker_epoch())
        )
        self._is_under_way = True
        self._peers.ask(controller_id, request, self._answered, now)

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due."""
        return self._due_ms if self._is_wanted and not self._is_under_way else None

    def _answered(self, response: Any | None, now: Now) -> None:
        self._is_under_way = False
        if response is None or response.error_code != ErrorCode.NONE:
            self._due_ms = now.ms + RETRY_MS
            return
        self._is_wanted = False
        first = int(response.producer_id_start)
        self.producer_ids.add(range(first, first + int(response.producer_id_len)))
        self.on_block(now)
