"""A program for the spout tests: counts each message of a log once, in SQLite, until it receives a stop signal.

    python spout_program.py STORE DATABASE MESSAGES             an in-memory log of that many messages and a poison one
    python spout_program.py STORE DATABASE SERVERS TOPIC        a topic of a broker

The environment variable ACCESS gives the access to a ZooKeeper store, as JSON of coordination.access.Access.

The in-memory log is the same at every start, as a broker's log would be. The program prints `applied N` after each
commit and `stopped` after a clean stop.
"""

import json
import os
import sys

from twisted.internet import reactor

from coordination.access import Access
from flakelog.testing import MemoryDeadLetters, MemoryLog
from spout.api import Bolt
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.once import OncePerMessage
from spout.run import run
from spout.scheme import JsonScheme
from spout.topology import Topology
from spout.world import TwistedWorld

PARTITIONS = 4


class LogInMemory(TwistedWorld):
    """A world with the engine's own offset store and a log that needs no broker."""

    def __init__(self, log, dead):
        super().__init__(reactor)
        self.log, self.dead = log, dead

    @classmethod
    def of(cls, messages):
        log = MemoryLog(PARTITIONS)
        log.append(b"poison", partition=1)
        for n in range(messages):
            log.append(message(n), partition=n % PARTITIONS)
        return cls(log, MemoryDeadLetters())

    def fetcher(self, servers, config, *, security=None):
        return self.log

    def dead_letters(self, servers, topic, *, security=None):
        return self.dead


class FailSome(Bolt):
    """A bolt that fails every hundredth message of a partition once per life of the process."""

    output_fields = ("id", "carrier", "delay")

    def prepare(self):
        self.failed = set()

    def execute(self, tup):
        (message,) = tup.messages
        if message.offset % 100 == 0 and message not in self.failed:
            self.failed.add(message)
            raise RuntimeError("on purpose")
        self.emit((tup["id"], tup["carrier"], tup["delay"]))


class CountOnce(OncePerMessage):
    """A bolt that writes one row per carrier, and the number of tuples it got in each batch."""

    schema = """
    CREATE TABLE IF NOT EXISTS delays (carrier TEXT PRIMARY KEY, n INTEGER, total INTEGER);
    CREATE TABLE IF NOT EXISTS seen (n INTEGER);
    """
    batch_size = 200
    applied = 0

    def apply(self, tup):
        self.db.execute(
            "INSERT INTO delays VALUES (?, 1, ?) ON CONFLICT DO UPDATE SET n = n + 1, total = total + ?",
            (tup["carrier"], tup["delay"], tup["delay"]),
        )

    def process_batch(self, batch):
        super().process_batch(batch)
        self.db.execute("INSERT INTO seen VALUES (?)", (len(batch),))
        self.applied += len(batch)
        print(f"applied {self.applied}", flush=True)


def message(n):
    return b'{"carrier": "%s", "delay": %d}' % ([b"AA", b"UA", b"DL"][n % 3], n % 50 - 10)


def main(store, database, source, topic="t"):
    world = LogInMemory.of(int(source)) if source.isdigit() else TwistedWorld(reactor)
    topology = Topology("count")
    config = SpoutConfig(spout_commit_interval_ms=50)
    scheme = JsonScheme("carrier", "delay")
    access = Access(**json.loads(os.environ.get("ACCESS", "{}")))
    servers = "127.0.0.1:9092" if source.isdigit() else source
    topology.spout("log", LogSpout(topic, servers=servers, store=store, access=access, scheme=scheme, config=config))
    topology.bolt("fail-some", FailSome(), parallelism=2).shuffle("log")
    topology.bolt("count", lambda: CountOnce(database)).global_("fail-some")
    run(topology, world=world)
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
