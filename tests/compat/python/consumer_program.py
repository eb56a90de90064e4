"""A Consumer in a separate process, for tests to kill: it prints what it gets. Arguments: SERVERS TOPIC GROUP."""

import sys

from flakelog import Consumer, ConsumerConfig

CONFIG = ConsumerConfig(
    session_timeout_ms=2_000, heartbeat_interval_ms=200, fetch_max_wait_ms=50, auto_commit_interval_ms=100
)

if __name__ == "__main__":
    servers, topic, group = sys.argv[1:]

    def tell(word):
        return lambda partitions: print(word, *sorted(number for _, number in partitions), flush=True)

    with Consumer(
        servers, topic, group=group, on_assigned=tell("assigned"), on_revoked=tell("revoked"), config=CONFIG
    ) as consumer:
        for record in consumer:
            print("record", int(record.value), flush=True)
