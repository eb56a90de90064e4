"""A consumer's belief that its session lives, by its own clock.

ZooKeeper ends a session no earlier than its timeout after it received the last request. The consumer counts from the
moment when it sent the last write that was answered, so it stops first. The timeout is the one that ZooKeeper has
granted. The clock must run while the machine sleeps.
"""

from coordination.port import Multi, Operation


class SessionBelief:
    """How long the session lives for certain. `timeout_ms` may change when another server serves the session."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._proved_ms: int | None = None
        """When the last write was sent that was answered."""
        self._sent_ms: dict[int, tuple[Operation, int]] = {}
        """By the identity of the operation, because equal operations may be under way."""

    @property
    def until_ms(self) -> int | None:
        """When the session may end; None before the first proof."""
        return None if self._proved_ms is None else self._proved_ms + self.timeout_ms

    @property
    def proof_due_ms(self) -> int | None:
        """When the next proof is due, so that two may get lost before the belief ends."""
        return None if self._proved_ms is None else self._proved_ms + self.timeout_ms // 3

    def sent(self, operation: Operation, now_ms: int) -> None:
        if isinstance(operation, Multi):
            self._sent_ms[id(operation)] = operation, now_ms

    def answered(self, operation: Operation, outcome: object) -> None:
        """Take the outcome of an operation. A Multi that succeeded has checked the registration, so it is a proof."""
        _, sent_ms = self._sent_ms.pop(id(operation), (None, None))
        if sent_ms is not None and isinstance(outcome, tuple):
            self._proved_ms = sent_ms if self._proved_ms is None else max(self._proved_ms, sent_ms)

    def lives(self, now_ms: int) -> bool:
        return self._proved_ms is not None and now_ms < self._proved_ms + self.timeout_ms

    def end(self) -> None:
        """Forget all proofs, because they are of a session that is over."""
        self._sent_ms.clear()
        self._proved_ms = None
