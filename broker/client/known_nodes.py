"""The brokers that a client knows, in the order in which it tries them with a request that any broker can answer.

A broker that did not answer, or that knew less than the client, is tried after all others, so that a broker that is
down or cut off delays one request, and not each. The bootstrap addresses are kept for the case that all brokers of the
last Metadata answer are gone.
"""

from collections.abc import Iterable, Mapping

from broker.client.address import Address


class KnownNodes:
    """The live brokers as the last Metadata answer names them, and the bootstrap addresses."""

    def __init__(self, bootstrap: Iterable[Address]) -> None:
        self.bootstrap = list(bootstrap)
        self.by_id: dict[int, Address] = {}
        self._answered_last: Address | None = None
        self._avoided: dict[Address, None] = {}  # the one that is avoided longest first

    def learn(self, by_id: Mapping[int, Address]) -> None:
        """Replace the brokers."""
        self.by_id = dict(by_id)
        there = {*self.by_id.values(), *self.bootstrap}
        self._avoided = {address: None for address in self._avoided if address in there}

    def answered(self, address: Address) -> None:
        """Try this broker first from now on."""
        self._answered_last = address
        self.trust(address)

    def doubt_answer(self) -> None:
        """Try the broker that answered last after all others from now on."""
        if self._answered_last is not None:
            self.avoid(self._answered_last)

    def avoid(self, address: Address) -> None:
        """Try this broker last from now on."""
        self._avoided.pop(address, None)
        self._avoided[address] = None

    def trust(self, address: Address) -> None:
        """Try a broker as usual again."""
        self._avoided.pop(address, None)

    def in_order(self) -> list[Address]:
        """Return all addresses, the one to try first first."""
        nodes = sorted(self.by_id.values(), key=lambda address: address != self._answered_last)
        ranks = {address: rank for rank, address in enumerate(self._avoided, 1)}
        return sorted(dict.fromkeys([*nodes, *self.bootstrap]), key=lambda address: ranks.get(address, 0))
