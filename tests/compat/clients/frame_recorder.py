"""A proxy between real clients and a real broker that records every frame, in the order of the requests.

    with FrameRecorder() as recorder, ServerProcess(dir, {"advertised.listeners": recorder.listener}) as server:
        recorder.forward_to(server.address)
        ...                                   # clients speak to recorder.address
    recorder.exchanges()                      # tests.golden.frames.Exchange

The broker advertises the proxy's address, so that clients that follow its metadata connect to the proxy again.
"""

import socket
import threading
from itertools import count

from tests.golden.frames import Exchange

_LENGTH_BYTES = 4


class FrameRecorder:
    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._upstream = None
        self._requests = []
        self._answers = {}
        self._sockets = []
        self._lock = threading.Lock()
        self._numbers = count(1)

    @property
    def address(self):
        return "127.0.0.1:{}".format(self._listening.getsockname()[1])

    @property
    def listener(self):
        return f"PLAINTEXT://{self.address}"

    def forward_to(self, address):
        host, _, port = address.rpartition(":")
        self._upstream = host, int(port)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for endpoint in (self._listening, *self._sockets):
            _shut(endpoint)

    def exchanges(self):
        """Return the exchanges recorded so far."""
        with self._lock:
            return [
                Exchange(connection, request, self._answers.get((connection, request[4:8])))
                for connection, request in self._requests
            ]

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # closed
            self._sockets.append(client)
            try:
                broker = socket.create_connection(self._upstream)
            except ConnectionRefusedError:
                client.close()  # the broker has stopped, but this client does not know yet
                continue
            self._sockets.append(broker)
            number = next(self._numbers)
            for source, target, keep in ((client, broker, self._record_request), (broker, client, self._record_answer)):
                threading.Thread(target=_pump, args=(source, target, number, keep), daemon=True).start()

    def _record_request(self, connection, frame):
        with self._lock:
            self._requests.append((connection, frame))

    def _record_answer(self, connection, frame):
        with self._lock:
            self._answers[connection, frame[:4]] = frame


def _pump(source, target, connection, keep):
    """Copy frames from `source` to `target`, and record each with `keep`, until either side closes."""
    try:
        while head := _read(source, _LENGTH_BYTES):
            frame = _read(source, int.from_bytes(head, "big"))
            keep(connection, frame)
            target.sendall(head + frame)
    except OSError:
        pass
    _shut(source)
    _shut(target)


def _read(source, size):
    """Return `size` bytes, or fewer if the peer has closed."""
    data = b""
    while len(data) < size and (more := source.recv(size - len(data))):
        data += more
    return data


def _shut(endpoint):
    try:
        endpoint.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the peer closed first
    endpoint.close()
