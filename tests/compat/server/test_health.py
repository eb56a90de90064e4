"""Health endpoints for load balancers, orchestrators and test set-ups, which send work to a server."""

import json
import signal
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from broker.client.blocking import Client
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from idgen.client.blocking import IdClient
from idgen.client.core import IdServiceError
from tests.compat.server_process import ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import MS, SECONDS, until


def client_of(server):
    return IdClient(server.ids, timeout_ms=MS)


def health(server, path):
    """Return (status, body)."""
    try:
        with urlopen(f"http://{server.http}{path}", timeout=SECONDS) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_a_server_that_serves_is_live_and_ready(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        assert health(server, "/health/live") == (200, {"live": True})
        nothing_wrong = {"ids_problem": None, "partitions_offline": {}, "partitions_waiting_for_clock": {},
                         "disk_full": None}  # fmt: skip
        ready = {"ready": True, "stopping": False, **nothing_wrong}
        assert health(server, "/health/ready") == (200, ready)


def test_once_told_to_stop_it_is_not_ready_but_serves_on(tmp_path):
    with ServerProcess(tmp_path / "data", {"flakelog.shutdown.grace.ms": MS}) as server:
        assert health(server, "/health/ready")[0] == 200
        server.send_signal(signal.SIGTERM)
        server.wait_for_log("not ready any more")
        status, body = health(server, "/health/ready")
        assert (status, body["ready"], body["stopping"]) == (503, False, True)
        assert health(server, "/health/live")[0] == 200
        with Client(server.address) as client:
            client.create_topic("late")


def test_once_the_grace_is_over_it_stops(tmp_path):
    with ServerProcess(tmp_path / "data", {"flakelog.shutdown.grace.ms": 300}) as server:
        assert server.stop() == 0
        assert "not ready any more, serving 300 ms on" in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_again_it_does_not_wait_for_the_rest_of_the_grace(tmp_path, number):
    """A second stop signal ends the grace, but the logs are still closed, so the next start has nothing to recover."""
    with ServerProcess(tmp_path / "data", {"flakelog.shutdown.grace.ms": 100 * MS}) as server:
        with Client(server.address) as client:
            client.create_topic("kept")
        server.send_signal(signal.SIGTERM)
        server.wait_for_log("not ready any more")
        assert server.stop(number) == 0
        assert "told to stop again: the grace ends now" in server.log and "Traceback" not in server.log
        begin = server.mark()
        server.start()
        assert "recover" not in server.log_since(begin)


def metrics(server):
    with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
        return answer.read().decode()


def test_a_file_that_was_refused_makes_health_and_a_metric_say_so_until_it_fits(tmp_path):
    own = TlsFiles(tmp_path / "tls")
    with ServerProcess(tmp_path / "data", own.settings()) as server:
        assert health(server, "/health")[1]["tls_refused"] == {}
        assert '\nflakelog_tls_refused{listener="SSL"} 0.0\n' in metrics(server)
        good = own.broker.read_bytes()
        own.broker.write_text(own.authority.issue("broker").chain_pem())
        server.wait_for_log("listener SSL keeps its certificate and authorities: ")
        status, body = health(server, "/health")
        wanted = f"ssl.keystore.location={own.broker}: has no PEM private key (-----BEGIN PRIVATE KEY-----)"
        assert (status, body["healthy"], body["tls_refused"]) == (503, False, {"SSL": wanted})
        assert health(server, "/health/ready")[0] == 200, "it serves with the old one"
        assert '\nflakelog_tls_refused{listener="SSL"} 1.0\n' in metrics(server)
        own.broker.write_bytes(good)
        server.wait_for_log("listener SSL has read its files again: they have its present certificate and authorities")
        status, body = health(server, "/health")
        assert (status, body["tls_refused"]) == (200, {})
        assert '\nflakelog_tls_refused{listener="SSL"} 0.0\n' in metrics(server)


def test_a_partition_that_is_offline_is_named_by_a_server_that_is_ready(tmp_path):
    """The server stays ready because it serves its other partitions; /health, for people and alarms, answers 503."""
    with ServerProcess(tmp_path / "data") as server:
        with Client(server.address) as client:
            client.create_topic("kept", 2)
        server.restart_without("kept-1")
        status, body = health(server, "/health/ready")
        assert status == 200
        assert list(body["partitions_offline"]) == ["kept-1"]
        assert health(server, "/health")[0] == 503


def test_a_registry_that_is_away_leaves_a_server_ready_as_long_as_its_ids_go_on(tmp_path):
    """A server without its registry stays ready while it has ids, so that not all servers become unready together."""
    settings = {"flakelog.ids.raise.interval.ms": 500, "flakelog.ids.retry.ms": 100}
    long, short = ({"flakelog.ids.lead.ms": ms} | settings for ms in (10 * MS, 2_000))
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as registry:
        lasting = ServerProcess(tmp_path / "lasting", long, zookeeper=registry.hosts)
        server = ServerProcess(tmp_path / "data", short, zookeeper=registry.hosts)
        with lasting, server, client_of(lasting) as served, client_of(server) as client:
            registry.kill()
            until(lambda: health(lasting, "/health")[0] == 503)
            status, body = health(lasting, "/health/ready")
            assert (status, body["ids_problem"]) == (200, None)
            lasting.wait_for_log("goes on without it for")
            served.get_id()
            until(lambda: health(server, "/health/ready")[0] == 503)
            with pytest.raises(IdServiceError, match="LeadExhausted"):
                until(lambda: client.get_id() < 0)  # the log's mark may have passed before the id service's mark
            registry.start()
            until(lambda: health(server, "/health/ready")[0] == 200)
            server.wait_for_log("is held again")
            until(lambda: client.get_id() > 0)


def test_the_cluster_is_shown_and_a_listener_of_brokers_on_which_clients_of_other_machines_are(tmp_path, zookeeper):
    with ServerProcess(tmp_path / "alone") as alone:
        assert health(alone, "/health")[1]["cluster"] is None
    settings = {"zookeeper.connect": f"{zookeeper.hosts}/health", "listeners": "PLAINTEXT://:0", "broker.id": "4"}
    with ServerProcess(tmp_path / "data", settings) as server:
        with Client(server.address) as client:
            client.create_topic("flights", 3)
        status, body = health(server, "/health")
        shown = body["cluster"]
        danger = shown.pop("danger")
        assert status == 200 and shown.pop("id")
        assert shown.pop("problems") == []
        assert not any(shown.pop("replication").values())
        assert shown == {"controller": 4, "live_brokers": [4], "partitions_led": 3, "partitions_offline": 0}
        assert "every client of the listener PLAINTEXT can delete the cluster's data" in danger
        assert danger in server.log, "the start warns in the same words"
