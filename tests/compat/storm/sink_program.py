"""A program for the sink tests: copies a topic to another, exactly once, until it receives a stop signal.

    python sink_program.py SERVERS SOURCE SINK INSTANCE SESSION_MS [SINK_SERVERS]

Each message gives two outputs, "<value>.1" and "<value>.2". Some attempts fail between the two. INSTANCE is the name of
this process, which gets its partitions back after a restart. A killed process loses them after SESSION_MS, and its open
transaction is aborted then. The program prints `read N` for every tenth message, and `stopped` after a clean stop.
"""

import random
import sys

from broker.client.group_config import GroupMemberConfig
from spout.api import Bolt
from spout.config import SpoutConfig
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.run import run
from spout.sink_config import SinkConfig
from spout.topology import Topology


class Twice(Bolt):
    """Emits two tuples for each message, and fails some attempts between them."""

    output_fields = ("key", "value")

    def prepare(self):
        self.read = 0

    def execute(self, tup):
        self.read += 1
        if self.read % 10 == 0:
            print(f"read {self.read}", flush=True)
        self.emit((tup["key"], tup["value"] + b".1"))
        if random.random() < 0.02:
            raise RuntimeError("on purpose")
        self.emit((tup["key"], tup["value"] + b".2"))


def main(servers, source, sink, instance, session_ms, sink_servers=None):
    topology = Topology(f"copy-{source}")
    spout = SpoutConfig(spout_commit_interval_ms=100, spout_handover_ms=1_000, spout_max_attempts=0)
    group = GroupMemberConfig(session_timeout_ms=int(session_ms), heartbeat_interval_ms=200, group_instance_id=instance)
    topology.spout("in", LogSpout(source, servers=servers, store="kafka", config=spout, group=group), parallelism=2)
    topology.bolt("twice", Twice()).shuffle("in")
    config = SinkConfig(sink_commit_interval_ms=20, sink_transaction_timeout_ms=int(session_ms), sink_instance=instance)
    out = LogSink(sink, servers=sink_servers or servers, exactly_once=True, config=config)
    topology.bolt("out", out).shuffle("twice")
    run(topology)
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
