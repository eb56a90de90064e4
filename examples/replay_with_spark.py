"""An exact range of a topic as a Spark DataFrame: the messages whose ids belong to a span of time.

    pip install 'flakelog[spark]'
    flakelog server --data-dir data
    python examples/replay_with_spark.py [HOST:PORT [TOPIC]]

The range is fixed when the DataFrame is made: later messages are not in it, even if it is used again.
"""

import sys
import time

from flakelog import Layout, Producer
from spark_bridge.session import spark_session


def main(servers: str = "127.0.0.1:9092", topic: str = "orders") -> None:
    start_ms = time.time_ns() // 1_000_000
    with Producer(servers) as producer:
        for n in range(1_000):
            producer.send(topic, str(n), key=("web", "shop", "phone")[n % 3])
    # The broker stamps at most half a second ahead of its clock.
    first, end = Layout().id_range(start_ms, time.time_ns() // 1_000_000 + 1_000)

    spark = spark_session("replay-orders")
    try:
        orders = (
            spark.read.format("flakelog")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingId", str(first))
            .option("endingId", str(end))
            .load()
        )
        with Producer(servers) as producer:
            producer.send(topic, "too late for this replay")
        by_key = orders.selectExpr("CAST(key AS STRING) AS channel", "CAST(value AS STRING) AS n").groupBy("channel")
        for row in by_key.count().orderBy("channel").collect():
            print(row["channel"], row["count"])
        print(f"{orders.count()} orders in the replay")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
