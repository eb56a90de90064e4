"""The client of a command. It gives up early on ports that are no broker's, and says on stderr what it waits for."""

from broker.client.blocking import Client
from broker.client.core import Address, Exchange
from broker.wire.schema import name_of
from flakelog.commands.waiting import Patience, answer_seconds, contact_seconds


class CommandClient(Client):
    """A client with the command's --timeout."""

    def __init__(self, servers: str) -> None:
        super().__init__(servers, answer_seconds(), connect_timeout=contact_seconds())
        self._patience = Patience()

    def send(self, exchange: Exchange) -> None:
        self._patience.begin(lambda: f"{exchange.address} ({name_of(exchange.api_key)})")
        try:
            super().send(exchange)
        except BaseException:
            self._patience.end()
            raise

    def receive(self, address: Address) -> memoryview:
        try:
            return super().receive(address)
        finally:
            self._patience.end()

    def close(self) -> None:
        self._patience.close()
        super().close()
