"""A mirror in trouble: faults that stop one topic, and faults that pass."""

import pytest

from broker.client.group_admin import committed_offsets
from broker.client.mirror.names import TargetNames, copy_group
from broker.client.transaction import TransactionalProducer
from flakelog.testing import Broker
from tests.compat.mirror.mirror_process import committed_records, end_of, has_all, records_of, send
from tests.patience import until


@pytest.mark.parametrize("exactly_once", (False, True), ids=("at-least-once", "exactly-once"))
def test_a_topic_whose_batch_is_refused_takes_no_room_from_others(
    source, source_client, target_client, mirror_of, topic, exactly_once
):
    refused, other = f"{topic}-refused", f"{topic}-other"
    target_client.create_topic(refused, 1, {"max.message.bytes": "1000"})
    for name in (refused, other):
        source_client.create_topic(name, 1)
    send(source.bootstrap_servers, refused, range(2_000))
    with mirror_of(f"{topic}-.*", queue_bytes_max=10_000, exactly_once=exactly_once) as mirror:
        reason = until(lambda: mirror.figures().stopped.get(refused), "the stop")
        assert "the target refuses" in reason and "MESSAGE_TOO_LARGE" in reason
        send(source.bootstrap_servers, other, range(100))
        has_all(target_client, other, 100)


def test_a_topic_that_the_target_does_not_make_stops_alone(source, source_client, target_client, mirror_of, topic):
    long, other = f"{topic}-".ljust(245, "x"), f"{topic}-other"
    for name in (long, other):
        source_client.create_topic(name, 1)
    send(source.bootstrap_servers, other, range(100))
    with mirror_of(f"{topic}-.*", prefix="copies.") as mirror:
        has_all(target_client, f"copies.{other}", 100)
        assert "INVALID_TOPIC_EXCEPTION" in mirror.figures().stopped[long]


def test_a_mirror_whose_transactions_are_fenced_goes_on_in_each_partition(
    source, target, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 2)
    source_client.topics()
    group, sent = copy_group(topic, source_client.core.cluster_id), 0
    with mirror_of(topic, exactly_once=True):
        for _ in range(3):
            send(source.bootstrap_servers, topic, range(sent, sent + 200))
            sent += 200
            until(lambda: committed_records(target_client, topic) == sent, "the records at the target")  # noqa: B023
            for number in range(2):
                other = TransactionalProducer(target_client.core, f"{group}.{topic}-{number}")
                target_client.retry(other.begin)
    copies = records_of(target.bootstrap_servers, topic, sent)
    assert copies == records_of(source.bootstrap_servers, topic, sent)


def test_a_topic_that_is_made_again_under_way_is_copied_once(
    source, source_client, target_client, mirror_of, topic
):
    source_client.create_topic(topic, 1)
    send(source.bootstrap_servers, topic, range(20))
    with mirror_of(topic, skip_lost=True):
        has_all(target_client, topic, 20)
        source_client.delete_topic(topic)
        source_client.create_topic(topic, 1)
        send(source.bootstrap_servers, topic, range(50))
        has_all(target_client, topic, 70)
    send(source.bootstrap_servers, topic, [50])
    with mirror_of(topic, skip_lost=True):
        has_all(target_client, topic, 71)
    assert [int(record.value) for record in target_client.fetch(topic, 0, 20)[0]] == [*range(51)]


def test_a_mirror_ends_when_it_is_told_to_while_its_target_is_away(source_client, mirror_of, topic, caplog):
    source_client.create_topic(topic, 1)
    with Broker() as away, mirror_of(f"{topic}.*", target=away) as mirror:
        until(lambda: mirror.figures().partitions, "the partition")
        away.kill()
        source_client.create_topic(f"{topic}-2", 1)  # which the mirror cannot make at the target
        until(lambda: "it is asked again" in caplog.text, "the wait for the target")


def test_a_topic_that_appears_in_a_second_source_is_not_mixed_with_the_first_ones(
    source, target, source_client, target_client, mirror_of, topic
):
    names = TargetNames()
    source_client.create_topic(topic, 1)
    send(source.bootstrap_servers, topic, range(20))
    first = mirror_of(topic, names=names, prefix="all.")
    second = mirror_of(topic, names=names, prefix="all.", source=target)
    with first, second:
        has_all(target_client, f"all.{topic}", 20)
        target_client.create_topic(topic, 1)
        send(target.bootstrap_servers, topic, range(20, 40))
        reason = until(lambda: second.figures().stopped.get(topic), "the stop")
        assert "both have a topic for" in reason and "--prefix" in reason and not first.figures().stopped
    assert end_of(target_client, f"all.{topic}") == 20


@pytest.mark.parametrize("exactly_once", (False, True), ids=("at-least-once", "exactly-once"))
def test_a_second_source_is_not_mixed_with_the_copy_of_another_process(
    source, target, source_client, target_client, mirror_of, topic, exactly_once
):
    """Two processes share the work: one owns the topic of the first source, the other that of the second."""
    source_client.create_topic(topic, 1)
    source_client.topics()
    send(source.bootstrap_servers, topic, range(20))
    first = mirror_of(topic, names=TargetNames(), prefix="all.", exactly_once=exactly_once)
    names = TargetNames()
    second = mirror_of(topic, names=names, prefix="all.", source=target, exactly_once=exactly_once)
    with first, second:
        has_all(target_client, f"all.{topic}", 20)
        group = copy_group(topic, source_client.core.cluster_id)
        until(lambda: target_client.run(committed_offsets(target_client.core, group)), "the progress of the first")
        names.add(source.bootstrap_servers, group)  # as the second process does for each of its sources
        target_client.create_topic(topic, 1)
        send(target.bootstrap_servers, topic, range(20, 40))
        reason = until(lambda: second.figures().stopped.get(topic), "the stop")
        assert "both have a topic for" in reason and "--prefix" in reason and not first.figures().stopped
    assert [int(record.value) for record in target_client.fetch(f"all.{topic}", 0, 0)[0]] == [*range(20)]
