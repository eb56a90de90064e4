"""A program that reads all partitions of a topic through a TwistedFetcher, as the spouts do.

    python fetch_program.py SERVERS TOPIC [FIELD=VALUE of SpoutConfig ...]

It writes a line of JSON for each answer: [partition, kind of answer, values or text]. After each answer it asks for the
partition again, from the next offset, until its stdin ends. A partition whose topic was made again begins at 0.
"""

import json
import os
import sys

from twisted.internet import reactor
from twisted.internet.protocol import Protocol
from twisted.internet.stdio import StandardIO

from partition_manager.config import SpoutConfig
from partition_manager.fetcher import TwistedFetcher
from partition_manager.ports import (
    Failed,
    Fetch,
    Fetched,
    FetchWanted,
    ListPartitions,
    OutOfRange,
    Packed,
    Partitions,
    Recreated,
)

RETRY_SECONDS = 0.1


class Reader(Protocol):
    def __init__(self, servers, topic, config):
        self.fetcher = TwistedFetcher(servers, config, reactor)
        self.topic = topic

    def connectionMade(self):
        self.fetcher.ask(ListPartitions(self.topic), self.list_partitions)

    def list_partitions(self, partitions):
        assert isinstance(partitions, Partitions), partitions
        for number in partitions.numbers:
            self.ask(number, 0, partitions.topic_id)

    def ask(self, partition, offset, topic_id):
        def answer(value):
            following, id = offset, topic_id
            value = value.unpack() if isinstance(value, Packed) else value
            if isinstance(value, Fetched):
                following, payload = value.next_offset, [record.value.decode() for record in value.records]
            elif isinstance(value, OutOfRange):
                following, payload = value.log_start, list(value)
            elif isinstance(value, Recreated):
                following, id, payload = 0, value.topic_id, value.topic_id
            else:
                payload = str(value)
            line = json.dumps([partition, type(value).__name__, payload])
            self.transport.write(line.encode() + b"\n")  # StandardIO makes stdout non-blocking: print may lose a part
            delay = RETRY_SECONDS if isinstance(value, Failed) else 0
            reactor.callLater(delay, self.ask, partition, following, id)

        self.fetcher.ask(Fetch(self.topic, partition, FetchWanted(offset, 1_000, 1 << 20), topic_id), answer)

    def connectionLost(self, reason):
        self.fetcher.close()
        reactor.callLater(0.1, reactor.stop)


def main(servers, topic, *settings):
    config = SpoutConfig(**dict(setting.split("=") for setting in settings))
    StandardIO(Reader(servers, topic, config))
    os.set_blocking(sys.stdout.fileno(), True)  # StandardIO has changed that, and a full pipe would cut lines off
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
