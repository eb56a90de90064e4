"""Flakelog's Python API against the real server: Consumer, AsyncConsumer and AsyncClient."""

import asyncio
import re
import signal
import subprocess
import sys
import time

import pytest

from broker.client.async_consumer import AsyncConsumer
from broker.client.asyncio import AsyncClient
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.errors import BrokerError, ClientError, CommitFailed, GroupRefused, InvalidTopics, Unreachable
from broker.client.offset_spec import AtId, AtOffset, AtTime, Last, Latest
from broker.record.records import BatchRecord, encode_batch
from tests.compat.numbers_topic import BY_HAND, NOBODY, QUICK, SOON_MS, WAIT_MS, say, take, values
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS

# --- without a group -----------------------------------------------------------------------------------------------


def test_a_consumer_is_an_iterator_of_records_with_ids(group_broker, topic):
    with Consumer(group_broker.address, topic, timeout_ms=WAIT_MS, config=QUICK) as consumer:
        records = take(consumer, 10)
    assert values(records) == list(range(10))
    assert len({record.id for record in records}) == 10 and None not in {record.id for record in records}
    for partition in (0, 1):
        mine = [record for record in records if (record.topic, record.partition) == (topic, partition)]
        assert [record.offset for record in mine] == [0, 1, 2, 3, 4]
        assert [record.id for record in mine] == sorted(record.id for record in mine)


def test_a_consumer_seeks_by_offset_time_and_id(group_broker, topic):
    with Consumer(group_broker.address, topic, timeout_ms=WAIT_MS, config=QUICK) as consumer:
        everything = take(consumer, 10)
        consumer.seek(topic, 1, 3)
        assert values(take(consumer, 2)) == [7, 9]
        consumer.seek_to_time(1_006)
        assert values(take(consumer, 4)) == [6, 7, 8, 9]
        ids = sorted(record.id for record in everything)
        consumer.seek_to_id(ids[7])  # several brokers give ids of one millisecond in the order of their numbers
        assert values(take(consumer, 3)) == values([record for record in everything if record.id >= ids[7]])
        consumer.seek_to_start([(topic, 0)])
        assert values(take(consumer, 5)) == [0, 2, 4, 6, 8]
        consumer.seek_to_end()
        assert consumer.poll(SOON_MS) == []
        assert (consumer.position(topic, 0), consumer.position(topic, 1)) == (5, 5)


def test_an_iterator_ends_after_its_timeout_without_a_record(group_broker, topic):
    with Consumer(group_broker.address, topic, start=Latest(), timeout_ms=SOON_MS, config=QUICK) as consumer:
        assert list(consumer) == []


def test_a_consumer_can_seek_before_its_first_record(group_broker, topic):
    with Consumer(group_broker.address, topic, partitions=[1], timeout_ms=WAIT_MS, config=QUICK) as consumer:
        consumer.seek(topic, 1, 4)
        assert values(take(consumer, 1)) == [9]


def test_a_consumer_that_begins_at_the_end_gets_new_records_only(group_broker, topic):
    servers = group_broker.address
    with Consumer(servers, topic, start=Latest(), config=QUICK) as consumer, Client(servers) as client:
        while not consumer.assignment or consumer.position(topic, 0) is None:
            assert consumer.poll(20) == []
        say(client, topic, 0, 10)
        assert values(consumer.poll(WAIT_MS)) == [10]


@pytest.mark.parametrize(
    "start, expected",
    [(AtOffset(3), [6, 7, 8, 9]), (AtTime(1_006), [6, 7, 8, 9]), (Last(1), [8, 9]), (AtOffset(99), [])],
)
def test_a_consumer_begins_where_start_says(group_broker, topic, start, expected):
    timeout_ms = WAIT_MS if expected else SOON_MS
    with Consumer(group_broker.address, topic, start=start, timeout_ms=timeout_ms, config=QUICK) as consumer:
        assert values(take(consumer, len(expected)) if expected else list(consumer)) == expected


def test_a_consumer_begins_at_an_id(group_broker, topic):
    with Consumer(group_broker.address, topic, timeout_ms=WAIT_MS, config=QUICK) as consumer:
        ids = sorted(record.id for record in take(consumer, 10))
    start = AtId(ids[7])
    with Consumer(group_broker.address, topic, start=start, timeout_ms=WAIT_MS, config=QUICK) as consumer:
        assert values(take(consumer, 3)) == [7, 8, 9]


def test_poll_returns_no_more_records_than_asked_for(group_broker, topic):
    with Consumer(group_broker.address, topic, partitions=[0], config=QUICK) as consumer:
        assert values(consumer.poll(WAIT_MS, max_records=2)) == [0, 2]
        assert consumer.position(topic, 0) == 2
        assert values(consumer.poll(WAIT_MS, max_records=2)) == [4, 6]
        assert values(consumer.poll(WAIT_MS, max_records=2)) == [8]


def test_paused_partitions_wait_until_they_are_resumed(group_broker, topic):
    with Consumer(group_broker.address, topic, timeout_ms=WAIT_MS, config=QUICK) as consumer:
        consumer.pause([(topic, 0)])
        assert values(take(consumer, 5)) == [1, 3, 5, 7, 9]
        assert consumer.poll(SOON_MS) == []
        assert consumer.paused == {(topic, 0)}
        consumer.resume()
        assert values(take(consumer, 5)) == [0, 2, 4, 6, 8]


def test_a_pause_in_the_middle_loses_and_repeats_nothing(group_broker, topic):
    with Consumer(group_broker.address, topic, partitions=[0], timeout_ms=WAIT_MS, config=QUICK) as consumer:
        first = take(consumer, 2)
        consumer.pause()
        assert consumer.poll(SOON_MS) == []
        consumer.resume()
        assert values(first) + values(take(consumer, 3)) == [0, 2, 4, 6, 8]


def test_a_pattern_reads_topics_that_are_created_later_too(group_broker, name):
    config = ConsumerConfig(metadata_max_age_ms=100, fetch_max_wait_ms=50)
    with client_of(group_broker) as client:
        client.create_topic(f"{name}-1")
        say(client, f"{name}-1", 0, 1)
        with Consumer(group_broker.address, re.compile(f"{name}-[0-9]"), config=config) as consumer:
            assert values([next(consumer)]) == [1]
            client.create_topic(f"{name}-2")
            client.create_topic(f"{name}-x")
            say(client, f"{name}-x", 0, 3)
            say(client, f"{name}-2", 0, 2)
            assert values([next(consumer)]) == [2]
            assert consumer.assignment == {(f"{name}-1", 0), (f"{name}-2", 0)}


def test_what_cannot_work_is_refused_with_what_would_be_right(group_broker, topic):
    with pytest.raises(InvalidTopics, match="give a topic's name, several names, or a pattern"):
        Consumer(NOBODY, [])
    with pytest.raises(InvalidTopics, match="a group shares out partitions itself"):
        Consumer(NOBODY, "t", group="g", partitions=[0])
    with pytest.raises(ValueError, match=r"give Earliest\(\), Latest\(\), "):
        Consumer(NOBODY, "t", start="middle")
    with Consumer(NOBODY, "t") as consumer, pytest.raises(Unreachable, match="start one with: flakelog server"):
        next(consumer)
    with Consumer(group_broker.address, "no-such-topic") as consumer:
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC"):
            next(consumer)
    with Consumer(group_broker.address, topic, partitions=[2], config=QUICK) as consumer:
        with pytest.raises(InvalidTopics, match="has partitions 0 to 1, not 2"):
            next(consumer)
        with pytest.raises(ClientError, match="does not own"):
            consumer.seek(topic, 0, 0)
    with Consumer(group_broker.address, topic) as consumer:
        with pytest.raises(CommitFailed, match="has no group"):
            consumer.commit()
    with pytest.raises(ClientError, match="was closed"):
        consumer.poll()


def client_of(broker):
    return Client(broker.address)


# --- in a group ----------------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_the_program_committed_by_hand(group_broker, topic, name):
    with Consumer(group_broker.address, topic, group=name, config=BY_HAND) as consumer:
        seen = [next(consumer) for _ in range(3)]
        consumer.commit()
        assert sum(consumer.committed().values()) == 3
        seen += [next(consumer) for _ in range(2)]  # processed, but not committed
    with Consumer(group_broker.address, topic, group=name, timeout_ms=WAIT_MS, config=BY_HAND) as consumer:
        again = [next(consumer) for _ in range(7)]
    assert sorted(values(seen[:3]) + values(again)) == list(range(10))


def test_a_commit_of_chosen_offsets_leaves_the_rest(group_broker, topic, name):
    with Consumer(group_broker.address, topic, group=name, config=BY_HAND) as consumer:
        next(consumer)
        consumer.commit({(topic, 1): 4})
        assert consumer.committed([(topic, 0), (topic, 1)]) == {(topic, 1): 4}
        with pytest.raises(CommitFailed, match=f"does not own {name}-7"):
            consumer.commit({(name, 7): 1})


def test_close_commits_what_is_processed_if_commits_are_by_time(group_broker, topic, name):
    with Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        seen = [next(consumer) for _ in range(4)]
    with Consumer(group_broker.address, topic, group=name, timeout_ms=WAIT_MS, config=QUICK) as consumer:
        again = [next(consumer) for _ in range(6)]
    assert sorted(values(seen) + values(again)) == list(range(10))


def test_commits_by_time_cover_only_records_whose_successor_was_asked_for(group_broker, topic, name):
    config = ConsumerConfig(fetch_max_wait_ms=50, auto_commit_interval_ms=1)
    with Consumer(group_broker.address, topic, group=name, config=config) as consumer:
        first = consumer.poll(WAIT_MS, max_records=1)
        mine = first[0].topic, first[0].partition
        assert consumer.committed().get(mine, 0) == 0
        while not consumer.committed().get(mine):
            consumer.poll(20, max_records=1)


def test_two_consumers_share_the_partitions_and_hand_over_without_loss_or_repetition(group_broker, topic, name):
    changes = []
    with Consumer(
        group_broker.address,
        topic,
        group=name,
        on_assigned=lambda partitions: changes.append(("first gets", len(partitions))),
        on_revoked=lambda partitions: changes.append(("first hands over", len(partitions))),
        config=QUICK,
    ) as first:
        seen = [next(first) for _ in range(10)]
        servers = group_broker.address
        with Consumer(servers, topic, group=name, config=QUICK) as second, Client(servers) as client:
            while not second.assignment:
                seen += first.poll(20) + second.poll(20)
            assert len(first.assignment) == len(second.assignment) == 1
            say(client, topic, 0, 10)
            say(client, topic, 1, 11)
            while len(seen) < 12:
                seen += first.poll(20) + second.poll(20)
    assert values(seen) == list(range(12))
    assert changes == [("first gets", 2), ("first hands over", 1)]


def test_a_consumer_takes_over_from_one_that_was_killed(group_broker, topic, name):
    argv = [sys.executable, "-m", "tests.compat.python.consumer_program", group_broker.address, topic, name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": PYTHONPATH}) as victim:
        lines = [line for line, _ in zip(victim.stdout, range(6), strict=False)]
        victim.send_signal(signal.SIGKILL)
        lines += victim.stdout  # those that it had processed until the signal came
    before = [int(line.split()[1]) for line in lines if line.startswith("record")]
    with Consumer(group_broker.address, topic, group=name, timeout_ms=WAIT_MS, config=QUICK) as consumer:
        seen = set(before)
        for record in consumer:
            seen.add(int(record.value))
            if len(seen) == 10:
                break
    assert seen == set(range(10))


def test_a_consumer_hands_over_to_one_in_another_process(group_broker, topic, name):
    argv = [sys.executable, "-m", "tests.compat.python.consumer_program", group_broker.address, topic, name]
    with Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        seen = [next(consumer) for _ in range(10)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": PYTHONPATH}) as other:
            while len(consumer.assignment) != 1:
                seen += consumer.poll(20)
            assert other.stdout.readline().startswith("assigned")
            (mine,) = consumer.assignment
            with client_of(group_broker) as client:
                say(client, topic, 1 - mine[1], 77)
            assert other.stdout.readline() == "record 77\n"
            other.kill()
    assert values(seen) == list(range(10))


def test_a_revoke_callback_may_commit(group_broker, topic, name):
    with Consumer(
        group_broker.address, topic, group=name, on_revoked=lambda _: first.commit(), config=BY_HAND
    ) as first:
        assert len([next(first) for _ in range(10)]) == 10
        with Consumer(group_broker.address, topic, group=name, config=BY_HAND) as second:
            again = []
            while not second.assignment or not first.committed():
                assert first.poll(20) == []
                again += second.poll(20)
            assert again == []
            assert sum(first.committed([(topic, 0), (topic, 1)]).values()) == 10


def test_an_assign_callback_may_seek(group_broker, topic, name):
    consumer = Consumer(
        group_broker.address, topic, group=name, on_assigned=lambda _: consumer.seek_to_id(0), config=QUICK
    )
    with consumer:
        consumer.poll(WAIT_MS)
        consumer.commit({(topic, 0): 5, (topic, 1): 5})
    again = Consumer(
        group_broker.address,
        topic,
        group=name,
        timeout_ms=WAIT_MS,
        on_assigned=lambda _: again.seek_to_time(1_008),
        config=QUICK,
    )
    with again:
        assert values(take(again, 2)) == [8, 9]


def test_a_group_that_refuses_the_member_says_why(group_broker, topic, name):
    config = ConsumerConfig(session_timeout_ms=900, heartbeat_interval_ms=100)
    with Consumer(group_broker.address, topic, group=name, config=config) as consumer:
        with pytest.raises(GroupRefused, match="session.timeout.ms must lie between"):
            next(consumer)


# --- asyncio -------------------------------------------------------------------------------------------------------


def test_asyncio_consumers_share_a_group_with_others(group_broker, topic, name):
    async def read():
        changes = []

        async def assigned(partitions):
            changes.append(len(partitions))

        async with AsyncConsumer(
            group_broker.address, topic, group=name, timeout_ms=WAIT_MS, on_assigned=assigned, config=QUICK
        ) as consumer:
            records = [await anext(consumer) for _ in range(10)]
            await consumer.seek(topic, 0, 4)
            again = await consumer.poll(WAIT_MS)
            await consumer.commit()
            return changes, values(records), values(again), await consumer.committed()

    changes, first, again, committed = asyncio.run(read())
    assert (changes, first, again) == ([2], list(range(10)), [8])
    with Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        assert consumer.committed([(topic, 0), (topic, 1)]) == committed == {(topic, 0): 5, (topic, 1): 5}


def test_an_asyncio_iterator_lets_other_tasks_run_while_records_are_there(group_broker, topic):
    config = ConsumerConfig(fetch_max_wait_ms=50, max_poll_records=10)

    async def read():
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with AsyncClient(group_broker.address) as client:
            records = [BatchRecord(at, 0, None, b"%d" % at) for at in range(200)]
            await client.produce(topic, 0, encode_batch(records, base_timestamp_ms=0))
        async with AsyncConsumer(group_broker.address, topic, partitions=[0], config=config) as consumer:
            for _ in range(10):
                await anext(consumer)
            task, turns_before = asyncio.create_task(others()), turns
            for _ in range(100):
                await anext(consumer)
            task.cancel()
            return turns - turns_before

    assert asyncio.run(read()) >= 9


def test_an_asyncio_program_that_polls_without_a_wait_gets_its_records(group_broker, topic):
    async def read():
        records, end = [], time.monotonic() + SECONDS
        async with AsyncConsumer(group_broker.address, topic, config=QUICK) as consumer:
            while len(records) < 10 and time.monotonic() < end:
                records += await consumer.poll()
        return values(records)

    assert asyncio.run(read()) == list(range(10))


def test_the_asyncio_client_has_many_requests_in_flight(group_broker, topic):
    async def read():
        async with AsyncClient(group_broker.address) as client:
            assert (await client.topic(topic)).partitions == 2
            fetched = await asyncio.gather(*(client.fetch(topic, number % 2, 0) for number in range(20)))
            many = await client.multifetch({(topic, 0): 3, (topic, 1): 0})
            return [len(records) for records, _ in fetched], {key: values(result[0]) for key, result in many.items()}

    assert asyncio.run(read()) == ([5] * 20, {(topic, 0): [6, 8], (topic, 1): [1, 3, 5, 7, 9]})


def test_one_request_fetches_several_partitions(group_broker, topic):
    with client_of(group_broker) as client:
        fetched = client.multifetch({(topic, 1): 4, (topic, 0): 5}, max_wait_ms=0)
        assert {key: (values(records), following) for key, (records, following) in fetched.items()} == {
            (topic, 1): ([9], 5),
            (topic, 0): ([], 5),
        }
        with pytest.raises(BrokerError, match=f"{topic}-1: OFFSET_OUT_OF_RANGE"):
            client.multifetch({(topic, 0): 0, (topic, 1): 99})


def test_figures_tell_requests_records_and_lag(group_broker, topic):
    with Consumer(group_broker.address, topic, partitions=[0], config=QUICK) as consumer:
        consumer.poll(WAIT_MS, max_records=2)
        figures = consumer.figures()
    assert 2 <= figures.fetches.records <= 5 and figures.lag == 3
    assert figures.fetches.requests >= 1 and figures.fetches.request_ms_max >= figures.request_ms_avg > 0
    mine = figures.partitions[topic, 0]
    assert (mine.position, mine.end, mine.records, mine.lag) == (2, 5, figures.fetches.records, 3)
    assert mine.lag_bytes == figures.lag_bytes == round(3 * mine.bytes / mine.records)
