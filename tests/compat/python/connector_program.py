"""A ConsumerConnector in a separate process, for tests to kill: it prints what it gets. Arguments: ZOOKEEPER TOPIC."""

import sys

from flakelog import ConnectorConfig, ConsumerConnector

CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=4_000, rebalance_goes_on=True, auto_commit_interval_ms=100, fetch_max_wait_ms=50
)

if __name__ == "__main__":
    zookeeper, topic = sys.argv[1:]
    with ConsumerConnector(zookeeper, "g", config=CONFIG) as connector:
        for record in connector.streams({topic: 1})[topic][0]:
            print("record", record.partition, record.offset, flush=True)
