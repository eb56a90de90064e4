"""The place at which the console reaches the broker of its process."""

from typing import NamedTuple

from coordination.socket_folder import SocketFolder


class OwnPlace(NamedTuple):
    """An address, or the name of a socket in a folder, whose port is 0."""

    host: str
    port: int
    sockets: SocketFolder | None = None
