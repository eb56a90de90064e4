"""`flakelog server --processes N`: several brokers on one machine, which stock clients see as one cluster."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from broker.client.blocking import Client
from flakelog.operations.partitions import read_records
from idgen.client.blocking import IdClient
from tests.compat.cluster_servers import values
from tests.compat.console.console_visitor import Visitor
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.compat.several_processes import SeveralProcesses
from tests.patience import SECONDS, until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("several") / "data"
        yield stack.enter_context(SeveralProcesses(directory, 3, stack=stack))


def test_one_line_names_all_brokers_and_the_partitions_of_a_topic_lie_on_all(server):
    assert server.address.count(",") == 2 and server.http.count(":") == server.ids.count(":") == 1
    cluster = server.cluster
    assert sorted(cluster.brokers) == [1, 2, 3]
    cluster.create("flights")
    assert set(cluster.leaders("flights").values()) == {1, 2, 3}
    cluster.produce("flights", "first")
    assert cluster.consume("flights", 6) == values("first")
    cluster.produce("flights", "second")
    assert cluster.consume("flights", 6) == values("second"), "the group went on at its offsets"
    assert set(cluster.leaders("__consumer_offsets").values()) == {1, 2, 3}


def test_each_broker_names_all_others(server):
    for address in server.address.split(","):
        brokers = server.cluster_at(address).brokers
        assert sorted(f"{broker.host}:{broker.port}" for broker in brokers.values()) == server.address.split(",")


def test_a_transaction_over_partitions_of_all_processes_is_whole(server):
    cluster = server.cluster
    cluster.create("payments")
    cluster.transact("payments", "aborted", commit=False)
    cluster.transact("payments", "committed", commit=True)
    assert cluster.consume("payments", 6, "payees") == values("committed")


def test_a_killed_process_is_started_again_with_its_partitions_while_the_others_serve_on(server):
    cluster = server.cluster
    cluster.create("orders")
    cluster.produce("orders", "before")
    killed = server.child(3)
    os.kill(killed, signal.SIGSTOP)  # its partitions wait meanwhile
    others = [partition for partition, leader in cluster.leaders("orders").items() if leader != 3]
    cluster.produce("orders", "without", others)
    server.kill_child(3)
    until(lambda: set(cluster.leaders("orders").values()) == {1, 2, 3}, "its partitions")
    cluster.produce("orders", "after")
    expected = values("before") + values("after") + [f"without-{partition}" for partition in others]
    assert cluster.consume("orders", len(expected), commit=False, group="audit") == sorted(expected)


def test_only_the_owner_can_open_what_the_processes_meet_at(server):
    sockets = server.data_dir / "cluster" / "sockets"
    assert [(server.data_dir / "cluster").stat().st_mode & 0o777, sockets.stat().st_mode & 0o777] == [0o700, 0o700]
    assert {name.name: name.stat().st_mode & 0o777 for name in sockets.iterdir() if name.is_socket()} == {
        f"{kind}-{number}": 0o600 for number in (1, 2, 3) for kind in ("broker", "http")
    }


def test_all_records_are_there_after_a_stop_and_a_start(server):
    cluster = server.cluster
    cluster.create("kept")
    cluster.produce("kept", "kept")
    assert server.stop() == 0
    server.start()
    cluster.await_leaders("kept")
    assert cluster.consume("kept", 6, "keepers") == values("kept")
    assert "fault" not in server.log


def test_a_stop_does_not_wait_for_a_controller_that_stops_too(tmp_path):
    settings = {"controlled.shutdown.retry.backoff.ms": "3600000"}
    with SeveralProcesses(tmp_path, 3, settings) as server:
        assert server.stop() == 0


def test_the_processes_end_with_their_parent_and_the_next_start_has_all(tmp_path):
    with SeveralProcesses(tmp_path / "data") as server:
        server.cluster.create("kept")
        server.cluster.produce("kept", "kept")
        children = [server.child(1), server.child(2)]
        server.kill()
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children), "the end of the children")
        server.start()
        server.cluster.await_leaders("kept")
        assert server.cluster.consume("kept", 6) == values("kept")


def test_two_processes_have_a_copy_each_of_the_topics_of_coordinators(tmp_path):
    with SeveralProcesses(tmp_path / "data", 2) as server:
        cluster = server.cluster
        cluster.create("flights")
        cluster.transact("flights", "flown", commit=True)
        assert cluster.consume("flights", 6) == values("flown")
        topics = cluster.admin.list_topics(timeout=SECONDS).topics
        for name in ("__consumer_offsets", "__transaction_state"):
            assert {tuple(sorted(each.replicas)) for each in topics[name].partitions.values()} == {(1, 2)}


def test_fewer_processes_are_refused_while_one_of_the_missing_has_partitions(tmp_path):
    with SeveralProcesses(tmp_path / "data", 3) as server:
        server.cluster.create("flights", 3)
        server.cluster.create("orders", 3)
        server.stop()
        for fewer in (server.alone(), SeveralProcesses(server.data_dir, 2)):
            with pytest.raises(DidNotStart) as refused:
                fewer.start()
            assert "broker 3 (" in refused.value.stderr and "start it with --processes 3" in refused.value.stderr
            assert refused.value.exit_code == 1


def test_a_directory_of_another_broker_is_not_opened_as_a_server_alone(tmp_path):
    with SeveralProcesses(tmp_path / "data") as server:
        server.stop()
    with pytest.raises(DidNotStart, match="start the server with the directory of the first broker as --data-dir"):
        ServerProcess(server.data_dir / "nodes" / "2", {"node.id": "2"}).start()


def _page(server, path):
    """Return status and text of a page of HTTP."""
    try:
        with urllib.request.urlopen(f"http://{server.http}{path}", timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_each_process_answers_for_all_at_the_one_port_of_http(server):
    server.cluster.create("measured", 3)
    status, text = _page(server, "/metrics")
    assert status == 200
    for number in (1, 2, 3):
        assert f'flakelog_broker_up{{broker="{number}"}} 1' in text
        assert f'flakelog_request_seconds_count{{broker="{number}",api="UpdateMetadata"}}' in text
    assert text.count("# HELP flakelog_connections ") == 1
    status, text = _page(server, "/health")
    health = json.loads(text)
    assert (status, health["healthy"], health["without_answer"]) == (200, True, []), health
    assert sorted(health["brokers"]) == ["1", "2", "3"]
    status, text = _page(server, "/health/ready")
    assert (status, json.loads(text)["ready"]) == (200, True)


def test_a_process_that_does_not_answer_is_named(server):
    stopped = server.child(2)
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: "State:\tT" in Path(f"/proc/{stopped}/status").read_text())
    status, text = _page(server, "/health")
    assert (status, json.loads(text)["without_answer"]) == (503, [2])
    assert 'flakelog_broker_up{broker="2"} 0' in _page(server, "/metrics")[1]
    status, text = _page(server, "/health/ready")
    assert (status, json.loads(text)["without_answer"]) == (200, [2])
    os.kill(stopped, signal.SIGCONT)
    until(lambda: _page(server, "/health")[0] == 200)


def test_ids_of_all_processes_are_different(server):
    """Each connection is accepted by one of the processes, whose worker numbers are its own."""
    ids = []
    for _ in range(30):
        with IdClient(server.ids) as client:
            ids.append(client.get_id())
    assert len(set(ids)) == len(ids)
    workers = re.findall(r'flakelog_ids_lead_seconds{broker="\d",worker="(\d+)"}', _page(server, "/metrics")[1])
    assert len(set(workers)) == len(workers) == 6, "one for messages and one for the service, of each process"


TOKEN = "a secret of sixteen"


def test_one_console_answers_whichever_process_accepts_a_visitor(tmp_path):
    """Its sessions and its pages are those of one process, so another one could not go on with them."""
    with SeveralProcesses(tmp_path, 2, {"flakelog.console.token": TOKEN}) as server:
        visitor = Visitor(server.http)  # whose connections are all new
        assert visitor.post("/console/login", {"token": TOKEN, "next": "/console/topics"})[0] == 303
        status, text = visitor.confirm("create-topic", name="orders", partitions="4")
        assert status == 200, text
        server.cluster.await_leaders("orders")
        for _ in range(10):
            status, text = visitor.get("/console/topics")
            assert status == 200 and "orders" in text
        stopped = server.child(2)
        os.kill(stopped, signal.SIGSTOP)
        assert visitor.get("/console/topics")[0] == 200
        os.kill(stopped, signal.SIGCONT)
        assert Visitor(server.http).get("/console/topics")[0] == 303, "a visitor without a session"


def test_the_console_shows_the_messages_of_all_processes(server):
    server.cluster.create("shown", 3)
    producer = Producer({"bootstrap.servers": server.address})
    for partition in range(3):
        producer.produce("shown", f"message {partition}", partition=partition)
    assert producer.flush(SECONDS) == 0
    assert set(server.cluster.leaders("shown").values()) == {1, 2, 3}
    visitor = Visitor(server.http)
    status, text = visitor.get("/console/topics/shown/messages")
    assert status == 200 and all(f"message {partition}" in text for partition in range(3)), text
    for partition in range(3):
        status, text = visitor.get(f"/console/topics/shown/messages?partition={partition}")
        assert status == 200 and f"message {partition}" in text and "which has 0 to 1" in text
        assert visitor.get(f"/console/topics/shown/message?partition={partition}&offset=0")[0] == 200
        assert visitor.get(f"/console/topics/shown/message?partition={partition}&offset=1")[0] == 404
        with Client(server.address) as client:
            (record,) = read_records(client, ("shown", partition), 0, 1)
        assert visitor.get(f"/console/find?id={record.id}")[0] == 303
    assert visitor.get("/console/topics/shown/messages?partition=3")[0] == 404
    status, text = visitor.get("/console/topics/shown/search?text=message")
    assert status == 200 and "3 found in 3 messages" in text, text
