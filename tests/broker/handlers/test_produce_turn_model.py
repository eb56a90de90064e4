"""Any requests in one turn have the answers and the records that they have one by one."""

from hypothesis import given
from hypothesis import strategies as st

from broker.log import log_reader
from tests.broker.engine_client import (
    FETCH,
    METADATA,
    PRODUCE,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
    values_of,
)
from tests.broker.handlers.produce_requests import flattened, producing, producing_to

KINDS = st.one_of(
    st.builds(lambda sequence, epoch: ("producer", sequence, epoch), st.integers(0, 4), st.integers(0, 1)),
    st.sampled_from(["plain", "plain", "two records", "corrupt", "nowhere", "two partitions", "fetch", "metadata"]),
    st.sampled_from(["silent", "silent and corrupt", "two and one corrupt", "old"]),
)


def request_of(kind):
    """Return one request (API key, version, fields)."""
    corrupt = bytearray(batch_of(b"corrupt"))
    corrupt[-1] ^= 1
    if isinstance(kind, tuple):
        _, sequence, epoch = kind
        batch = batch_of(b"%d" % sequence, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
        return PRODUCE, 9, produce_request("flights", batch=batch)
    if kind == "two and one corrupt":
        key, version, request = producing_to(("flights", 0), ("flights", 1))
        request.partitions[0] = (*request.partitions[0][:2], memoryview(corrupt))
        return key, version, request
    return {
        "plain": lambda: producing(b"plain"),
        "two records": lambda: producing(b"one", b"two"),
        "corrupt": lambda: producing(batch=corrupt),
        "nowhere": lambda: producing(b"nowhere", partition=9),
        "two partitions": lambda: producing_to(("flights", 1), ("flights", 0)),
        "fetch": lambda: (FETCH, 12, fetch_request("flights")),
        "metadata": lambda: (METADATA, 1, {"topics": [{"name": "flights"}]}),
        "silent": lambda: producing(b"silent", acks=0),
        "silent and corrupt": lambda: producing(batch=corrupt, acks=0),
        "old": lambda: (PRODUCE, 3, produce_request("flights", b"old")),
    }[kind]()


def in_one_turn(broker, clients, plan):
    with broker.turn():
        for client, kinds in zip(clients, plan, strict=True):
            client.send_together(*map(request_of, kinds))


def one_by_one(broker, clients, plan):
    """Send the requests in the order of a turn: in each round the Produce of every connection, then other requests."""
    for number in range(max(map(len, plan))):
        pending = [(client, kinds[number]) for client, kinds in zip(clients, plan, strict=True) if number < len(kinds)]
        requests = [(client, request_of(kind)) for client, kind in pending]
        for client, request in sorted(requests, key=lambda pair: pair[1][0] != PRODUCE):
            if client.closed is None:
                client.send(*request)


def outcome(send, plan):
    """Return what became of a plan: each client's answers, why it was closed, and the records of each partition."""
    broker = EngineBroker()
    broker.create("flights", partitions=2)
    clients = [broker.connect() for _ in plan]
    send(broker, clients, plan)
    logs = [broker.services.log_of("flights", number) for number in range(2)]
    ids = [flattened(log_reader.ids_of(log, 0, log.log_end_offset)) for log in logs]
    assert all(partition_ids == sorted(partition_ids) for partition_ids in ids)
    assert len({*ids[0], *ids[1]}) == sum(log.log_end_offset for log in logs), "an id for each record"
    answers = [[(sent, comparable(answer)) for sent, answer in client.replies()] for client in clients]
    reader = broker.connect()
    records = [reader.fetch("flights", partition=number) for number in range(2)]
    return answers, [client.closed for client in clients], records


def comparable(answer):
    return values_of(answer) if hasattr(answer, "session_id") else answer


@given(st.lists(st.lists(KINDS, max_size=6), min_size=1, max_size=4))
def test_a_turn_leads_to_what_its_requests_lead_to_one_by_one(plan):
    """Answers, closed connections and records are the same, whatever the requests are."""
    assert outcome(in_one_turn, plan) == outcome(one_by_one, plan)
