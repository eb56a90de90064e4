"""The brokers that a client knows, in the order in which it tries them with a request that any broker can answer.

A broker that knew less than the client is tried after the others, and one that did not answer is the last of all. So a
broker that is down or cut off delays one request, and not each. The bootstrap addresses are kept for the case that all
brokers of the last Metadata answer are gone.
"""

from collections.abc import Iterable, Mapping

from broker.client.address import Address


class KnownNodes:
    """The live brokers as the last Metadata answer names them, and the bootstrap addresses."""

    def __init__(self, bootstrap: Iterable[Address]) -> None:
        self.bootstrap = list(bootstrap)
        self.by_id: dict[int, Address] = {}
        self._answered_last: Address | None = None
        self._unreachable: dict[Address, None] = {}  # the one that is avoided longest first
        self._in_doubt: dict[Address, None] = {}  # the same

    def learn(self, by_id: Mapping[int, Address]) -> None:
        """Replace the brokers."""
        self.by_id = dict(by_id)
        there = {*self.by_id.values(), *self.bootstrap}
        self._unreachable = {address: None for address in self._unreachable if address in there}
        self._in_doubt = {address: None for address in self._in_doubt if address in there}

    def answered(self, address: Address) -> None:
        """Try this broker first from now on."""
        self._answered_last = address
        self.trust(address)

    def doubt_answer(self) -> None:
        """Try the broker that answered last after all others that answer from now on."""
        if self._answered_last is not None:
            self._in_doubt.pop(self._answered_last, None)
            self._in_doubt[self._answered_last] = None

    def avoid(self, address: Address) -> None:
        """Try this broker last from now on, because it did not answer."""
        self._unreachable.pop(address, None)
        self._unreachable[address] = None

    def trust(self, address: Address) -> None:
        """Try a broker as usual again."""
        self._unreachable.pop(address, None)
        self._in_doubt.pop(address, None)

    def in_order(self) -> list[Address]:
        """Return all addresses, the one to try first first."""
        nodes = sorted(self.by_id.values(), key=lambda address: address != self._answered_last)
        away = {address: rank for rank, address in enumerate(self._unreachable, 1)}
        in_doubt = {address: rank for rank, address in enumerate(self._in_doubt, 1)}
        return sorted(
            dict.fromkeys([*nodes, *self.bootstrap]),
            key=lambda address: (away.get(address, 0), in_doubt.get(address, 0)),
        )
