"""A connection that acts for another client: the principal and the host that its requests are judged by."""

from dataclasses import dataclass
from typing import Any


@dataclass
class DelegatedClient:
    """The client for which a connection acts; `user` is the name of its principal of type User."""

    user: str
    address: str


class Delegation(dict[str, Any]):
    """The answer to an Envelope that was taken. From then on its connection acts for `client`."""

    def __init__(self, client: DelegatedClient, answer: dict[str, Any]) -> None:
        super().__init__(answer)
        self.client = client
