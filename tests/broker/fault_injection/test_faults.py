"""Failures on demand: an API answers an error where its clients look for it, answers late, or does not answer."""

from uuid import UUID

import pytest

from broker.engine.api_table import APIS
from broker.fault_injection.faults import NO_ERRORS, QUEUE_MAX, Faults, error_of, key_of
from broker.fault_injection.faulty_engine import FaultyEngine
from broker.wire.errors import ErrorCode
from broker.wire.schema import plan_of, schema
from tests.broker.engine_client import (
    CREATE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    METADATA,
    PRODUCE,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
)

LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
COLD = [api for api in APIS.values() if api.key not in (PRODUCE, FETCH) and api.name not in NO_ERRORS]
VERSIONS = [(api, version) for api in COLD for version in range(api.oldest, api.newest + 1)]


def broker_of(*topics, **settings):
    broker = EngineBroker(engine=FaultyEngine, **settings)
    for topic in topics:
        broker.create(topic)
    return broker


def sample(cls):
    """Return the fields of a request with one item in each of its arrays."""
    return {plan.name: _value(plan) for plan in plan_of(cls) if plan.tag is None}


def _value(plan):
    if plan.nested is not None:
        return [sample(plan.nested)] if plan.array else sample(plan.nested)
    value = {"string": "flights", "bytes": b"", "uuid": UUID(int=7), "bool": False}.get(plan.kafka_type, 1)
    return [value] if plan.array else value


def errors_in(cls, entity):
    """Return all errors of a decoded answer."""
    errors = []
    for plan in plan_of(cls):
        value = getattr(entity, plan.name)
        if plan.kafka_type == "error_code":
            errors.append(value)
        elif plan.nested is not None and value:
            errors += [error for item in (value if plan.array else [value]) for error in errors_in(plan.nested, item)]
    return errors


# --- every API -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api, version", VERSIONS, ids=[f"{api.name}-v{version}" for api, version in VERSIONS])
def test_an_api_answers_the_error_in_all_its_places_and_does_nothing(api, version):
    broker = broker_of("flights")
    broker.engine.fail(api.key, ErrorCode.NOT_CONTROLLER)
    answer = broker.connect().ask(api.key, version, sample(schema(api.key, version, "request")))
    errors = errors_in(schema(api.key, version, "response"), answer)
    assert errors, f"error_answers finds no place for an error in {api.name}; is it one of faults.NO_ERRORS?"
    assert set(errors) == {ErrorCode.NOT_CONTROLLER}
    assert broker.engine.left() == {}
    assert [topic.name for topic in broker.services.metadata.topics()] == ["flights"]


@pytest.mark.parametrize("version", range(3, 13))
def test_a_produce_is_refused_and_not_appended(version):
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.fail(PRODUCE, LEADER)
    refused = client.produce("flights", b"a", version=version)
    assert (refused.topic, refused.partition, refused.error_code) == ("flights", 0, LEADER)
    assert client.produce("flights", b"b", version=version).base_offset == 0


def test_a_produce_that_wants_no_answer_has_its_connection_closed():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.fail(PRODUCE, LEADER)
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=0))
    assert client.closed == "a failure that a test asked for"


@pytest.mark.parametrize("version", range(4, 13))
def test_a_fetch_is_refused_at_each_partition(version):
    broker = broker_of("flights")
    broker.engine.fail(FETCH, LEADER)
    (refused,) = broker.connect().ask(FETCH, version, fetch_request("flights")).partitions
    assert (refused.topic, refused.partition, refused.error_code) == ("flights", 0, LEADER)


def test_a_fetch_of_a_session_that_names_nothing_is_refused_at_what_the_session_remembers():
    broker = broker_of("flights")
    client = broker.connect()
    session = client.ask(FETCH, 12, fetch_request("flights")._replace(session_epoch=0)).session_id
    broker.engine.fail(FETCH, LEADER)
    going_on = fetch_request("flights")._replace(session_id=session, session_epoch=1, partitions=[])
    (refused,) = client.ask(FETCH, 12, going_on).partitions
    assert refused.error_code == LEADER


def test_an_error_of_the_session_itself_is_said_of_the_whole_fetch():
    broker = broker_of("flights")
    broker.engine.fail(FETCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    answer = broker.connect().ask(FETCH, 12, fetch_request("flights"))
    assert (answer.error_code, answer.partitions) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def test_metadata_still_names_the_nodes():
    broker = broker_of("flights")
    broker.engine.fail(METADATA, ErrorCode.LEADER_NOT_AVAILABLE)
    answer = broker.connect().ask(METADATA, 12, {"topics": [{"name": "flights"}]})
    assert [node.port for node in answer.brokers] == [9092]
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.LEADER_NOT_AVAILABLE]


def test_metadata_that_fails_makes_no_topic():
    broker = broker_of(auto_create_topics_enable=True)
    broker.engine.fail(METADATA, ErrorCode.LEADER_NOT_AVAILABLE)
    fields = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    client = broker.connect()
    assert [topic.error_code for topic in client.ask(METADATA, 12, fields).topics] == [ErrorCode.LEADER_NOT_AVAILABLE]
    assert list(broker.services.metadata.topics()) == []
    assert [topic.error_code for topic in client.ask(METADATA, 12, fields).topics] == [0]


def test_an_error_waits_for_a_request_whose_answer_has_a_place_for_it():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.fail(METADATA, ErrorCode.LEADER_NOT_AVAILABLE)
    assert client.ask(METADATA, 12, {"topics": []}).topics == ()
    assert broker.engine.left() == {"Metadata": {"queue": 1, "delay_ms": 0}}


@pytest.mark.parametrize("name", sorted(NO_ERRORS))
def test_what_cannot_be_made_to_fail_is_said_by_name(name):
    with pytest.raises(ValueError, match=f"{name} cannot be made to fail"):
        broker_of().engine.fail(key_of(name), LEADER)


# --- number and order ------------------------------------------------------------------------------------------------


def test_failures_are_taken_in_order_each_by_one_request():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.fail(PRODUCE, LEADER, times=2)
    broker.engine.fail(PRODUCE, ErrorCode.REQUEST_TIMED_OUT)
    codes = [client.produce("flights", b"a").error_code for _ in range(4)]
    assert codes == [LEADER, LEADER, ErrorCode.REQUEST_TIMED_OUT, 0]


def test_other_apis_are_answered_as_ever():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.fail(FETCH, LEADER)
    assert client.produce("flights", b"a").error_code == 0


def test_a_connection_whose_requests_repeat_meets_the_failure_and_is_served_on():
    broker = broker_of("flights")
    client = broker.connect()
    client.produce("flights", b"a")
    broker.engine.fail(PRODUCE, LEADER)
    assert client.produce("flights", b"b").error_code == LEADER
    assert [client.produce("flights", b"c").base_offset for _ in range(2)] == [1, 2]


def test_a_failure_is_answered_after_the_produces_that_wait_for_ids():
    broker = broker_of("flights", max_ahead_ms=0)
    client = broker.connect()
    broker.worker.next_ids(4_096, broker.now.wall_ms)
    broker.engine.delay(PRODUCE, 1, times=1)
    first = client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.engine.fail(PRODUCE, LEADER)
    second = client.send(PRODUCE, 9, produce_request("flights", b"b"))
    assert client.replies() == []
    broker.at(broker.now_ms + 10)
    answers = client.replies()
    assert [correlation_id for correlation_id, _ in answers] == [first, second]
    assert [result.error_code for _, (result,) in answers] == [0, LEADER]


def test_a_failure_behind_a_produce_that_waits_for_ids_in_one_turn_does_not_overtake_it():
    """The first one's connection is to be closed after it is carried out, so the second one has no answer."""
    broker = broker_of("flights", max_ahead_ms=0)
    client = broker.connect()
    broker.worker.next_ids(4_096, broker.now.wall_ms)
    broker.engine.close(PRODUCE, "after")
    broker.engine.fail(PRODUCE, LEADER)
    client.send_together(*[(PRODUCE, 9, produce_request("flights", b"a")) for _ in range(2)])
    assert client.replies() == [] and client.closed is None
    broker.at(broker.now_ms + 10)
    assert client.closed == "a test wants it closed after a Produce"
    assert client.replies() == [] and broker.connect().fetch("flights") == [b"a"]


def test_clear_takes_everything_back():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.fail(PRODUCE, LEADER, times=5)
    broker.engine.delay(PRODUCE, 100)
    broker.engine.clear()
    assert broker.engine.left() == {}
    assert client.produce("flights", b"a").error_code == 0


# --- closed connections ----------------------------------------------------------------------------------------------


def test_closed_before_the_request_is_not_carried_out():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.close(PRODUCE, "before")
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    assert client.closed == "a test wants it closed before a Produce"
    assert client.replies() == []
    assert broker.connect().fetch("flights") == []


def test_closed_after_the_request_is_carried_out_and_not_answered():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.close(PRODUCE, "after")
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    assert client.closed == "a test wants it closed after a Produce"
    assert client.replies() == []
    assert broker.connect().fetch("flights") == [b"a"]


def test_closed_after_a_request_those_pipelined_behind_it_are_not_answered():
    """Their client would take such an answer for that of the first one."""
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.close(PRODUCE, "after")
    client.send_together(*[(PRODUCE, 9, produce_request("flights", b"a")) for _ in range(3)])
    assert client.closed == "a test wants it closed after a Produce"
    assert client.replies() == []


def test_an_idempotent_batch_whose_answer_was_lost_is_sent_again_and_is_there_once():
    broker = broker_of("flights")
    batch = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    broker.engine.close(PRODUCE, "after")
    broker.connect().send(PRODUCE, 9, produce_request("flights", batch=batch))
    (again,) = broker.connect().ask(PRODUCE, 9, produce_request("flights", batch=batch))
    assert (again.error_code, again.base_offset) == (0, 0)
    assert broker.connect().fetch("flights") == [b"a"]


def test_closed_after_a_produce_that_wants_no_answer():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.close(PRODUCE, "after")
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=0))
    assert client.closed == "a test wants it closed after a Produce"
    assert broker.connect().fetch("flights") == [b"a"]


def test_closed_after_a_fetch_that_waited():
    broker = broker_of("flights")
    reader = broker.connect()
    broker.engine.close(FETCH, "after")
    reader.send(FETCH, 12, fetch_request("flights", max_wait_ms=500))
    assert reader.closed is None
    broker.connect().produce("flights", b"a")
    assert reader.closed == "a test wants it closed after a Fetch"
    assert reader.replies() == []


# --- delays ----------------------------------------------------------------------------------------------------------


def test_a_delayed_answer_is_late_and_its_request_is_carried_out_immediately():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.delay(PRODUCE, 300, times=1)
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    assert broker.connect().fetch("flights") == [b"a"]
    broker.at(1_299)
    assert client.replies() == []
    broker.at(1_300)
    ((_, (result,)),) = client.replies()
    assert (result.error_code, result.base_offset) == (0, 0)
    assert client.produce("flights", b"b").base_offset == 1


def test_answers_keep_their_order_behind_a_late_one():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.delay(PRODUCE, 300, times=1)
    late = client.send(PRODUCE, 9, produce_request("flights", b"a"))
    prompt = client.send(METADATA, 12, {"topics": []})
    assert client.replies() == []
    broker.at(1_300)
    assert [correlation_id for correlation_id, _ in client.replies()] == [late, prompt]


def test_a_delay_holds_until_it_is_ended_and_comes_on_top_of_what_a_fetch_waits():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.delay(FETCH, 100)
    client.send(FETCH, 12, fetch_request("flights", max_wait_ms=500))
    broker.at(1_599)
    assert client.replies() == []
    broker.at(1_600)
    assert len(client.replies()) == 1
    client.send(FETCH, 12, fetch_request("flights"))
    assert client.replies() == []
    broker.at(1_700)
    assert len(client.replies()) == 1
    broker.engine.delay(FETCH, 0)
    assert client.fetch("flights") == []


def test_a_failure_comes_late_where_there_is_a_delay():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.delay(PRODUCE, 50)
    broker.engine.fail(PRODUCE, LEADER)
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    assert client.replies() == []
    broker.at(1_050)
    ((_, (result,)),) = client.replies()
    assert result.error_code == LEADER


def test_a_late_answer_to_a_peer_that_is_gone_is_forgotten():
    broker = broker_of("flights")
    client = broker.connect()
    broker.engine.delay(PRODUCE, 300)
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.engine.closed(client.conn)
    assert len(broker.services.purgatory) == 0
    broker.at(2_000)


def test_a_late_answer_of_a_group_still_comes():
    broker = broker_of(group_initial_rebalance_delay_ms=0)
    client = broker.connect()
    client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    broker.engine.delay(JOIN_GROUP, 40)
    protocols = [{"name": "range", "metadata": b""}]
    fields = {"group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
              "protocol_type": "consumer", "protocols": protocols}  # fmt: skip
    client.send(JOIN_GROUP, 3, fields)
    assert client.replies() == []
    broker.at(broker.now_ms + 40)
    ((_, joined),) = client.replies()
    assert joined.error_code == 0


# --- refusals --------------------------------------------------------------------------------------------------------


def test_names_are_held_to_the_protocol_with_the_nearest_one():
    assert (key_of("CreateTopics"), error_of("NOT_CONTROLLER"), error_of(41)) == (CREATE_TOPICS, 41, 41)
    with pytest.raises(ValueError, match="did you mean Produce?"):
        key_of("Produced")
    with pytest.raises(ValueError, match="did you mean NOT_LEADER_OR_FOLLOWER?"):
        error_of("not_leader_or_folower")
    with pytest.raises(ValueError, match="no error 4711"):
        error_of(4711)


@pytest.mark.parametrize("wrong, reason", [
    (lambda faults: faults.fail(PRODUCE, ErrorCode.NONE, 1), "NONE is no error"),
    (lambda faults: faults.fail(PRODUCE, LEADER, 0), f"times=0; give 1 to {QUEUE_MAX}"),
    (lambda faults: faults.fail(PRODUCE, LEADER, QUEUE_MAX + 1), "give 1 to"),
    (lambda faults: faults.close(PRODUCE, "never", 1), "when='never'; there are 'before' and 'after'"),
    (lambda faults: faults.delay(PRODUCE, -1, None), "ms=-1; a delay lies between 0 and"),
    (lambda faults: faults.delay(PRODUCE, 10, 0), "times=0; give 1 or more"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        wrong(Faults())
