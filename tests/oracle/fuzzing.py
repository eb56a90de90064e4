"""Mutated frames for one broker in memory. A seed repeats a round: `play(seed, frames)`.

A round is one broker. Its frames are those of real clients (tests.oracle.recorded), most of them damaged, on a few
connections. After each frame the broker has reported no fault of its own, and a refused frame has changed no log and no
journal. After the last frame every connection closes, and nothing waits any more.
"""

from random import Random

from broker.wire import produce
from broker.wire.errors import ErrorCode
from broker.wire.frame import read_request_header
from tests.broker.engine_client import EngineBroker
from tests.oracle import recorded
from tests.oracle.mutations import mutated
from tests.oracle.requests import LENGTH_BYTES, PRODUCE

FRAMES_OF_A_ROUND = 5_000
CONNECTIONS = 6
DAMAGED = 0.9
STEP_MS, LATER_MS = 20, 3_600_000
LATE = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR
"""Errors of batches that may have been appended."""
SETTINGS = recorded.SETTINGS | {"auto_create_topics_enable": True, "auto_create_topics_max": 2, "max_partitions": 500}


class Round:
    """One broker and its connections. `counts` has the number of answered frames and of closed connections."""

    def __init__(self, seed):
        self.chance = Random(seed)
        self.broker = EngineBroker(max_ahead_ms=LATER_MS, **SETTINGS)
        self.clients = [self.broker.connect() for _ in range(CONNECTIONS)]
        self.counts = {"frames": 0, "answered": 0, "closed": 0}

    def play(self, frames):
        strays = recorded.strays()
        for _ in range(frames):
            frame = self.chance.choice(strays)
            if self.chance.random() < DAMAGED:
                frame = mutated(self.chance, frame, strays)
            self.send(self.chance.randrange(CONNECTIONS), frame.data)
            if self.chance.random() < 0.1:
                self.broker.at(self.broker.now_ms + STEP_MS)
        self.end()
        return self.counts

    def send(self, number, data):
        client = self.clients[number]
        before, alone = self.logs(), is_alone(client, data)
        client.received.clear()  # of requests whose answers had to wait
        client.feed(data)
        self.counts["frames"] += 1
        self.check_reports()
        if client.closed is not None:
            self.counts["closed"] += 1
            assert self.logs() == before or not alone, f"{client.closed}: {data.hex()}"
            self.clients[number] = self.broker.connect()
        elif client.received:
            self.counts["answered"] += 1
            if alone and int.from_bytes(data[4:6], "big") == PRODUCE:
                self.check_refused(client, data, before)
            client.received.clear()
        elif self.chance.random() < 0.3:  # part of a frame, or a request that waits
            self.broker.engine.closed(client.conn)
            self.clients[number] = self.broker.connect()

    def logs(self):
        """Return the ends of the logs that clients write, and the sizes of journals."""
        logs = self.broker.services.logs.all()
        ends = {log.name: log.log_end_offset for log in logs if not log.topic.startswith("__")}
        journals = [len(file.data) for path, file in self.broker.storage.files.items() if path.endswith(".journal")]
        return ends, journals

    def check_refused(self, client, data, before):
        """A Produce whose every partition is refused has changed nothing."""
        header = read_request_header(memoryview(data)[LENGTH_BYTES:])
        answer = memoryview(bytes(client.received))[8 + (header.version >= 9) :]
        results = produce.decode_response(header.version, answer, 0)
        if all(result.error_code and result.error_code not in LATE for result in results):
            assert self.logs() == before, data.hex()

    def check_reports(self):
        faults = [line for line in self.broker.reported if "fault of the broker's own" in line]
        assert not faults, faults[0]
        self.broker.reported.clear()

    def end(self):
        """Close every connection, and let all that waits come to its end."""
        for client in self.clients:
            if client.closed is None:
                self.broker.engine.closed(client.conn)
        self.broker.at(self.broker.now_ms + 60_000)
        self.check_reports()
        assert self.broker.engine.connections == 0 and not self.broker.engine.has_work
        assert not self.broker.services.logs.offline


def is_alone(client, data):
    """Return True if the data is one frame, and the connection has no earlier request."""
    conn = client.conn
    is_whole = int.from_bytes(data[:LENGTH_BYTES], "big") == len(data) - LENGTH_BYTES
    is_idle = conn.readable and conn.frame is None and not conn.slots
    return is_whole and is_idle and not conn.decoder.unread_bytes and conn.decoder.partial is None


def play(seed, frames=FRAMES_OF_A_ROUND):
    """Play a round, and return its counts."""
    return Round(seed).play(frames)
