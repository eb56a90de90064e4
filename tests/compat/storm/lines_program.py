"""A topology that prints each message of some topics as a JSON line, until it receives a stop signal.

    python lines_program.py SERVERS STORE TOPIC...        a topic that begins with / is a pattern of topics
"""

import json
import re
import sys

from spout.api import Bolt
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.run import run
from spout.scheme import StringScheme, TopicScheme
from spout.topology import Topology

CONFIG = SpoutConfig(spout_commit_interval_ms=20, spout_refresh_interval_ms=300, spout_error_backoff_ms=20)


class Print(Bolt):
    def execute(self, tup):
        print(json.dumps([tup["topic"], tup["value"]]), flush=True)


def main(servers, store, *topics):
    chosen = re.compile(topics[0][1:]) if topics[0].startswith("/") else topics[0] if len(topics) == 1 else list(topics)
    topology = Topology("lines")
    spout = LogSpout(chosen, servers=servers, store=store, scheme=TopicScheme(StringScheme()), config=CONFIG)
    topology.spout("log", spout)
    topology.bolt("print", Print()).shuffle("log")
    run(topology)


if __name__ == "__main__":
    main(*sys.argv[1:])
