"""SHELL (unix sockets, a thread): sessions in one directory wake each other.

    <directory>/wake/<session id>    the datagram socket of a session that asked for wake-ups; the folder is its owner's

A datagram has the paths of the nodes that changed, one on each line, or ANY. It may get lost, if the receiver does not
read (a stopped process): so the receiver also looks for itself, about once a second. Datagrams that wait in numbers are
taken for ANY, because the kernel drops those that come after them.
"""

import os
import socket
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread, Timer

from coordination.socket_folder import make_folder, opened_folder

FOLDER = "wake"
ANY = b"*"  # no path: each node may have changed
DATAGRAM_BYTES_MAX = 32_768
WAITING_MAX = 10  # datagrams; net.unix.max_dgram_qlen is 10 in an old kernel, else 512


class WakeUps:
    """The socket of one session. `wake` is called in its thread when a changed path `concerns` the session."""

    def __init__(
        self, directory: Path, session_id: int, wake: Callable[[], None], concerns: Callable[[str], bool]
    ) -> None:
        self._directory = directory
        self._name = str(session_id)
        self.wake = wake
        self._concerns = concerns
        self._lock = Lock()
        self._changed: dict[str, None] = {}
        self._any = True
        self._is_timed = False
        make_folder(directory / FOLDER)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with opened_folder(directory / FOLDER) as folder:
                self._socket.bind(f"{folder.path}/{self._name}")
        except OSError:
            self._socket.close()
            raise
        Thread(target=self._receive, name=f"wake-ups of {directory}", daemon=True).start()

    def take_changed(self) -> Collection[str] | None:
        """Return the changed paths since the last call, or None if each node may have changed."""
        with self._lock:
            changed, self._changed = self._changed, {}
            any_, self._any = self._any, False
        return None if any_ else changed

    def wake_in(self, seconds: float) -> None:
        """Call `wake` later, in a thread. Calls before that are one call."""
        if not self._is_timed:
            self._is_timed = True
            timer = Timer(seconds, self._wake_in_time)
            timer.daemon = True
            timer.start()

    def _wake_in_time(self) -> None:
        self._is_timed = False  # before `wake`, which may ask for the next call
        self.wake()

    def close(self) -> None:
        """Remove the socket; its thread ends."""
        (self._directory / FOLDER / self._name).unlink(missing_ok=True)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the socket in a forked child, which has no thread; it stays the parent's."""
        self._socket.close()

    def _receive(self) -> None:
        with self._socket:
            while datagrams := self._read_all():
                paths = {path for datagram in datagrams for path in datagram.decode().split("\n")}
                if len(datagrams) >= WAITING_MAX:
                    paths.add(ANY.decode())
                if self._note(paths):
                    self.wake()

    def _read_all(self) -> list[bytes]:
        """Wait for a datagram; return all that wait, none at the end."""
        datagrams: list[bytes] = []
        with suppress(BlockingIOError):
            while datagram := self._socket.recv(DATAGRAM_BYTES_MAX, socket.MSG_DONTWAIT if datagrams else 0):
                datagrams.append(datagram)
            return []
        return datagrams

    def _note(self, paths: Collection[str]) -> bool:
        """Keep the paths that concern the session; return True if there are any."""
        any_ = ANY.decode() in paths
        concerned = [path for path in paths if self._concerns(path)]
        with self._lock:
            self._any = self._any or any_
            self._changed.update(dict.fromkeys(concerned))
        return any_ or bool(concerned)


def wake_all(directory: str | os.PathLike[str]) -> None:
    """Wake all sessions in a directory, because another one may have ended: a parent calls this after a death."""
    _send(Path(directory), ANY)


def wake_for(directory: Path, paths: Iterable[str]) -> None:
    """Wake the sessions that watch one of the nodes, which have changed."""
    text = "\n".join(paths).encode()
    _send(directory, text if len(text) <= DATAGRAM_BYTES_MAX else ANY)


def _send(directory: Path, datagram: bytes) -> None:
    """Send to all sockets. An error is not told, because the change was made, and sessions look for themselves too."""
    with suppress(OSError):
        names = os.listdir(directory / FOLDER)
        if not names:
            return
        with opened_folder(directory / FOLDER) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for name in names:
                try:
                    sender.sendto(datagram, f"{folder.path}/{name}")
                except ConnectionRefusedError:  # its process has ended
                    (directory / FOLDER / name).unlink(missing_ok=True)
                except OSError:
                    continue  # it does not read, or has just ended
