"""Three brokers on SASL_SSL with an authorizer, under load, lose no acknowledged record, whatever dies or is renewed.

`make test` makes one kill, `make soak` all of the faults many times, as it does of brokers in plain text.
"""

import subprocess
import sys
from contextlib import ExitStack, closing
from types import SimpleNamespace
from uuid import UUID

import pytest

from broker.client.blocking import Client
from broker.client.errors import Unreachable
from broker.client.message_exchange import exchange_of, response_to
from broker.membership.calls import is_denied
from coordination.port import ANY_VERSION, Children, CoordinatorUnavailable, Create, Delete, Get, Set
from coordination.zookeeper import ZooKeeperCoordinator
from flakelog.testing.authority import Authority
from tests.broker.membership.stranger_requests import EPOCH, REQUESTS
from tests.compat.faults.replicated_brokers import NUMBERS
from tests.compat.faults.replicated_loads import Librdkafka, NumbersLoad, replicated_loads
from tests.compat.faults.rounds import KILLS, OUTAGES
from tests.compat.faults.secure_brokers import ADMIN, BROKER, JAAS, SCRAM, STRANGER, SecureServers
from tests.compat.sasl_users import jaas
from tests.compat.server.test_health import health
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.patience import SECONDS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        own = {"flakelog.http.listener": "127.0.0.1:0"}
        yield SecureServers(tmp_path_factory.mktemp("secure"), f"{zookeeper.hosts}/secure", stack, settings=own)


def test_a_kill_of_the_leader_and_controller_loses_nothing(cluster):
    killed = cluster.choose("leader and controller")
    load = NumbersLoad(cluster, Librdkafka(cluster.bootstrap))
    load.await_more()
    cluster.kill(killed)
    load.await_more()
    cluster.start(killed)
    cluster.await_in_sync()
    load.await_more()
    load.stop()
    cluster.await_level()
    load.check()
    cluster.delete([load.topic])


def test_a_strange_authority_in_the_file_of_the_controller_cuts_it_off_from_no_broker(cluster):
    """Its listener refuses the file, and its own connections do too: a broker that starts waits for the controller."""
    controller = cluster.controller
    restarted = cluster.others(controller)[0]
    mark = cluster[controller].mark()
    cluster.trust(controller, Authority("A stranger"))
    cluster[controller].wait_for_log("listener BROKERS keeps its certificate", mark)
    cluster.kill(restarted)
    cluster.start(restarted)
    cluster.trust(controller, cluster.files.authority)
    cluster[controller].wait_for_log("listener BROKERS has read its files again", mark)


def ask(client, message):
    """Return the response to a request, None if the broker has closed the connection."""

    def asking():
        return response_to(message, (yield exchange_of(client.core.bootstrap[0], message)))

    try:
        return client.run(asking())
    except Unreachable:
        return None


@pytest.mark.parametrize("listener", ["broker", "broker.BROKERS"])
def test_a_stranger_with_all_rights_on_topics_is_denied_what_brokers_do(cluster, listener):
    """The stranger is anonymous at the listener of clients, and logs in at that of brokers."""
    cluster.place_evenly()
    cluster.create("flights", 1)
    controller, leaders = cluster.controller, cluster.leaders("flights")
    order = {"controller_epoch": EPOCH, "broker_epoch": 1 << 40}
    state = SimpleNamespace(leader_epoch=0, partition_epoch=0)
    target = SimpleNamespace(topic_id=UUID(int=7), state=state, epoch=1 << 40, order=order)
    for server in cluster.servers.values():
        security = cluster.security_of(STRANGER) if listener.endswith("BROKERS") else None
        for name, request in REQUESTS.items():
            with Client(server.addresses[listener], security=security) as client:
                response = ask(client, request(target))
            assert is_denied(response) if response is not None else listener == "broker", name
    assert (cluster.controller, cluster.leaders("flights")) == (controller, leaders)
    cluster.produce("flights", "still", [0])
    cluster.delete(["flights"])


def test_who_reaches_zookeeper_changes_no_node_and_reads_no_password_hash(cluster):
    with closing(ZooKeeperCoordinator(cluster.zookeeper)) as stranger:
        assert stranger.execute(Get("/brokers/ids/1")).data and "users" in stranger.execute(Children("/config"))
        for path in ("/config/users/broker", "/config/brokers"):
            with pytest.raises(CoordinatorUnavailable):
                stranger.execute(Get(path))
        changes = Set("/controller", b"{}", ANY_VERSION), Create("/kafka-acl/Topic/x"), Delete("/brokers/ids/1")
        for forbidden in changes:
            with pytest.raises(CoordinatorUnavailable):
                stranger.execute(forbidden)


def test_a_deleted_user_of_the_brokers_is_named_until_a_start_with_add_scram_gives_it_back(cluster, tmp_path):
    controller = cluster.controller
    late, other = cluster.others(controller)
    mark = cluster[other].mark()
    deleted = run_as_admin(cluster, tmp_path, "user", "delete", BROKER, "--yes")
    wanted = f"brokers log in to each other as '{BROKER}', which has no {SCRAM} password"
    assert deleted.returncode == 0 and deleted.stderr.startswith(f"warning: {wanted}"), deleted.stderr
    cluster[other].wait_for_log(wanted, mark)
    status, body = health(cluster[other], "/health")
    assert status == 503 and any(problem.startswith(wanted) for problem in body["cluster"]["problems"])
    assert f"deleted the {SCRAM} password of user {BROKER}" in cluster[controller].log
    cluster.kill(late)
    with_timeout = cluster[late].settings | {"flakelog.start.timeout.ms": "5000"}
    with pytest.raises(DidNotStart) as failed:
        ServerProcess(cluster[late].data_dir, with_timeout).start()
    (error,) = [line for line in failed.value.stderr.splitlines() if line.startswith("Error: ")]
    assert f"from its controller: not within 5000 ms; {wanted}" in error
    assert f"unknown user or wrong password: '{BROKER}'" in error
    cluster.start(late)  # with --add-scram
    cluster.await_in_sync()
    assert not health(cluster[other], "/health")[1]["cluster"]["problems"]


def run_as_admin(cluster, directory, *arguments):
    """Run a command of Flakelog at the listener of brokers. Return the process that has ended."""
    file = directory / "admin.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in cluster.security_of(ADMIN).items()))
    servers = [server.addresses["broker.BROKERS"] for server in cluster.servers.values() if server.running]
    argv = [sys.executable, "-m", "flakelog", *arguments, "--servers", ",".join(servers), "--command-config", str(file)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(KILLS))
@pytest.mark.parametrize("kind", ["leader and controller", "leader", "controller", "follower"])
def test_the_partitions_of_a_killed_broker_go_on_without_it(cluster, processes, kind, turn):
    killed = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads:
        cluster.kill(killed)
        loads.await_more()
        cluster.start(killed)


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(OUTAGES))
def test_new_certificates_are_taken_under_load_without_a_restart(cluster, processes, turn):
    cluster.place_evenly()
    with replicated_loads(cluster, processes) as loads:
        for number in NUMBERS:
            mark = cluster[number].mark()
            cluster.renew_certificate(number)
            cluster[number].wait_for_log("BROKERS has a new certificate", mark)
            loads.await_more()
        killed = NUMBERS[turn % len(NUMBERS)]
        cluster.kill(killed)  # it connects anew to both others, and they to it
        cluster.start(killed)


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(OUTAGES))
def test_a_new_password_between_brokers_is_taken_under_load_without_a_restart(cluster, processes, turn):
    """A broker that starts again logs in with it too: it is in ZooKeeper, and nobody reads it there."""
    cluster.place_evenly()
    with replicated_loads(cluster, processes) as loads:
        cluster.change_password(f"marked-password-{turn}")
        loads.await_more()
        killed = NUMBERS[turn % len(NUMBERS)]
        cluster.kill(killed)
        mark = cluster[killed].mark()
        cluster.start(killed)
        loads.await_more()
        assert "refuses the login" not in cluster[killed].log_since(mark)
    assert "marked-" not in cluster.log


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(OUTAGES))
def test_a_broker_with_a_wrong_password_is_named_on_both_sides_and_the_others_go_on(cluster, processes, turn):
    cluster.restore_password()
    wrong = NUMBERS[turn % len(NUMBERS)]
    settings = cluster[wrong].settings
    right = settings[JAAS]
    with replicated_loads(cluster, processes) as loads:
        assert cluster[wrong].stop() == 0
        others = [cluster[number] for number in cluster.others(wrong)]
        marks = [server.mark() for server in (cluster[wrong], *others)]
        settings[JAAS] = jaas("broker", "wrong", "SCRAM-SHA-512")
        cluster[wrong].launch()
        cluster[wrong].wait_for_log("the broker refuses the login by SCRAM-SHA-512", marks[0])
        others[0].wait_for_log("wrong password: 'broker'", marks[1])
        loads.await_more()
        cluster.kill(wrong)
        settings[JAAS] = right
        cluster.start(wrong)
