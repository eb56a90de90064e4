"""A program that shares a topic with other processes, in a consumer group, until it receives a stop signal.

    python group_spout_program.py SERVERS TOPIC GROUP OUTPUT SESSION_MS [BLOCK_SECONDS]

It appends a line "<partition> <offset>" to the file OUTPUT for each message, and then acks it. With BLOCK_SECONDS its
bolt blocks for so long at the first message. It prints `blocked` then, and `stopped` after a clean stop; its log goes
to stderr.
"""

import sys
from threading import Event

from broker.client.group_config import GroupMemberConfig
from spout.api import Bolt
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.run import run
from spout.topology import Topology


class Numbered:
    """A scheme that makes a tuple of the partition and the number in the message."""

    fields = ("partition", "number")

    def tuples(self, record, partition):
        return [(partition, int(record.value))]


class Write(Bolt):
    def __init__(self, path, block_seconds):
        self.path, self.block_seconds = path, block_seconds

    def prepare(self):
        self.file = open(self.path, "a", buffering=1)

    def execute(self, tup):
        if self.block_seconds:
            seconds, self.block_seconds = self.block_seconds, 0
            Event().wait(seconds)  # the reactor's thread blocks, and nothing can end the wait
            print("blocked", flush=True)
        self.file.write(f"{tup['partition']} {tup['number']}\n")


def main(servers, topic, group, path, session_ms, block_seconds="0"):
    topology = Topology("share")
    member = GroupMemberConfig(session_timeout_ms=int(session_ms), heartbeat_interval_ms=200)
    config = SpoutConfig(spout_commit_interval_ms=100, spout_handover_ms=1_000)
    spout = LogSpout(topic, servers=servers, store="kafka", id=group, scheme=Numbered(), config=config, group=member)
    topology.spout("log", spout, parallelism=2)
    topology.bolt("write", Write(path, float(block_seconds))).shuffle("log")
    run(topology)
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
