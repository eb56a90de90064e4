"""A fault of the broker in a Produce request closes the connections it concerns, and no others."""

import pytest

from tests.broker.engine_client import CREATE_TOPICS, PRODUCE, EngineBroker, produce_request
from tests.broker.handlers.produce_requests import offsets_of, producing, producing_to
from tests.broker.watched_storage import WatchedStorage, active

FAULT = "a fault of the broker's own; see the log"


@pytest.fixture
def broker():
    broker = EngineBroker(WatchedStorage())
    broker.create("flights")
    return broker


def test_a_fault_in_a_write_closes_those_it_was_for_and_no_others(broker):
    broker.create("trains")
    first, second, other = broker.connect(), broker.connect(), broker.connect()
    broker.storage.faults[active(broker, "flights")] = RuntimeError("on purpose")
    with broker.turn():
        for client in (first, second):
            client.send(*producing(b"lost"))
        other.send(PRODUCE, 9, produce_request("trains", b"kept"))
    assert (first.closed, second.closed, other.closed) == (FAULT, FAULT, None)
    assert offsets_of(other) == [0]
    (report,) = broker.reported
    assert "RuntimeError: on purpose" in report and first.conn.peer in report and second.conn.peer in report
    broker.storage.faults.clear()
    assert broker.connect().produce("flights", b"after").base_offset == 0
    assert broker.restarted(clean=False).connect().fetch("flights") == [b"after"]


def test_what_a_connection_pipelined_behind_a_fault_is_not_answered(broker):
    """Its client would take that answer for the one of the request before, which is never answered."""
    broker.create("trains")
    client = broker.connect()
    broker.storage.faults[active(broker, "flights")] = RuntimeError("on purpose")
    trains = PRODUCE, 9, produce_request("trains", b"x")
    sent = client.send_together(trains, producing(b"lost"), trains, trains)
    assert client.answered() == sent[:1] and client.closed == FAULT


@pytest.mark.parametrize("request_", [producing_to(("new", 1)), producing_to(("flights", 0), ("new", 1))])
def test_a_fault_before_the_write_closes_its_connection_and_nothing_of_the_request_is_written(request_):
    """The log of a new topic is made when its first request comes."""
    broker = EngineBroker(WatchedStorage(), max_new_logs_at_once=1)
    broker.create("flights")
    unlucky, lucky = broker.connect(), broker.connect()
    topic = {"name": "new", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
    lucky.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})
    assert broker.services.logs.to_make == 1
    broker.storage.faults[f"new-1/{0:020d}.log"] = RuntimeError("on purpose")
    with broker.turn():
        unlucky.send_together(producing(b"before"), request_, producing(b"after"))
        lucky.send_together(*[producing(b"%d" % n) for n in range(3)])
    assert unlucky.answered() == [1] and unlucky.closed == FAULT
    assert len(lucky.answered()) == 3 and lucky.closed is None
    assert sorted(lucky.fetch("flights")) == [b"0", b"1", b"2", b"before"]
    assert len(broker.reported) == 1 and unlucky.conn.peer in broker.reported[0]


def test_a_write_without_memory_closes_its_connection_and_says_so_in_one_line(broker):
    broker.create("trains")
    client, other = broker.connect(), broker.connect()
    broker.storage.faults[active(broker, "flights")] = MemoryError()
    with broker.turn():
        client.send(*producing(b"lost"))
        other.send(PRODUCE, 9, produce_request("trains", b"kept"))
    assert (client.closed, other.closed) == ("the server has no memory for its request", None)
    assert offsets_of(other) == [0] and broker.reported == []
