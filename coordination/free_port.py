"""SHELL (sockets): a free port of 127.0.0.1 for a server that cannot choose one itself, or restarts on it."""

import socket
import sys
from types import TracebackType


class FreePort:
    """A free port `number`, reserved until `close`; a context manager.

    The port is bound but not listened on, so connections to it are refused. On Linux a server that sets SO_REUSEADDR,
    as servers do, can listen on it all the same, and again after a crash. On other systems the reservation ends at
    once: the port is only known to have been free.
    """

    def __init__(self, number: int = 0) -> None:
        """Reserve a port, or the one with this number; raise OSError if that is in use."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", number))
        self.number = int(self._socket.getsockname()[1])
        if sys.platform != "linux":
            self.close()

    @property
    def address(self) -> str:
        """The address as `host:port`."""
        return f"127.0.0.1:{self.number}"

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "FreePort":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
