"""What brokers say and do while their ZooKeeper is away longer than their ids last."""

import json
from contextlib import ExitStack

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, Producer

from flakelog.cli import main
from tests.compat.cluster_servers import Servers
from tests.patience import SECONDS, until

SHORT_LEAD = {"flakelog.ids.lead.ms": "3000", "flakelog.ids.raise.interval.ms": "500", "flakelog.ids.retry.ms": "100"}


@pytest.fixture
def cluster(tmp_path, mortal_zookeeper):
    with ExitStack() as stack:
        chroot = f"{mortal_zookeeper.hosts}/{tmp_path.name}"
        yield Servers(tmp_path, chroot, stack, settings=SHORT_LEAD)


def _problems(cluster):
    """Return what `flakelog cluster describe` shows of each broker."""
    command = ["cluster", "describe", "--servers", cluster.bootstrap, "--json"]
    return json.loads(CliRunner().invoke(main, command).stdout).get("problems", {})


def _error_of_a_record(cluster, topic, timeout_ms):
    """Produce a record; return the error that the client is left with, None if it was written."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": timeout_ms})
    errors = []
    producer.produce(topic, "record", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    (error,) = errors
    return None if error is None else error.code()


def test_the_cluster_says_that_writes_are_refused_once_the_ids_have_ended(cluster, mortal_zookeeper):
    cluster.create("kept", 1)
    with mortal_zookeeper.paused():
        until(
            lambda: [" are refused since " in problem for (problem, *_) in _problems(cluster).values()] == 3 * [True],
            "all brokers say that writes are refused",
        )
        assert _error_of_a_record(cluster, "kept", 3_000) == KafkaError._MSG_TIMED_OUT
        for server in cluster.servers.values():
            assert "(flakelog.ids.lead.ms)" in server.log
    until(lambda: not _problems(cluster), "ZooKeeper answers again")
    assert _error_of_a_record(cluster, "kept", SECONDS * 1_000) is None


def test_a_stop_without_zookeeper_waits_for_no_controller(cluster, mortal_zookeeper):
    cluster.create("kept", 6)
    with mortal_zookeeper.paused():
        for server in cluster.servers.values():
            server.wait_for_log(" does not answer since ")
        for server in cluster.servers.values():
            assert server.stop() == 0
            line = server.wait_for_log("this broker stops without a controlled shutdown, because ZooKeeper at ")
            assert "until its session has ended" in line and "stopped" in server.log


def test_a_command_that_the_controller_cannot_carry_out_says_that_its_outcome_is_open(cluster, mortal_zookeeper):
    with mortal_zookeeper.paused():
        cluster[1].wait_for_log(" does not answer since ")
        made = CliRunner().invoke(main, ["topic", "create", "late", "--timeout", "2", "--servers", cluster.bootstrap])
    assert made.exit_code != 0 and "no broker answers" not in made.stderr
    assert "may still do what was asked" in made.stderr or "REQUEST_TIMED_OUT" in made.stderr, made.stderr
