"""A ConsumerConnector in a separate process, for tests to kill. Arguments: ZOOKEEPER TOPIC [SERVERS].

It prints each record that it gets: partition, offset, and the time in ns on the clock that all processes share. It
prints which partitions it begins to read. At SIGTERM it leaves the group.
"""

import logging
import os
import re
import signal
import sys
import time

from flakelog import ConnectorConfig, ConsumerConnector

SESSION_MS = 2_000
CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=SESSION_MS,
    rebalance_backoff_ms=500,
    rebalance_goes_on=True,
    auto_commit_interval_ms=100,
    fetch_max_wait_ms=50,
)


class Claims(logging.Handler):
    """Prints the partitions that the connector begins to read, before it hands out their records."""

    def emit(self, record):
        claimed = re.fullmatch(r"group g: reads .*-(\d+) from .*", record.getMessage())
        if claimed:
            os.write(1, f"claimed {claimed[1]}\n".encode())


if __name__ == "__main__":
    logging.basicConfig()
    logging.getLogger("broker.client.connector").setLevel(logging.INFO)
    logging.getLogger("broker.client.connector").addHandler(Claims())
    zookeeper, topic, *servers = sys.argv[1:]
    with ConsumerConnector(zookeeper, "g", *servers, config=CONFIG) as connector:
        signal.signal(signal.SIGTERM, lambda *_: connector.shutdown())
        print("consumer", connector.name, flush=True)
        for record in connector.streams({topic: 1})[topic][0]:
            os.write(1, b"record %d %d %d\n" % (record.partition, record.offset, time.monotonic_ns()))
