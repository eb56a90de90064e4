"""The client of a command. It gives up early on ports that are no broker's, and says on stderr what it waits for."""

import socket

from broker.client.blocking import Client
from broker.client.connection import SPEAKS_HTTP
from broker.client.core import Address, Exchange
from broker.client.errors import NoAnswer, Unreachable
from broker.wire.schema import name_of
from flakelog.commands.command_config import given_security
from flakelog.commands.waiting import Patience, answer_seconds, contact_seconds

HTTP_SECONDS = 0.6  # the rest of 5 s of silence, after CONTACT_SECONDS; HTTP servers answer at once
PROBE = b"FLAKELOG"  # the method of a request that looks for an HTTP server


class CommandClient(Client):
    """A client with the command's --timeout and --command-config."""

    def __init__(self, servers: str) -> None:
        answer_ms, contact_ms = _ms(answer_seconds()), _ms(contact_seconds())
        super().__init__(servers, timeout_ms=answer_ms, connect_timeout_ms=contact_ms, security=given_security())
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
        except NoAnswer as error:
            if not error.is_broker and self._is_plain(address) and speaks_http(address):
                raise Unreachable(error.address, SPEAKS_HTTP) from error
            raise
        finally:
            self._patience.end()

    def _is_plain(self, address: Address) -> bool:
        security = self.security_at(address)
        return security is None or security.context() is None

    def close(self) -> None:
        self._patience.close()
        super().close()


def _ms(seconds: float) -> int:
    """Return whole milliseconds, at least 1: a socket with a timeout of 0 does not wait at all."""
    return max(1, round(seconds * 1000))


def speaks_http(address: Address) -> bool:
    """Return True if an HTTP server is at the address: it waits for the end of a header, and so says nothing before.

    The method is PROBE, which no HTTP server knows (it answers with 501, RFC 9110, section 15.6.2): a broker whose
    answer is late recognizes it, and its log does not name a client of HTTP.
    """
    try:
        with socket.create_connection(address, HTTP_SECONDS) as sock:
            sock.sendall(PROBE + b" /- HTTP/1.0\r\n\r\n")
            return sock.recv(len(b"HTTP")).startswith(b"HTTP")
    except OSError:
        return False
