"""SHELL (unix sockets): a folder of sockets that only its owner may open.

The path of a socket has at most 107 bytes (unix(7)), 103 on macOS. So an open folder names its sockets as
/proc/self/fd/N/name, where the system has that, however long the path of the folder is.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from coordination.port import CoordinatorUnavailable

FOLDER_MODE, SOCKET_MODE = 0o700, 0o600
PATH_BYTES_MAX = 103


class SocketFolder:
    """An open folder. The paths that it gives are valid in this process until `close`."""

    def __init__(self, folder: Path) -> None:
        """Open the folder; raise CoordinatorUnavailable if the system cannot name sockets in it. Raise OSError."""
        self._folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._is_open = True
        short = f"/proc/self/fd/{self._descriptor}"
        self.path = short if os.path.isdir(short) else str(folder)

    def socket_path(self, name: str) -> str:
        path = f"{self.path}/{name}"
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise CoordinatorUnavailable(
                f"{self._folder}/{name} is too long for a socket, which may have {PATH_BYTES_MAX} bytes: give a data "
                "directory with a shorter path"
            )
        return path

    def free(self, name: str) -> str:
        """Remove the socket that an earlier process left; return its path. Raise OSError."""
        path = self.socket_path(name)
        if os.path.lexists(path):
            os.unlink(path)
        return path

    def listen(self, name: str, backlog: int) -> socket.socket:
        """Return a listening, non-blocking socket in place of an earlier one of this name. Raise OSError."""
        path = self.free(name)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(path)
            os.chmod(path, SOCKET_MODE)
            listening.setblocking(False)
            listening.listen(backlog)
        except OSError:
            listening.close()
            raise
        return listening

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)


def make_folder(folder: Path) -> None:
    """Create the folder, unless it exists, and let its owner alone use it. Raise OSError."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    folder.chmod(FOLDER_MODE)


@contextmanager
def opened_folder(folder: Path) -> Iterator[SocketFolder]:
    """Open a folder for as long as the block runs."""
    with closing(SocketFolder(folder)) as opened:
        yield opened
