"""One connection as the engine sees it: bytes become requests, replies leave in the order of their requests.

A request that waits holds a slot; replies behind it wait with it, though they may be ready. `readable` is false, and
the shell stops reading, while too many requests wait, while too many bytes are unread by the peer, while a request must
be tried again later (`hold`), or while its client is over a quota (`mute`).
"""

from collections import deque

from broker.purgatory import AnyDelayed
from broker.shortcut import Known, Shortcut
from broker.wire.frame import Part
from broker.wire.frame_decoder import FrameDecoder


class Slot:
    """The place of one reply. `delayed` is what it waits for, until `parts` are there; it began to at `began_ns`."""

    __slots__ = ("parts", "delayed", "began_ns")

    def __init__(self) -> None:
        self.parts: list[Part] | None = None
        self.delayed: AnyDelayed | None = None
        self.began_ns = 0


class Connection:
    """`peer` is "host:port", `listener` the name of where it connected to. `out` is what `Engine.take_replies` hands
    to the shell. `queued_bytes` are those of all answers that have not been sent, whether in `out`, behind a slot that
    waits, or with the shell. `readable`: another request may be taken from this peer now."""

    __slots__ = (
        "peer",
        "listener",
        "decoder",
        "slots",
        "out",
        "queued_bytes",
        "held",
        "close_reason",
        "active_ms",
        "again",
        "known",
        "taken",
        "readable",
        "muted",
        "_starved",
        "_max_inflight",
        "_max_queued_bytes",
    )

    def __init__(
        self, peer: str, max_frame_bytes: int, max_inflight: int, max_queued_bytes: int, listener: str = ""
    ) -> None:
        self.peer = peer
        self.listener = listener
        self.decoder = FrameDecoder(max_frame_bytes)
        self.slots: deque[Slot] = deque()
        self.out: list[Part] = []
        self.queued_bytes = 0
        self.held: memoryview | None = None
        self.close_reason: str | None = None
        self.active_ms = 0
        self.again: Shortcut | None = None
        self.known: dict[int, Known] = {}  # by API key
        self.taken = False
        """A request of this turn is on the short way."""
        self.readable = True
        self.muted: AnyDelayed | None = None
        """What it waits for while its client is over a quota (KIP-219)."""
        self._starved = False
        self._max_inflight = max_inflight
        self._max_queued_bytes = max_queued_bytes

    def look(self) -> None:
        """`readable` anew. A request asks for it several times, so what may change it says so instead."""
        self.readable = (
            self.held is None
            and len(self.slots) + self.taken < self._max_inflight
            and self.queued_bytes < self._max_queued_bytes
            and self.close_reason is None
            and not self._starved
            and self.muted is None
        )

    def close(self, reason: str) -> bool:
        """Read nothing more, for this reason; False where there is one already."""
        if self.close_reason is not None:
            return False
        self.close_reason = reason
        self.readable = False
        return True

    def starve(self, starved: bool) -> None:
        """Whether its next request waits for memory (broker.request_memory)."""
        self._starved = starved
        self.look()

    def mute(self, muted: AnyDelayed | None) -> None:
        """Read nothing until this is over; None once it is."""
        self.muted = muted
        self.look()

    def hold(self, frame: memoryview) -> None:
        """Keep a request that is to be tried again, before any that follow it."""
        self.held = memoryview(bytearray(frame))
        self.readable = False

    def release(self) -> memoryview | None:
        frame, self.held = self.held, None
        self.look()
        return frame

    def take(self) -> None:
        """A request goes the short way; `taken` until it is answered, or has to wait, or goes the long way."""
        self.taken = True
        if len(self.slots) + 1 >= self._max_inflight:
            self.readable = False

    def let_go(self) -> None:
        """The request on the short way is there no more."""
        self.taken = False
        if not self.readable:
            self.look()

    def answer(self, reply: bytes) -> None:
        """The whole answer of the request on the short way."""
        self.taken = False
        self.queued_bytes += len(reply)
        if self.slots:
            self.wait().parts = [reply]
        else:
            self.out.append(reply)
        if not self.readable or self.queued_bytes >= self._max_queued_bytes:
            self.look()

    def put(self, parts: list[Part], size: int) -> None:
        """A reply of so many bytes, for now or behind the slots that wait."""
        self.queued_bytes += size
        if self.queued_bytes >= self._max_queued_bytes:
            self.readable = False
        if self.slots:
            self.wait().parts = parts
            return
        self.out += parts

    def wait(self) -> Slot:
        slot = Slot()
        self.slots.append(slot)
        if len(self.slots) + self.taken >= self._max_inflight:
            self.readable = False
        return slot

    def fill(self, slot: Slot, parts: list[Part], size: int) -> None:
        """The reply of a slot is there; it leaves with all that are ready behind it."""
        self.queued_bytes += size
        slot.parts = parts
        slot.delayed = None
        slots = self.slots
        while slots and slots[0].parts is not None:
            self.out += slots.popleft().parts or []
        if not self.readable or self.queued_bytes >= self._max_queued_bytes:
            self.look()
