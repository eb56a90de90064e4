"""The producer ids of a broker of a cluster: blocks of them, which the controller allocates (KIP-730).

One request is under way at a time (Kafka's RPCProducerIdManager). If it fails, it is repeated after a pause, to the
controller that the image names by then. If an answer is lost, the ids of its block stay unused.
"""

from collections.abc import Callable

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i64

from broker.membership.peer_calls import PeerCalls
from broker.metadata.image import Image
from broker.metadata.producer_ids import ProducerIds
from broker.now import Now
from broker.wire.errors import ErrorCode

RETRY_MS = 50  # as Kafka's brokers


class ProducerIdRequests:
    """Keeps `ids` filled. `added` is called after each new block, `broker_epoch` returns the broker's present epoch."""

    def __init__(
        self,
        calls: PeerCalls,
        ids: ProducerIds,
        image: Image,
        broker_id: int,
        broker_epoch: Callable[[], int],
        added: Callable[[Now], None],
        report: Callable[[str], None],
    ) -> None:
        self._calls = calls
        self._ids = ids
        self._image = image
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._added = added
        self._report = report
        self._is_wanted = False
        self._is_under_way = False
        self._retry_ms = 0
        self._is_failing = False
        """True from a failure to the next block, so that the operator is informed once."""
        ids.reserve = self.reserve

    def reserve(self) -> None:
        """Have the next block allocated, at the next `tick`."""
        self._is_wanted = True
        self._calls.pending.calls = True

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, on the monotonic clock; None if no block is wanted, or its request is under way.
        """
        return self._retry_ms if self._is_wanted and not self._is_under_way else None

    def tick(self, now: Now) -> None:
        """Ask for a block, if one is wanted and the pause after a failure is over."""
        if not self._is_wanted or self._is_under_way or now.ms < self._retry_ms:
            return
        controller_id = self._image.controller_id
        if controller_id not in self._image.live_ids:
            self._try_later("no controller is known", now)
            return
        request = AllocateProducerIdsRequest(
            broker_id=BrokerId(self._broker_id), broker_epoch=i64(self._broker_epoch())
        )

        def answered(response: AllocateProducerIdsResponse | None, at: Now) -> None:
            self._answered(controller_id, response, at)

        self._is_under_way = True
        self._calls.ask(controller_id, request, answered, now)

    def _answered(self, controller_id: int, response: AllocateProducerIdsResponse | None, now: Now) -> None:
        self._is_under_way = False
        code = ErrorCode.NETWORK_EXCEPTION if response is None else ErrorCode(response.error_code)
        if response is None or code or response.producer_id_len <= 0:
            self._try_later(f"controller {controller_id} answers {code.name}", now)
            return
        self._ids.add(range(response.producer_id_start, response.producer_id_start + response.producer_id_len))
        self._is_wanted = self._is_failing = False
        self._added(now)

    def _try_later(self, reason: str, now: Now) -> None:
        self._retry_ms = now.ms + RETRY_MS
        if not self._is_failing:
            self._is_failing = True
            self._report(f"producer ids cannot be allocated, and are tried again: {reason}")
