"""Logs whose last id is ahead of the clock: requests are refused in time, and everything else goes on.

The clock of an earlier run was ahead, so the logs that it wrote have ids of a time that is still to come.
"""

import pytest

from broker.log.log_reader import ids_of
from broker.stamping.clock_waits import REPORT_EVERY_MS
from broker.stamping.id_stamper import AheadIds, IdStamper
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import (
    DAY_MS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    WALL_MS,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
    values_of,
)

AHEAD_WORKER = 9


def broker_behind(ahead_ms, partitions=1, **settings):
    """Return a broker whose clock is `ahead_ms` behind the last id of flights-0; its other partitions are empty."""
    before = EngineBroker(now_ms=1_000 + ahead_ms, **settings)
    before.create("flights", partitions)
    before.connect().produce("flights", b"of a later time")
    return before.restarted(later_ms=-ahead_ms)


def log_of(broker, partition=0):
    return broker.services.log_of("flights", partition)


def run_ahead(broker, max_ahead_ms=2 * DAY_MS, limit_ms=WALL_MS + 365 * DAY_MS):
    """Give the broker a second worker number for logs ahead of the clock; return its worker and what is asked of it."""
    worker = IdWorker(
        Layout(), AHEAD_WORKER, start_ms=broker.now.wall_ms, limit_ms=limit_ms, max_ahead_ms=max_ahead_ms
    )
    needed = []
    broker.services.id_stamper.ahead = AheadIds(lambda: worker, needed.append)
    return worker, needed


def ids_in(log):
    return [first + number for first, length in ids_of(log, 0, log.log_end_offset) for number in range(length)]


def asking(timeout_ms, partitions=(0,), acks=1):
    parts = [("flights", partition, memoryview(batch_of(b"x"))) for partition in partitions]
    return PRODUCE, 9, ProduceRequest(None, acks, timeout_ms, parts, False)


def test_the_first_partition_that_waits_lets_a_second_number_be_claimed():
    """A broker may begin to lead a log that is ahead of its clock long after its start (rule I6)."""
    broker = broker_behind(DAY_MS)
    broker.services.clock_waits.on_wait = lambda: run_ahead(broker)
    client = broker.connect()
    assert client.produce("flights", b"x").error_code == ErrorCode.REQUEST_TIMED_OUT
    assert client.produce("flights", b"y").error_code == 0
    assert ids_in(log_of(broker)) == sorted(set(ids_in(log_of(broker))))


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_produce_to_a_partition_a_day_ahead_is_refused_and_says_how_far_ahead_it_is():
    broker = broker_behind(DAY_MS)
    refused = broker.connect().produce("flights", b"x")
    assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert f"flights-0: its last id is {DAY_MS} ms ahead of the broker's clock" in refused.message
    assert log_of(broker).log_end_offset == 1


def test_other_partitions_of_the_request_and_other_connections_go_on():
    broker = broker_behind(DAY_MS, partitions=2)
    client, other = broker.connect(), broker.connect()
    refused, taken = client.ask(*asking(30_000, partitions=(0, 1)))
    assert (refused.error_code, taken.error_code) == (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE)
    assert other.produce("flights", b"y", partition=1).base_offset == 1
    assert client.fetch("flights") == [b"of a later time"]


def test_a_partition_just_ahead_of_the_clock_makes_its_request_wait_for_a_moment():
    broker = broker_behind(700)
    client = broker.connect()
    client.send(*asking(30_000))
    assert client.replies() == []
    broker.at(broker.now_ms + 250)
    ((_, (result,)),) = client.replies()
    assert (result.error_code, result.base_offset) == (0, 1)


@pytest.mark.parametrize("timeout_ms", [0, 100])
def test_no_request_waits_past_its_own_timeout(timeout_ms):
    broker = broker_behind(700)
    (result,) = broker.connect().ask(*asking(timeout_ms))
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_no_request_waits_past_the_setting():
    broker = broker_behind(700, max_id_wait_ms=100)
    assert broker.connect().produce("flights", b"x").error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_wait_of_a_moment_ends_first_though_another_request_waits_longer():
    """One timer serves all waits, so it must follow the earliest."""
    broker = broker_behind(1_400, partitions=2)
    late, soon = broker.connect(), broker.connect()
    late.send(*asking(30_000))
    broker.worker.next_ids(4_096 * 501, broker.now.wall_ms)
    soon.send(*asking(30_000, partitions=(1,)))
    assert late.replies() == soon.replies() == []
    broker.at(broker.now_ms + 5)
    assert len(soon.replies()) == 1 and late.replies() == []


def test_an_acks_0_produce_closes_its_connection_because_nothing_else_can_tell_it():
    broker = broker_behind(DAY_MS)
    client = broker.connect()
    client.send(*asking(30_000, acks=0))
    assert "flights-0: its last id is" in client.closed


# --- the high-water mark ---------------------------------------------------------------------------------------------


@pytest.fixture
def without_lead():
    """A broker whose registry never acknowledges a higher mark."""
    broker = EngineBroker()
    broker.create("flights")
    broker.connect().ask(FIND_COORDINATOR, 1, {"key": "x", "key_type": 1})
    broker.worker = IdWorker(Layout(), 2, start_ms=broker.now.wall_ms - 10, limit_ms=broker.now.wall_ms)
    return broker


def test_without_a_lead_a_produce_is_refused_after_a_second(without_lead):
    client = without_lead.connect()
    client.send(PRODUCE, 9, produce_request("flights", b"x"))
    without_lead.at(without_lead.now_ms + 900)
    assert client.replies() == []
    without_lead.at(without_lead.now_ms + 200)
    ((_, (result,)),) = client.replies()
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT and "high-water mark" in result.message


def test_without_a_lead_other_requests_that_need_ids_are_refused_after_a_second(without_lead):
    client = without_lead.connect()
    client.send(INIT_PRODUCER_ID, 1, {"transactional_id": "x", "transaction_timeout": 60_000})
    without_lead.at(without_lead.now_ms + 900)
    assert client.replies() == []
    without_lead.at(without_lead.now_ms + 200)
    ((_, answer),) = client.replies()
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- what operators see ----------------------------------------------------------------------------------------------


def test_the_waits_are_named_with_their_time_until_the_clock_has_come():
    broker = broker_behind(DAY_MS, partitions=2)
    waits = broker.services.clock_waits
    assert list(waits.ahead(broker.now.wall_ms)) == ["flights-0"] and waits.waiting(broker.now.wall_ms) == {}
    broker.connect().produce("flights", b"x")
    broker.at(broker.now_ms + 60_000)
    (name, wait), = waits.waiting(broker.now.wall_ms).items()
    assert (name, wait.waiting_ms, wait.ahead_ms) == ("flights-0", 60_000, DAY_MS - 60_000)
    broker.at(broker.now_ms + DAY_MS)
    assert waits.waiting(broker.now.wall_ms) == waits.ahead(broker.now.wall_ms) == {}


def test_the_log_says_when_waits_begin_and_end_and_repeats_itself_slowly():
    broker = broker_behind(3 * REPORT_EVERY_MS)
    broker.services.clock_waits.tell_at_start(broker.now.wall_ms)
    for _ in range(100):
        broker.connect().produce("flights", b"x")
        broker.at(broker.now_ms + 50)
    at_start, begins = broker.reported
    assert "the last ids of 1 partitions are ahead" in at_start and "flights-0" in at_start
    assert begins.startswith("1 partitions refuse messages") and "flakelog.ids.log.max.ahead.ms" in begins
    broker.at(broker.now_ms + 4 * REPORT_EVERY_MS)
    assert len(broker.reported) == 5
    assert broker.reported[-1] == "the clock has reached the last ids: no partition waits for it any more"
    assert broker.connect().produce("flights", b"x").error_code == 0


def test_a_deleted_partition_waits_no_more():
    broker = broker_behind(DAY_MS)
    broker.connect().produce("flights", b"x")
    broker.delete("flights")
    assert broker.services.clock_waits.waiting(broker.now.wall_ms) == {}
    broker.at(broker.now_ms + 2_000)
    assert len(broker.services.purgatory) == 0


def test_a_coordinator_that_has_no_ids_is_named_too():
    before = EngineBroker(now_ms=DAY_MS)
    fields = {"transactional_id": "x", "transaction_timeout": 60_000}
    before.connect().ask(FIND_COORDINATOR, 1, {"key": "x", "key_type": 1})
    before.connect().ask(INIT_PRODUCER_ID, 1, fields)
    broker = before.restarted(later_ms=-DAY_MS + 1_000)
    assert broker.connect().ask(INIT_PRODUCER_ID, 1, fields).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (name,) = broker.services.clock_waits.waiting(broker.now.wall_ms)
    assert name.startswith("__transaction_state-")


# --- the way out -----------------------------------------------------------------------------------------------------


def test_with_a_second_number_a_partition_ahead_of_the_clock_goes_on_with_rising_ids_of_its_own_time():
    broker = broker_behind(DAY_MS, partitions=2)
    worker, _ = run_ahead(broker)
    client = broker.connect()
    for number in range(20):
        assert client.produce("flights", b"%d" % number).error_code == 0
        assert client.produce("flights", b"%d" % number, partition=1).error_code == 0
        broker.at(broker.now_ms + 7)
    ahead, usual = ids_in(log_of(broker)), ids_in(log_of(broker, 1))
    assert ahead == sorted(set(ahead)) and usual == sorted(set(usual)) and not set(ahead) & set(usual)
    layout = broker.worker.layout
    assert {layout.unpack(id).worker_number for id in ahead[1:]} == {AHEAD_WORKER}
    assert {layout.unpack(id).worker_number for id in usual} == {broker.worker.worker_number}
    assert layout.unpack(ahead[-1]).time_ms <= layout.unpack(ahead[0]).time_ms + 1, "the clock can catch up"
    assert broker.services.clock_waits.waiting(broker.now.wall_ms) == {}


def test_once_the_clock_has_caught_up_the_usual_number_stamps_again():
    broker = broker_behind(DAY_MS)
    run_ahead(broker)
    assert broker.connect().produce("flights", b"x").error_code == 0
    broker.at(broker.now_ms + DAY_MS)
    assert broker.connect().produce("flights", b"y").error_code == 0
    last = ids_in(log_of(broker))
    assert broker.worker.layout.unpack(last[-1]).worker_number == broker.worker.worker_number
    assert last == sorted(set(last))


def test_a_partition_further_ahead_than_the_setting_waits_on():
    broker = broker_behind(DAY_MS)
    run_ahead(broker, max_ahead_ms=DAY_MS // 2)
    assert broker.connect().produce("flights", b"x").error_code == ErrorCode.REQUEST_TIMED_OUT
    assert list(broker.services.clock_waits.waiting(broker.now.wall_ms)) == ["flights-0"]


def test_a_partition_above_the_second_numbers_mark_asks_for_a_higher_one_and_waits_for_it():
    broker = broker_behind(DAY_MS)
    worker, needed = run_ahead(broker, limit_ms=broker.now.wall_ms + 1_000)
    client = broker.connect()
    client.send(PRODUCE, 9, produce_request("flights", b"x"))
    assert client.replies() == [] and needed[0] >= broker.now.wall_ms + DAY_MS
    worker.raise_limit(needed[0] + 30_000)
    broker.at(broker.now_ms + 100)
    ((_, (result,)),) = client.replies()
    assert result.error_code == 0


def test_while_the_second_number_is_being_claimed_its_requests_wait():
    broker = broker_behind(DAY_MS)
    run_ahead(broker)
    ahead, stamper = broker.services.id_stamper.ahead, broker.services.id_stamper
    stamper.ahead = ahead._replace(worker=IdStamper().worker)
    client = broker.connect()
    client.send(PRODUCE, 9, produce_request("flights", b"x"))
    assert client.replies() == []
    stamper.ahead = ahead
    broker.at(broker.now_ms + 100)
    ((_, (result,)),) = client.replies()
    assert result.error_code == 0


def test_a_flood_takes_no_ids_of_the_second_number():
    """Those would be out of time order for nothing."""
    broker = EngineBroker(max_ahead_ms=0)
    broker.create("flights")
    worker, _ = run_ahead(broker)
    broker.worker.next_ids(4_096, broker.now.wall_ms)
    client = broker.connect()
    client.send(PRODUCE, 9, produce_request("flights", b"x"))
    assert client.replies() == []
    broker.at(broker.now_ms + 2)
    assert len(client.replies()) == 1 and worker.last_id == -1


def test_a_fetch_of_a_partition_ahead_of_the_clock_is_served():
    broker = broker_behind(DAY_MS)
    assert values_of(broker.connect().ask(FETCH, 12, fetch_request("flights"))) == [b"of a later time"]
