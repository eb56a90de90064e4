"""Something for each page of the web console, in a broker."""

import json
import time

from broker.record.records import BatchRecord, encode_batch
from flakelog.operations import groups

TIME_MS = 1_700_000_000_000


def fill(client):
    """Fill a broker with something for each page."""
    client.create_topic("orders", 3, {"retention.ms": "-1"})
    client.create_topic("orders.dead-letters")
    for partition in range(3):
        orders = [
            BatchRecord(n, n * 700, b"customer-%d" % (n % 7), order(n), (("source", b"web"),)) for n in range(200)
        ]
        client.produce("orders", partition, encode_batch(orders, base_timestamp_ms=TIME_MS))
    groups.commit(client, "billing", {("orders", n): 150 + 20 * n for n in range(3)})
    client.produce("orders.dead-letters", 0, encode_batch([letter(n) for n in range(4)], base_timestamp_ms=TIME_MS))
    later_ms = time.time_ns() // 1_000_000 + 3_000_000  # a document is read while it is new
    publish(client, "__flakelog_topologies", "a", topology(), later_ms)
    publish(client, "__flakelog_replays", "ab", replay(), TIME_MS)
    publish(client, "__flakelog_mirrors", "a", mirror(), later_ms)


def order(n):
    lines = [{"sku": "A1", "n": 2}, {"sku": "B7", "n": 1}]
    return json.dumps({"order": 1000 + n, "total": round(9.9 * (n % 13 + 1), 2), "lines": lines}).encode()


def letter(n):
    facts = {"reason": "attempts", "error": "ValueError: there is no customer 7, in price", "attempts": "5"}
    facts |= {"topic": "orders", "partition": "0", "offset": str(n), "timestamp-ms": str(TIME_MS + n)}
    headers = tuple((f"flakelog-dead-{name}", value.encode()) for name, value in facts.items())
    return BatchRecord(n, 0, b"customer-7", order(n), headers)


def topology():
    def component(name, kind, tasks, *inputs):
        streams = [{"component": each, "stream": "default", "grouping": "shuffle"} for each in inputs]
        letters = {"dead_lettered": 4 * (kind == "spout")}
        return {"name": name, "kind": kind, "parallelism": tasks, "messages": letters, "inputs": streams}

    parts = [component("orders", "spout", 2), component("parse", "bolt", 2, "orders")]
    parts += [component("price", "bolt", 4, "parse"), component("audit", "bolt", 1, "parse")]
    parts += [component("store", "bolt", 1, "price")]
    rates = {each["name"]: {"emitted": 812.5, "executed": 812.5, "acked": 810.0, "failed": 2.5} for each in parts}
    return {
        "v": 1, "topology": "order-service", "topology_id": "order-service", "run_id": "5f0c", "host": "shop-1",
        "pid": 7, "state": "running", "expires_ms": 1 << 50, "started_ms": TIME_MS, "components": parts, "rates": rates,
        "in_flight": 37, "latency_ms": {"orders": {"p50": 7, "p99": 63}}, "lag": {"lag": 120, "lag_ms": 900},
        "dead_letter_topics": ["orders.dead-letters"],
        "partitions": [{"topic": "orders", "partition": n, "phase": "running", "lag": 40, "component": "orders",
                        "watermark": 160, "high_watermark": 200, "lag_ms": 900, "pending": 12} for n in range(3)],
    }  # fmt: skip


def mirror():
    figures = {"records": 3_000, "records_per_s": 50.0, "lag": 7, "errors": 0}
    topics = [{"topic": f"orders-{n}", **figures} for n in range(3)]
    partitions = [{"topic": row["topic"], "partition": 0, "copied": 3_000, "end": 3_007, "lag": 7} for row in topics]
    return {
        "v": 1, "name": "europe", "from": "eu-1.example:9092,eu-2.example:9092", "to": "us-1.example:9092",
        "prefix": "eu.", "state": "running", "expires_ms": 1 << 50, "records": 9_000, "records_per_s": 150.0,
        "bytes_per_s": 15_000.0, "lag": 21, "errors": 0, "topics": topics, "partitions": partitions,
        "stopped": {"orders-2": "its records before offset 3000 are gone at the source"}, "host": "shop-1", "pid": 7,
        "run_id": "5f0c",
    }  # fmt: skip


def replay():
    ranges = [{"topic": "orders", "partition": n, "start": 0, "end": 200 - 30 * n} for n in range(3)]
    files = {f"orders-0000{n}.parquet": {"rows": 200 - 30 * n, "sha256": "5f0c" * 16} for n in range(3)}
    receipt = {"rows": 510, "checksum": "crc32c:5f0c8e21", "files": files}
    return {"v": 1, "kind": "replay", "state": "done", "at_ms": TIME_MS, "place": "s3://shop/replays/november",
            "manifest": {"flakelog_manifest": 3, "ranges": ranges}, "receipt": receipt}  # fmt: skip


def publish(client, topic, key, document, time_ms):
    client.create_topic(topic, 1, {"cleanup.policy": "compact"})
    record = BatchRecord(0, 0, key.encode(), json.dumps(document).encode())
    batch = encode_batch([record], base_timestamp_ms=time_ms)
    client.produce(topic, 0, batch)
