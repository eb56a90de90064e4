"""Produce requests, clients that send them in one turn, and the offsets and ids in their answers."""

from broker.wire.produce import ProduceRequest
from broker.wire.templates import KEY_BYTES_MAX
from tests.broker.engine_client import PRODUCE, batch_of, produce_request

LONG_ID = "x" * (KEY_BYTES_MAX + 1)  # a client id whose requests have no template


def producing(*values, **more):
    return PRODUCE, 9, produce_request("flights", *values, **more)


def producing_to(*partitions, value=b"x", acks=1):
    """Return a request for several (topic, partition)."""
    parts = [(topic, number, memoryview(batch_of(value))) for topic, number in partitions]
    return PRODUCE, 9, ProduceRequest(None, acks, 30_000, parts, False)


def offsets_of(client):
    return [result.base_offset for _, results in client.replies() for result in results]


def connected(broker, number, topic="flights"):
    """Return clients that have produced a record each."""
    clients = [broker.connect() for _ in range(number)]
    for client in clients:
        client.produce(topic, b"first")
    return clients


def produced_in_one_turn(broker, clients, batches, topic="flights"):
    """Send one batch from each client in one turn; return the results, by client."""
    with broker.turn():
        for client, batch in zip(clients, batches, strict=True):
            client.send(PRODUCE, 9, produce_request(topic, batch=batch))
    return [client.replies()[0][1][0] for client in clients]


def flattened(runs):
    return [first + n for first, length in runs for n in range(length)]


def of_producer(value, sequence, producer_id=7):
    return batch_of(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
