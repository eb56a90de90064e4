"""Real processes that share a topic through a consumer group, and one that is killed."""

import signal

import pytest

from coordination.free_port import FreePort
from flakelog.operations import groups
from tests.compat.conftest import SHORT_SESSIONS
from tests.compat.server_process import ServerProcess
from tests.compat.storm.group_spouts import PARTITIONS, Shared
from tests.patience import until


@pytest.fixture(params=["flakelog", pytest.param("kafka", marks=pytest.mark.soak)])
def shared(request, tmp_path):
    """Yield a topic of Flakelog, or of Apache Kafka, whose sessions last 6 s at least."""
    if request.param == "flakelog":
        shared = Shared(request.getfixturevalue("group_broker").address, tmp_path)
    else:
        shared = Shared(request.getfixturevalue("kafka"), tmp_path, session_ms=6_000)
    yield shared
    shared.close()


def test_a_clean_hand_over_delivers_no_message_twice_and_a_kill_loses_none(shared):
    shared.send(1_000)
    first = shared.start()
    until(lambda: len(first.lines) == 1_000, what="the first messages")
    second, third = shared.start(), shared.start()
    shared.await_members(3)
    shared.send(2_000)
    until(lambda: len(shared.processed) == 3_000, what="all messages")
    assert second.lines and third.lines
    until(lambda: shared.lag_of_members() == (3, 0), what="what Kafka's admin clients see: three members without lag")
    assert first.end(signal.SIGTERM) == 0
    shared.await_members(2)
    shared.send(2_000)
    until(lambda: len(shared.processed) == 5_000, what="all messages")
    assert set(shared.processed.values()) == {1}
    assert any("hands over" in line for line in first.printed)
    shared.send(2_000)
    second.end(signal.SIGKILL)
    shared.send(1_000)
    until(lambda: len(shared.processed) == 8_000, what="all messages")
    shared.await_members(1)
    assert third.end(signal.SIGTERM) == 0 and "stopped" in third.printed
    assert shared.committed == [2_000] * PARTITIONS


@pytest.mark.soak
def test_a_kill_of_the_broker_loses_no_message(tmp_path):
    port = FreePort()
    listener = {"listeners": f"PLAINTEXT://{port.address}"}
    with ServerProcess(tmp_path / "data", SHORT_SESSIONS | listener) as server:
        shared = Shared(server.address, tmp_path)
        try:
            processes = shared.start(), shared.start()
            shared.await_members(2)
            shared.send(4_000)
            until(lambda: len(shared.processed) > 1_000, what="the first messages")
            server.kill()
            server.start()
            shared.send(4_000)
            until(lambda: len(shared.processed) == 8_000, what="all messages")
            shared.await_members(2)
            until(lambda: shared.committed == [2_000] * PARTITIONS, what="the commits")
            assert [process.end(signal.SIGTERM) for process in processes] == [0, 0]
        finally:
            shared.close()


def test_a_bolt_that_blocks_for_longer_than_the_session_costs_its_process_no_partition(shared):
    first = shared.start(str(shared.session_ms / 1000 + 0.5))
    second = shared.start()
    shared.await_members(2)
    before = {member.member_id: member.partitions for member in shared.group().members}
    shared.send(1_000)
    first.await_line("blocked")
    assert {member.member_id: member.partitions for member in shared.group().members} == before
    until(lambda: len(shared.processed) == 1_000, what="all messages")
    assert [process.end(signal.SIGTERM) for process in (first, second)] == [0, 0]
    assert set(shared.processed.values()) == {1}
    assert not any("lost" in line for line in first.printed + second.printed)


def test_a_commit_of_another_client_is_where_the_processes_go_on(shared):
    shared.send(400)
    offsets = {(shared.name, number): 90 for number in range(PARTITIONS)}
    groups.commit(shared.client, shared.name, offsets)
    process = shared.start()
    until(lambda: len(shared.processed) == 40, what="the messages above the committed offsets")
    assert process.end(signal.SIGTERM) == 0
    assert set(shared.processed) == set(range(360, 400))
