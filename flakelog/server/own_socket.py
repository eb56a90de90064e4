"""The socket at which the console reaches the broker of its process, with an authorizer, or without a plain listener.

Only the owner of the data directory may open it. With an authorizer its clients have the console's principal.
"""

from collections.abc import Callable
from pathlib import Path

from broker.net.server import BrokerServer
from coordination.socket_folder import SocketFolder, make_folder
from flakelog.console.own_place import OwnPlace
from flakelog.server.cluster_coordinator import SOCKETS

CONSOLE = "CONSOLE"
_SOCKET = "console"


def listen_at_own_socket(network: BrokerServer, data_dir: Path, backlog: int) -> tuple[OwnPlace, Callable[[], None]]:
    """Let the broker listen, as CONSOLE, at a socket of the data directory. Return the place, and what gives it back.

    Raise OSError.
    """
    folder = data_dir / SOCKETS
    make_folder(folder)
    sockets = SocketFolder(folder)
    network.bind_local(sockets.listen(_SOCKET, backlog), CONSOLE)
    return OwnPlace(_SOCKET, 0, sockets), sockets.close
