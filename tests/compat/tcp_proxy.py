"""A TCP proxy that cuts, delays and swallows, as a network between a process and its coordinator may."""

import os
import socket
import threading
from contextlib import suppress
from pathlib import Path


class TcpProxy:
    """A context manager that forwards connections from its own `port` to the given `port` of 127.0.0.1.

    `cut()` breaks the connections and refuses new ones until `heal()`; `cut(*pids)` does so only with connections of
    these processes (Linux). `blackhole` swallows bytes but keeps the connections open; `swallow()` does so from the
    next connection on. `delay_s` delays each chunk by this many seconds.
    """

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.delay_s = 0.0
        self.blackhole = False
        self.given_up = threading.Event()  # a peer has closed a connection whose bytes were swallowed
        self._refuses = False
        self._refused_pids = ()
        self._pairs = []
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closed.set()
        self._listener.close()
        self.cut()

    def cut(self, *pids):
        self._refuses, self._refused_pids = not pids, pids
        pairs = [pair for pair in self._pairs if self._is_refused(pair[0])]
        self._pairs = [pair for pair in self._pairs if pair not in pairs]
        for end in [end for pair in pairs for end in pair]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended already

    def _is_refused(self, client):
        return self._refuses or any(_has_socket(pid, client) for pid in self._refused_pids)

    def swallow(self):
        """Cut the connections, and swallow what comes on new ones."""
        self.blackhole = True
        self.cut()
        self.given_up.clear()
        self._refuses = False

    def heal(self):
        """Forward again. Cut connections that lost bytes in the blackhole, because TCP cannot continue past a gap."""
        if self.blackhole:
            self.cut()
        self._refuses = self.blackhole = False
        self._refused_pids = ()
        self.delay_s = 0.0

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_refused(client):
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                self._closed.wait(self.delay_s)
                if not self.blackhole:
                    sink.sendall(data)
            if self.blackhole and any(source is client for client, _ in self._pairs):
                self.given_up.set()
        except OSError:
            pass  # cut
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def _has_socket(pid, accepted):
    """Return True if the other end of an accepted connection belongs to a process."""
    try:
        port = accepted.getpeername()[1]
    except OSError:
        return False  # it has ended already
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if int(row[1].rpartition(":")[2], 16) == port}
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(entry.path) in inodes:
                return True
    return False
