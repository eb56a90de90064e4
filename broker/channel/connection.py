"""The engine's state of one connection: bytes become requests, replies leave in the order of their requests.

A request that waits holds a slot; replies behind it wait with it, though they may be ready. `readable` is False while
too many requests wait, while too many bytes of replies are unsent, while a request must be tried again later (`hold`),
while a request is executed in slices (`slice`), while the later requests must see what an earlier one changes
(`wait_behind`), or while its client is over a quota (`mute`): no request of the connection is executed then, and the
shell stops reading.
"""

from collections import deque

from broker.log.validation.open_job import OpenJob
from broker.security.authorization.rights import ConnectionRights
from broker.security.principal_rules import ANONYMOUS
from broker.security.sasl.authentication import Authentication
from broker.waiting.purgatory import AnyDelayed
from broker.wire.frame import Part
from broker.wire.frame_decoder import FrameDecoder


class Slot:
    """The place of one reply. `delayed` is what it waits for until `parts` are set; it has waited since `began_ns`."""

    __slots__ = ("parts", "delayed", "began_ns")

    def __init__(self) -> None:
        self.parts: list[Part] | None = None
        self.delayed: AnyDelayed | None = None
        self.began_ns = 0


class Connection:
    """The state of a connection. `peer` is "host:port", `listener` the name of the listener it connected to.

    `out` is what `Engine.take_replies` hands to the shell. `queued_bytes` counts all replies that have not been sent,
    whether in `out`, behind a slot that waits, or with the shell. `staged` counts the Produce requests of this turn.
    `queued`: the connection is in the engine's queue. `wants_data`: the shell may read from the socket.
    """

    __slots__ = (
        "peer", "listener", "user", "rights", "authentication", "decoder", "frame", "slots", "out", "queued_bytes",
        "held", "close_reason", "active_ms",
        "key_end", "staged", "queued", "readable", "backlogged", "due_ns", "muted", "behind", "_sliced",
        "_lacks_memory", "_lacks_ids", "_awaits_turn", "was_paused", "opened", "_max_inflight", "_max_queued_bytes",
    )  # fmt: skip

    def __init__(
        self, peer: str, max_frame_bytes: int, max_inflight: int, max_queued_bytes: int, listener: str = ""
    ) -> None:
        self.peer = peer
        self.listener = listener
        self.user = ANONYMOUS
        """The user that the peer has proved to be; ANONYMOUS, as in Kafka, if it has proved nothing."""
        self.authentication: Authentication | None = None
        """How the peer proves its user, None if its listener does not ask."""
        self.rights: ConnectionRights | None = None
        """The rights of the client; without an authorizer None, and the client may do everything."""
        self.decoder = FrameDecoder(max_frame_bytes)
        self.frame: memoryview | None = None
        """A request that came as one whole frame, with nothing before it in the decoder."""
        self.slots: deque[Slot] = deque()
        self.out: list[Part] = []
        self.queued_bytes = 0
        self.held: memoryview | None = None
        self.opened: OpenJob | None = None
        """The job that opens the records of one request, from its begin until the request is executed."""
        self.close_reason: str | None = None
        self.active_ms = 0
        self.key_end = 0
        """`key_end` of the template that the last Produce had (ProduceTemplates.open); 0 before the first Produce."""
        self.staged = 0
        self.queued = False
        self.readable = True
        self.was_paused = False
        """True if `readable` was False since the last look of RequestMemory, which sets it back."""
        self.due_ns = 0
        """When the backlog may have a request executed again, if other connections have requests."""
        self.backlogged = False
        """True if more bytes of requests wait to be executed than the engine wants to keep."""
        self.muted: AnyDelayed | None = None
        """The end of the pause while the client is over a quota (KIP-219)."""
        self.behind: AnyDelayed | None = None
        """The waiting request whose answer comes before any later request is executed."""
        self._sliced = 0
        self._lacks_memory = False
        self._lacks_ids = False
        self._awaits_turn = False
        self._max_inflight = max_inflight
        self._max_queued_bytes = max_queued_bytes

    @property
    def address(self) -> str:
        """Return the address of the peer, without the port."""
        return self.peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:")  # IPv4 on a listener of IPv6

    @property
    def has_room(self) -> bool:
        """True if one more request may wait for its answer."""
        return len(self.slots) + self.staged < self._max_inflight

    @property
    def has_requests(self) -> bool:
        """True if whole requests wait to be executed, and not for the answer to an earlier one."""
        if self.close_reason is not None or self.slots:
            return False
        return self.frame is not None or self.held is not None or self.staged > 0 or self.decoder.has_frame()

    @property
    def wants_data(self) -> bool:
        return self.readable and not self.backlogged

    def update_readable(self) -> None:
        """Compute `readable` again, after one of its conditions has changed."""
        self.was_paused = self.was_paused or not self.readable
        self.readable = (
            self.held is None
            and len(self.slots) + self.staged < self._max_inflight
            and self.queued_bytes < self._max_queued_bytes
            and self.close_reason is None
            and not self._lacks_memory
            and not self._lacks_ids
            and not self._awaits_turn
            and self.muted is None
            and not self._sliced
            and self.behind is None
        )

    def unread(self) -> None:
        """Give the frame that came alone back to the decoder, so that others can follow it."""
        frame, self.frame = self.frame, None
        if frame is not None:
            self.decoder.put_back(frame)

    def close(self, reason: str) -> bool:
        """Execute nothing more, and keep the reason; return False if the connection has a reason already."""
        if self.close_reason is not None:
            return False
        self.close_reason = reason
        self.readable = False
        return True

    def wait_for_memory(self, waits: bool) -> None:
        """Set whether the next request waits for memory (broker.channel.request_memory)."""
        self._lacks_memory = waits
        self.update_readable()

    def slice(self, change: int) -> None:
        """Count a request that is executed in slices (+1), or its end (-1); later requests wait for the end."""
        self._sliced += change
        self.update_readable()

    def wait_for_ids(self) -> None:
        """Execute nothing until the staged requests are answered, because there are no ids for them yet."""
        self._lacks_ids = True
        self.readable = False

    @property
    def is_dormant(self) -> bool:
        """True while the shell need not look whether it may be read from again. Thousands may be dormant.

        The connection is closed, or waits for its turn to log in; `take_stalled` returns it once its turn has come.
        """
        return self._awaits_turn or self.close_reason is not None

    def wait_for_turn(self, waits: bool) -> None:
        """Set whether the peer waits for others to authenticate before it may."""
        self._awaits_turn = waits
        self.update_readable()

    def mute(self, muted: AnyDelayed | None) -> None:
        """Execute nothing until `muted` is over; None ends the pause."""
        self.muted = muted
        self.update_readable()

    def wait_behind(self, delayed: AnyDelayed | None) -> None:
        """Execute nothing until `delayed` is answered; None ends the pause."""
        self.behind = delayed
        self.update_readable()

    def hold(self, frame: memoryview) -> None:
        """Keep a copy of a request that is to be tried again, before any that follow it."""
        self.held = memoryview(bytearray(frame))
        self.readable = False

    def take_back(self, frame: memoryview) -> None:
        """Put a request, whose bytes stay valid, before all that are not executed yet."""
        self.unread()
        if self.readable and self.decoder.is_empty:
            self.frame = frame  # without a copy
        else:
            self.decoder.put_back(frame)

    def release(self) -> memoryview | None:
        frame, self.held = self.held, None
        self.update_readable()
        return frame

    def unstaged(self) -> None:
        """Note that every staged request is answered or waits in a slot, so that none waits for ids."""
        self._lacks_ids = False
        self.update_readable()

    def put_reply(self, reply: bytes) -> None:
        """`put` for a reply of one part."""
        self.queued_bytes += len(reply)
        if self.queued_bytes >= self._max_queued_bytes:
            self.readable = False
        if self.slots:
            self.wait().parts = [reply]
        else:
            self.out.append(reply)

    def put(self, parts: list[Part], size: int) -> None:
        """Add a reply of `size` bytes: to `out`, or behind the slots that wait."""
        self.queued_bytes += size
        if self.queued_bytes >= self._max_queued_bytes:
            self.readable = False
        if self.slots:
            self.wait().parts = parts
            return
        self.out += parts

    def wait(self) -> Slot:
        """Add a slot for a reply that comes later."""
        slot = Slot()
        self.slots.append(slot)
        if len(self.slots) >= self._max_inflight:
            self.readable = False
        return slot

    def fill(self, slot: Slot, parts: list[Part], size: int) -> None:
        """Put the reply of a slot; it leaves with all that are ready behind it."""
        self.queued_bytes += size
        slot.parts = parts
        slot.delayed = None
        slots = self.slots
        while slots and slots[0].parts is not None:
            self.out += slots.popleft().parts or []
        if not self.readable or self.queued_bytes >= self._max_queued_bytes:
            self.update_readable()
