"""A TCP proxy that cuts, delays and swallows: what a network does between a process and its coordinator."""

import socket
import threading


class TcpProxy:
    """Forwards connections to `port` of 127.0.0.1 from its own `port`; a context manager.

    `cut()` breaks the connections and takes no more until `heal()`; `blackhole` swallows bytes, the connection stays;
    `delay_s` holds each piece back for so long.
    """

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.delay_s = 0.0
        self.blackhole = False
        self._refuses = False
        self._pairs = []
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closed.set()
        self._listener.close()
        self.cut()

    def cut(self):
        self._refuses = True
        pairs, self._pairs = self._pairs, []
        for one in [one for pair in pairs for one in pair]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself

    def heal(self):
        """Forward again. Connections that lost bytes in the blackhole are broken: TCP would not go on past a gap."""
        if self.blackhole:
            self.cut()
        self._refuses = self.blackhole = False
        self.delay_s = 0.0

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
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
        except OSError:
            pass  # cut
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
