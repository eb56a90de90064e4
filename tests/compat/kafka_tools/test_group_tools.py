"""Kafka's consumer group tool shows the processes of a spout, unchanged, against a real server."""

import signal

import pytest

from tests.compat.stock_java import need_java
from tests.compat.storm.group_spouts import Shared
from tests.patience import until

pytestmark = pytest.mark.soak
need_java()


@pytest.fixture
def shared(group_broker, tmp_path):
    shared = Shared(group_broker.address, tmp_path)
    yield shared
    shared.close()


@pytest.fixture
def describe(shared, java):
    """Return describe("--members"), which returns the rows of the tool's table as dicts."""

    def described(*arguments):
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        options = ("--bootstrap-server", shared.address, "--describe", "--group", shared.name, *arguments)
        done = java.tool(tool, *options)
        assert done.exit == 0, done
        heading, *rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
        return [dict(zip(heading, row, strict=False)) for row in rows]

    return described


def test_the_processes_of_a_spout_are_listed_as_members_with_their_lag(shared, describe):
    """This is store="kafka": the group's offsets hold the progress."""
    shared.send(100)
    processes = shared.start(), shared.start()
    shared.await_members(2)
    until(lambda: shared.committed == [25] * 4, what="the commits")
    members = describe("--members", "--verbose")
    assert [(row["CLIENT-ID"], row["#PARTITIONS"]) for row in members] == [("flakelog", "2")] * 2
    rows = describe()
    assert [(row["CURRENT-OFFSET"], row["LAG"]) for row in rows] == [("25", "0")] * 4
    assert len({row["CONSUMER-ID"] for row in rows}) == 2
    assert [process.end(signal.SIGTERM) for process in processes] == [0, 0]
    shared.send(8)
    assert [row["LAG"] for row in describe()] == ["2"] * 4
