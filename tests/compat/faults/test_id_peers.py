"""Sanity checks at start, as in Twitter's Snowflake: real processes, one ZooKeeper, and peers with wrong clocks."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from coordination.port import Children, Create, Get
from coordination.zookeeper import ZooKeeperCoordinator
from idgen.wire import CallDecoder, encode_i64
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.patience import MS, SECONDS


def health(server):
    with urlopen(f"http://{server.http}/health", timeout=SECONDS) as answer:
        return json.load(answer)


@contextmanager
def peer(hosts, number, clock_ahead_ms):
    """Run a foreign Snowflake: registered in ZooKeeper as Twitter's is, and answering over Thrift."""
    told = {
        "get_worker_id": lambda: number,
        "get_datacenter_id": lambda: 0,
        "get_timestamp": lambda: time.time_ns() // 1_000_000 + clock_ahead_ms,
    }

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                decoder = CallDecoder()
                while data := connection.recv(4_096):
                    for call in decoder.calls(data):
                        connection.sendall(encode_i64(call.method, call.seqid, told[call.method]()))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        session = ZooKeeperCoordinator(hosts)
        address = "127.0.0.1:{}".format(listener.getsockname()[1])
        session.execute(Create(f"/snowflake-servers/{number}", address.encode(), ephemeral=True))
        try:
            yield
        finally:
            session.close()
            listener.shutdown(socket.SHUT_RDWR)


def shown_at(hosts):
    """Return the addresses by which services find each other."""
    session = ZooKeeperCoordinator(hosts)
    try:
        numbers = session.execute(Children("/snowflake-servers"))
        return {session.execute(Get(f"/snowflake-servers/{number}")).data.decode() for number in numbers}
    finally:
        session.close()


def idgen(tmp_path, name, hosts, **settings):
    given = {"listeners": "", "flakelog.ids.sanity.timeout.ms": MS // 2} | settings
    return ServerProcess(tmp_path / name, given, zookeeper=hosts)


def test_the_offset_from_the_peers_clocks_is_shown(tmp_path, zookeeper):
    hosts = f"{zookeeper.hosts}/peers-agree"
    with idgen(tmp_path, "one", hosts) as one:
        assert health(one)["clock_offset_ms"] is None
        with idgen(tmp_path, "two", hosts) as two:
            assert abs(health(two)["clock_offset_ms"]) <= 10_000  # the offset includes the time an answer takes
            assert shown_at(hosts) == {one.ids, two.ids}, "what is shown is where they listen"
            assert health(two)["ids_unique_in"] == f"zookeeper {hosts}"
            with urlopen(f"http://{two.http}/metrics", timeout=SECONDS) as answer:
                shown = answer.read().decode()
            assert "flakelog_ids_peers 1.0" in shown and "flakelog_ids_clock_offset_seconds" in shown
            assert f'flakelog_ids_scope_info{{unique_in="zookeeper {hosts}"}} 1.0' in shown


def test_a_service_on_every_interface_is_shown_by_the_machines_name_and_one_behind_another_address_by_that(
    tmp_path, zookeeper
):
    hosts = f"{zookeeper.hosts}/peers-everywhere"
    with idgen(tmp_path, "everywhere", hosts, **{"flakelog.ids.listener": "0.0.0.0:0"}) as one:
        assert shown_at(hosts) == {f"{socket.gethostname()}:{one.ids.rpartition(':')[2]}"}
        given = {"flakelog.ids.advertised.address": "ids.example:7609", "flakelog.ids.sanity.check": "false"}
        with idgen(tmp_path, "behind", hosts, **given):
            assert "ids.example:7609" in shown_at(hosts)


def test_a_clock_far_from_the_peers_does_not_start_unless_the_check_is_off(tmp_path, zookeeper):
    hosts = f"{zookeeper.hosts}/peers-differ"
    with peer(hosts, 3, clock_ahead_ms=60_000):
        with pytest.raises(DidNotStart, match="behind the mean of 1 id services") as refused:
            idgen(tmp_path, "refused", hosts).start()
        assert "flakelog.ids.sanity.check=false" in refused.value.stderr
        with idgen(tmp_path, "insists", hosts, **{"flakelog.ids.sanity.check": "false"}) as server:
            assert server.running
