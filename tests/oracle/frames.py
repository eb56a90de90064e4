"""Scripts: what clients send to a broker, made from a seed.

A script is a dictionary that the driver (driver.py) plays on any tree:

    settings        the broker's settings, as fields
    topics          [(name, partitions, properties)], made before anything else
    steps           tuples, of which the first item names a method `do_...` of the driver's Player:
        turn        deliveries in one turn of the reactor: (connection, frames, sizes of receives, bytes held back)
        at          milliseconds that pass
        await       a connection, and the longest time to wait for an answer to it, ms
        close       a connection that the client closes
        hold, release       the disk takes its time; the disk finishes what it was asked for
        disk        bytes that are free, None for no limit
        fail        the syncs of all journals (True) or of none (False) fail from now on
        cool        all files leave the page cache
        crash       "kill", "clean" or "power"
    whole_files     whether the report has the bytes of files, or only their digests

A frame in a script is (bytes, fills, seals, learn) of `requests.Frame`. Bytes held back come with the connection's next
delivery.
"""

from random import Random

from tests.oracle import recorded
from tests.oracle.actors import Lister, ManyPartitions, Producer, Reader, Transactions, Visitor, World
from tests.oracle.mutations import mutated
from tests.oracle.requests import ALTER_CLIENT_QUOTAS

START_MS = 1_000  # EngineBroker's clock at its start
RECORDED_CONNECTIONS, STRAY_CONNECTIONS = 100, 90
SHARES = ((Producer, 40), (ManyPartitions, 9), (Transactions, 12), (Reader, 18), (Lister, 7), (Visitor, 10))
"""(client, its share of the frames)."""
CLIENTS = 16
AWAIT_MS = 5_000
MAX_AHEAD_MS = 1 << 24
"""Ids never run out: a request that waits for ids at one commit need not wait at another."""
MUTATED, STRAY = 0.14, 0.04
LATELY = 40  # frames that mutations splice from

# No topic has ids as headers: the tree before takes ids for a batch and then finds that it has no records.
PROPERTIES = (
    {},
    {},
    {"flakelog_durable_acks": "true"},
    {"flakelog_durable_acks": "true"},
    {"message_timestamp_type": "LogAppendTime"},
    {"cleanup_policy": "compact"},
    {"segment_bytes": "2000"},
    {"segment_bytes": "5000", "flakelog_durable_acks": "true", "index_interval_bytes": "0"},
    {"compression_type": "lz4"},
    {"compression_type": "zstd"},
    {"compression_type": "uncompressed"},
    {"compression_type": "gzip", "message_timestamp_type": "LogAppendTime"},
    {"flush_messages": "1"},
    {"flush_ms": "100"},
    {"flakelog_visible_after_flush": "true"},
    {"flakelog_visible_after_flush": "true", "flakelog_durable_acks": "true"},
    {"max_message_bytes": "400"},
    {"message_timestamp_before_max_ms": "60000", "message_timestamp_after_max_ms": "20"},
    {"retention_bytes": "4000", "segment_bytes": "1500", "file_delete_delay_ms": "100"},
)
NAME_LENGTHS = (1, 2, 7, 30, 62, 125, 126, 127, 128, 249)
SETTINGS = (
    {},
    {},
    {},
    {"socket_request_max_bytes": 20_000},
    {"log_flush_offset_checkpoint_interval_ms": 500},
    {"producer_id_expiration_ms": 3_000},
    {"max_producers_per_partition": 2},
    {"max_incremental_fetch_session_cache_slots": 2},
    {"max_batch_records": 20},
    {"max_opened_batch_records": 5},
    {"fetch_max_bytes": 2_000},
    {"connections_max_idle_ms": 4_000},
    {"log_retention_check_interval_ms": 1_000},
)
BY_SIZE = ({"journal_max_bytes": 1 << 16}, {"background_sync_bytes": 1 << 16})
"""Settings that sync batches by the size of a write; a tree may write several requests of a turn together."""


def script(seed, frames):
    """Make a script of `frames` requests, damaged ones included, with one request in a turn."""
    return Maker(seed).script(frames)


def several_script(seed, frames):
    """Make a script in which a connection sends several requests in a turn."""
    return Maker(seed, several=True).script(frames)


def full_disk_script(seed, frames):
    """Make a script with one request in a turn and a disk that is full for some turns."""
    return Maker(seed, fills_disk=True).script(frames)


class Maker:
    """Makes one script."""

    def __init__(self, seed, several=False, fills_disk=False):
        self._seed = seed
        self._several = several
        self._fills_disk = fills_disk
        ids_are_free = several or fills_disk
        self._chance = chance = Random(f"oracle {seed}")
        self.settings = {"new_partitions_max": 20, "max_ahead_ms": MAX_AHEAD_MS, **recorded.SETTINGS}
        self.settings["auto_create_topics_enable"] = chance.random() < 0.3
        for chosen in chance.sample(SETTINGS if several else SETTINGS + BY_SIZE, 2):
            self.settings |= chosen
        if several:
            self.settings["log_roll_ms"] = 1 << 60  # damaged times roll a log, and one write is in one segment
        self.topics = [
            (self._name(number), chance.choice((1, 2, 3)), chance.choice(PROPERTIES)) for number in range(10)
        ]
        self.steps = []
        self.frames = 0
        self._world = World(chance, list(self.topics), START_MS, several, ids_are_free)
        self._clients = self._make_clients()
        self._lately = []
        self._held_back = set()
        self._disk_full_until = None

    def _name(self, number):
        length = self._chance.choice(NAME_LENGTHS)
        return f"{number}{'abc-DEF_9.' * 25}"[:length]

    def _make_clients(self):
        kinds = [kind for kind, _ in SHARES]
        clients = {kind: [] for kind in kinds}
        for conn in range(CLIENTS):
            kind = kinds[conn] if conn < len(kinds) else self._choose_kind()
            clients[kind].append(kind(self._world, conn))
        return clients

    def _choose_kind(self):
        (kind,) = self._chance.choices([kind for kind, _ in SHARES], [share for _, share in SHARES])
        return kind

    def script(self, frames):
        # A recorded session comes first, because the recorded broker had seen no other client before.
        if self._seed % 2 == 0:
            names = sorted(recorded.sessions())
            self._play(recorded.sessions()[names[self._seed // 2 % len(names)]], frames // 2)
        elif self._chance.random() < 0.5:
            self.topics.append(("flights", 2, self._chance.choice(PROPERTIES[:8])))  # the topic of recorded frames
        while self.frames < frames:
            self._happen()
            self._send()
        return {
            "settings": self.settings, "topics": self.topics, "steps": self.steps,
            "whole_files": self._several or self._fills_disk,
        }  # fmt: skip

    # --- sending -----------------------------------------------------------------------------------------------------

    def _play(self, session, most):
        """A recorded session; damaged copies of some of its frames come on connections that no client uses."""
        for sent in session[:most]:
            if self._chance.random() < 0.1 and sent.frame.api_key != ALTER_CLIENT_QUOTAS:
                self._deliver_alone(STRAY_CONNECTIONS, self._damaged(sent.frame))
                self._step("close", STRAY_CONNECTIONS)
            conn = RECORDED_CONNECTIONS + sent.connection
            self._deliver(conn, [sent.frame])
            if sent.answered:
                self._step("await", conn, AWAIT_MS)
        self._world.now_ms += 10 * most  # about: the driver waits for answers

    def _send(self):
        chance = self._chance
        if chance.random() < STRAY:
            stray = chance.choice(recorded.strays())
            self._deliver_alone(self._stray_connection(), self._damaged(stray) if chance.random() < 0.4 else stray)
            return
        client = chance.choice(self._clients[self._choose_kind()])
        frames = []
        for _ in range(chance.choice((1,) * 8 + (2, 2, 3, 5, 12)) if self._several else 1):
            frame = client.next_frame()
            if chance.random() < MUTATED and frame.api_key != ALTER_CLIENT_QUOTAS:
                # The damaged frame comes before the good one, on its connection or on another one.
                if chance.random() < 0.6:
                    frames.append(self._damaged(frame))
                else:
                    self._deliver_alone(self._stray_connection(), self._damaged(frame))
            frames.append(frame)
        if self._several:
            self._deliver(client.conn, frames)
            return
        for frame in frames:
            self._deliver_alone(client.conn, frame)

    def _stray_connection(self):
        return STRAY_CONNECTIONS + self._chance.randrange(4)

    def _damaged(self, frame):
        return mutated(self._chance, frame, self._lately)

    def _deliver_alone(self, conn, frame):
        """Send a frame that is the only request of its turn, unless the script may have several."""
        if self._several or frame.bytes_promised >= 0:
            self._deliver(conn, [frame])
            if frame.bytes_promised and not self._several:
                self._step("close", conn)

    def _deliver(self, conn, frames):
        """Send frames, sometimes in several receives, and sometimes with the last bytes in a later turn."""
        chance = self._chance
        self._lately = [*self._lately[-LATELY:], *frames]
        self.frames += len(frames)
        size = sum(len(frame.data) for frame in frames)
        pieces, held_back = (), 0
        luck = chance.random()
        if luck < 0.08:
            pieces = sorted(chance.randrange(1, size + 1) for _ in range(chance.choice((1, 1, 2, 3))))
            pieces = tuple(end - start for start, end in zip((0, *pieces), pieces, strict=False) if end > start)
        elif luck < 0.09:
            pieces = (1,) * min(size, 40)
        if conn in self._held_back and not self._several:
            self._step("turn", (conn, (), (), 0))  # so that two requests do not become whole in one turn
        self._held_back.discard(conn)
        if chance.random() < 0.04:
            held_back = chance.randrange(1, size + 1)
            self._held_back.add(conn)
        self._step("turn", (conn, tuple(frame.for_driver for frame in frames), pieces, held_back))

    def _step(self, *step):
        self.steps.append(step)

    # --- other events ------------------------------------------------------------------------------------------------

    def _happen(self):
        chance = self._chance
        if chance.random() < 0.15:
            self._pass(chance.choice((0, 1, 1, 5, 20, 100, 100, 600)))
        if chance.random() < 0.004:
            self._pass(chance.choice((5_000, 31_000, 700_000)))
        if chance.random() < 0.012:
            self._step("close", chance.choice((*range(CLIENTS), *range(STRAY_CONNECTIONS, STRAY_CONNECTIONS + 4))))
        if chance.random() < 0.02:
            self._step(chance.choice(("hold", "release", "release")))
        if chance.random() < 0.01:
            self._step("cool")
        self._fail()

    def _fail(self):
        """Fill the disk for some turns, let syncs fail, or end the process."""
        chance = self._chance
        if not self._fills_disk:
            pass
        elif self._disk_full_until is not None and self.frames >= self._disk_full_until:
            self._disk_full_until = None
            self._step("disk", None)
        elif chance.random() < 0.004:
            self._disk_full_until = self.frames + chance.randrange(12)
            self._step("disk", chance.choice((0, 100, 300, 2_000)))
        if chance.random() < 0.002:
            self._step("fail", chance.random() < 0.5)
        if chance.random() < 0.002:
            self._step("crash", chance.choice(("kill", "kill", "clean", "power")))

    def _pass(self, later_ms):
        self._world.now_ms += later_ms
        self._step("at", later_ms)
