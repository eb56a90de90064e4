"""A Produce for many partitions is validated and appended in slices, and is answered as if it had come in one piece."""

from itertools import count

import pytest

from broker.engine.engine import Engine
from broker.handlers import produce
from broker.log.validation import opening
from broker.metadata.change import Change
from broker.metadata.staged import Staged
from broker.wire.errors import ErrorCode
from broker.wire.multi_produce_template import PARTITIONS_MAX
from broker.wire.produce import ProduceRequest
from tests.broker.engine.opening_world import OpeningWorld, large, small_budget, small_slices
from tests.broker.engine_client import API_VERSIONS, PRODUCE, EngineBroker, batch_of, produce_request
from tests.broker.handlers.produce_requests import flattened, of_producer, producing_to

AT_ONCE = produce.PARTITIONS_AT_ONCE
SLICE = 4
MANY = 5 * SLICE + 2
VERSIONS = API_VERSIONS, 0, {}


@pytest.fixture(autouse=True)
def slices(monkeypatch):
    small_slices(monkeypatch, SLICE)


def test_no_request_that_a_template_reads_is_executed_in_slices():
    """Its bytes are valid in one turn only."""
    assert PARTITIONS_MAX <= AT_ONCE


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights", MANY)
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def to_all(batch=None, acks=1, wants_ids=False, **other):
    """Return a request with a batch for each partition; `other` maps p3 to the batch of partition 3."""
    batches = [other.get(f"p{n}", batch or batch_of(b"%d" % n)) for n in range(MANY)]
    parts = [("flights", n, memoryview(partition_batch)) for n, partition_batch in enumerate(batches)]
    return PRODUCE, 9, ProduceRequest(None, acks, 30_000, parts, wants_ids)


def ends(broker):
    return [broker.services.log_of("flights", partition).log_end_offset for partition in range(MANY)]


def results_of(client):
    ((_, results),) = client.replies()
    return results


def until_half_is_appended(broker):
    """Execute turns until a part of a request's batches is appended."""
    for _ in range(MANY):
        if not sum(ends(broker)):
            broker.execute()
    assert sum(ends(broker)) == SLICE


def test_each_partition_gets_its_batch_and_the_answer_names_them_in_order(broker, client):
    results = client.ask(*to_all(wants_ids=True))
    outcomes = [(result.partition, result.error_code, result.base_offset) for result in results]
    assert outcomes == [(n, 0, 0) for n in range(MANY)]
    assert [client.fetch("flights", partition=n) for n in range(MANY)] == [[b"%d" % n] for n in range(MANY)]
    assert len({id for result in results for id in flattened(result.runs)}) == MANY


def test_requests_of_other_connections_are_answered_between_its_slices(broker, client):
    other = broker.connect()
    with broker.turn():
        client.send(*to_all())
        until_half_is_appended(broker)
        other.send(*producing_to(("flights", MANY - 1), value=b"other"))
    assert len(other.replies()) == 1
    assert results_of(client)[-1].base_offset == 1
    assert client.fetch("flights", partition=MANY - 1) == [b"other", b"%d" % (MANY - 1)]


def test_later_requests_of_the_connection_wait_for_it(broker, client):
    correlation_ids = client.send_together(
        producing_to(("flights", MANY - 1)), to_all(), producing_to(("flights", MANY - 1)), VERSIONS
    )
    answers = client.replies()
    assert [number for number, _ in answers] == correlation_ids
    offsets = [results[-1].base_offset for _, results in answers[:-1]]
    assert offsets == [0, 1, 2]


def test_a_topic_deleted_between_slices_refuses_the_other_partitions(broker, client):
    with broker.turn():
        client.send(*to_all())
        until_half_is_appended(broker)
        broker.delete("flights")
    codes = [result.error_code for result in results_of(client)]
    assert codes == [0] * SLICE + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (MANY - SLICE)


def test_a_connection_closed_between_slices_drops_the_rest(broker, client):
    with broker.turn():
        client.send(*to_all())
        until_half_is_appended(broker)
        broker.engine.closed(client.conn)
        assert not broker.engine.has_work
    assert ends(broker) == [1] * SLICE + [0] * (MANY - SLICE)
    assert broker.connect().ask(*to_all())[0].base_offset == 1


def test_a_refused_batch_is_named_and_the_others_are_appended(broker, client):
    corrupt = bytearray(batch_of(b"x"))
    corrupt[-1] ^= 1
    results = client.ask(*to_all(p9=corrupt))
    assert [n for n, result in enumerate(results) if result.error_code] == [9]
    assert ends(broker) == [int(n != 9) for n in range(MANY)]


def test_without_acks_it_has_no_answer_and_an_error_closes_the_connection(broker, client):
    client.send(*to_all(acks=0))
    assert sum(ends(broker)) == MANY and client.closed is None and not client.received
    corrupt = bytearray(batch_of(b"x"))
    corrupt[-1] ^= 1
    client.send(*to_all(acks=0, p9=corrupt))
    assert "acks=0" in client.closed


def test_it_is_answered_once_all_of_it_is_on_the_disk():
    broker = EngineBroker()
    broker.create("flights", MANY, flakelog_durable_acks="true")
    client = broker.connect()
    held = broker.hold_syncs()
    client.send(*to_all())
    assert held and not client.replies()
    broker.release()
    assert {result.error_code for result in results_of(client)} == {0}


def test_a_producer_that_sends_it_again_gets_the_first_offsets(broker, client):
    request = to_all(of_producer(b"x", 0))
    first, again = client.ask(*request), client.ask(*request)
    assert [result.base_offset for result in again] == [result.base_offset for result in first] == [0] * MANY
    assert ends(broker) == [1] * MANY


def test_a_rule_of_the_topic_applies_to_each_batch(client, broker):
    broker.alter("flights", {"message.timestamp.type": "LogAppendTime"})
    assert {result.log_append_time_ms for result in client.ask(*to_all())} == {broker.now.wall_ms}


def test_the_time_of_each_slice_counts_for_the_quota_of_the_client():
    assert is_over_quota(to_all(), ms=MANY // SLICE)
    assert not is_over_quota(producing_to(("flights", 0)), ms=MANY // SLICE)


def is_over_quota(request, ms):
    """Return True if a request takes its client over a quota, where each look at the clock takes a millisecond."""
    clock_ns = count(step=1_000_000).__next__
    broker = EngineBroker(engine=lambda services: Engine(services, clock_ns))
    broker.create("flights", MANY)
    percentage = ms / 10 / broker.services.config.quota_window_num
    broker.change(Staged(Change(quotas={(("client-id", "test"),): {"request_percentage": percentage}})))
    broker.connect().send(*request)
    return broker.services.quotas.meter("test").worked(0, broker.now_ms) > 0


# --- requests that wait ----------------------------------------------------------------------------------------------


def test_without_ids_it_waits_as_a_whole():
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights", MANY)
    broker.at(broker.now_ms + 1)
    broker.worker.next_ids(4_096, broker.now.wall_ms)
    client = broker.connect()
    client.send(*to_all())
    assert sum(ends(broker)) == 0 and not client.replies()
    broker.at(broker.now_ms + 1)
    assert {result.error_code for result in results_of(client)} == {0} and ends(broker) == [1] * MANY


def test_batches_whose_ids_are_used_up_meanwhile_are_refused_and_may_be_sent_again():
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights", MANY)
    broker.at(broker.now_ms + 1)
    client = broker.connect()
    with broker.turn():
        client.send(*to_all(of_producer(b"x", 0)))
        until_half_is_appended(broker)
        broker.worker.next_ids(4_096 - SLICE, broker.now.wall_ms)
    broker.at(broker.now_ms + 100)
    codes = [result.error_code for result in results_of(client)]
    assert codes == [0] * SLICE + [ErrorCode.REQUEST_TIMED_OUT] * (MANY - SLICE)
    assert ends(broker) == [1] * SLICE + [0] * (MANY - SLICE)
    assert {result.error_code for result in client.ask(*to_all(of_producer(b"x", 0)))} == {0}
    assert ends(broker) == [1] * MANY


def test_records_that_take_long_to_check_are_checked_by_a_thread_before_any_is_appended(monkeypatch):
    small_budget(monkeypatch)
    broker = OpeningWorld()
    broker.create("flights", MANY)
    client = broker.connect()
    correlation_ids = client.send_together(to_all(p9=large(count=4_000)), VERSIONS)
    assert broker.jobs and sum(ends(broker)) == 0 and not client.replies()
    broker.finish_all()
    answers = client.replies()
    assert [number for number, _ in answers] == correlation_ids
    assert {result.error_code for result in answers[0][1]} == {0}
    assert ends(broker) == [4_000 if n == 9 else 1 for n in range(MANY)]


def test_it_waits_while_a_thread_has_taken_ids_for_one_of_its_logs(monkeypatch):
    small_budget(monkeypatch)
    broker = OpeningWorld()
    broker.create("flights", MANY, flakelog_id_header="true")
    other, client = broker.connect(), broker.connect()
    other.send(PRODUCE, 9, produce_request("flights", batch=large(), partition=9))
    assert len(broker.jobs) == 1
    monkeypatch.setattr(opening, "INLINE_UNITS", 1_000_000)
    client.send(*to_all())
    assert sum(ends(broker)) == 0 and not client.replies()
    broker.finish_all()
    assert results_of(client)[9].base_offset == 300
