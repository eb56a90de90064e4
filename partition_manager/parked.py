"""The messages of a task that failed because of an outage that a bolt reported. They wait for their turns.

A message is parked after it failed. In its turn it is emitted, and another turn follows when that attempt has ended. If
it fails again because of the outage it is parked again, behind the others.
"""

from typing import NamedTuple


class TopicPartitionOffset(NamedTuple):
    """A message of a log."""

    topic: str
    partition: int
    offset: int


class Turn(NamedTuple):
    """A parked message whose turn it is. `ticket` is that of the attempt that failed."""

    message: TopicPartitionOffset
    ticket: int


class Parked:
    """Parked messages in the order of their turns, and those that are tried now. Each is one of a manager's messages.

    So the limits on unsettled messages bound their number.
    """

    def __init__(self) -> None:
        self._tickets: dict[TopicPartitionOffset, int] = {}  # of the attempts that failed
        self._tried: set[int] = set()  # tickets of the attempts in flight

    def __bool__(self) -> bool:
        """Return True if a message is parked or tried."""
        return bool(self._tickets or self._tried)

    @property
    def is_waiting(self) -> bool:
        """Return True if a message is parked and none is tried."""
        return bool(self._tickets) and not self._tried

    def park(self, message: TopicPartitionOffset, ticket: int) -> None:
        """Park a message behind the others."""
        self._tickets[message] = ticket

    def next(self) -> Turn | None:
        """Return the message whose turn it is, and put it behind the others until it is emitted; None if one is tried.
        """
        if not self.is_waiting:
            return None
        message = next(iter(self._tickets))
        ticket = self._tickets[message] = self._tickets.pop(message)
        return Turn(message, ticket)

    def forget(self, message: TopicPartitionOffset) -> None:
        """Drop a message that its partition no longer has."""
        self._tickets.pop(message, None)

    def emitted(self, message: TopicPartitionOffset, ticket: int) -> None:
        """Note an emission: if the message is parked, it is tried now."""
        if self._tickets.pop(message, None) is not None:
            self._tried.add(ticket)

    def is_tried(self, ticket: int) -> bool:
        """Return True if this attempt is of a message that was parked."""
        return ticket in self._tried

    def ended(self, ticket: int) -> None:
        """Note that an attempt has ended."""
        self._tried.discard(ticket)

    def take(self) -> list[Turn]:
        """Return and clear all parked messages, because the outage is over."""
        turns = [Turn(message, ticket) for message, ticket in self._tickets.items()]
        self._tickets.clear()
        self._tried.clear()
        return turns
