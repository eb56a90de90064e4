"""Any Kafka client can produce and consume; Flakelog's own client also sees each message's id.

    flakelog server --data-dir data
    python examples/produce_and_consume.py [HOST:PORT]
"""

import sys
from uuid import uuid4

from confluent_kafka import Consumer, Producer

from flakelog import Client, Layout

MESSAGES = 10


def main(servers: str) -> None:
    topic = f"readings-{uuid4().hex[:8]}"

    # A stock producer, which knows nothing of ids.
    producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd"})
    for n in range(MESSAGES):
        producer.produce(topic, f"reading {n}", key=f"sensor {n % 2}")
    assert producer.flush(10) == 0, f"no broker answers at {servers}"

    # A stock consumer in a group.
    settings = {"bootstrap.servers": servers, "group.id": f"{topic}-readers", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    values = []
    while len(values) < MESSAGES:
        message = consumer.poll(10)
        assert message is not None and message.error() is None, message and message.error()
        values.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    print(f"a stock consumer read {len(values)} messages")

    # The same messages with their ids.
    layout = Layout()
    with Client(servers) as client:
        records, following = client.fetch(topic, 0, 0)
        for record in records[:3]:
            print(record.offset, record.id, layout.unpack(record.id).time_ms - record.timestamp_ms, "ms", record.value)
        assert [record.value for record in records] == values and following == MESSAGES
        ids = [record.id for record in records]
        assert ids == sorted(ids)
        assert client.find_id(topic, 0, ids[4]) == records[4].offset  # by the id index, no scan
        client.delete_topic(topic)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
