"""flakelog.processes.plan: the settings of each broker of one machine, from those of their parent."""

from pathlib import Path

import pytest

from flakelog.processes.plan import Machine, plan
from flakelog.settings import Settings, collect
from idgen.settings import InvalidSetting

GIB = 1 << 30
BIG = Machine(cores=16, memory_bytes=16 * GIB, open_files=1 << 20)
ADDRESSES = ("listeners", "advertised.listeners", "flakelog.http.listener", "flakelog.ids.listener")
OFF = {"flakelog.http.listener": "", "flakelog.ids.listener": ""}
HTTP, IDS = "127.0.0.1:8609", "127.0.0.1:7609"


def children(texts, processes, machine=BIG, **more):
    return plan(texts, processes, Path("/data"), machine, **more).children


def addresses(texts, processes, **more):
    """Return the listeners of each child, and those that all children share."""
    settings = [child.settings for child in children(texts, processes, **more)]
    own = [tuple(texts[name] for name in ADDRESSES[:2] if name in texts) for texts in settings]
    (shared,) = {tuple(texts[name] for name in ADDRESSES[2:]) for texts in settings}
    return own, shared


@pytest.mark.parametrize(
    "texts, port, own, shared",
    [
        ({}, None, ["PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9093"], ("127.0.0.1:9094", "127.0.0.1:9095")),
        ({}, 9192, ["PLAINTEXT://127.0.0.1:9192", "PLAINTEXT://127.0.0.1:9193"], ("127.0.0.1:9194", "127.0.0.1:9195")),
        (
            {"listeners": "A://h:1000,B://[::1]:2000", **OFF},
            None,
            ["A://h:1000,B://[::1]:2000", "A://h:1001,B://[::1]:2001"],
            ("", ""),
        ),
        (
            {"listeners": "A://h:1000,B://h:2000"},
            1100,
            ["A://h:1100,B://h:2100", "A://h:1101,B://h:2101"],
            ("127.0.0.1:2102", "127.0.0.1:2103"),
        ),
        (
            {"flakelog.http.listener": "0.0.0.0:8609"},
            None,
            ["PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9093"],
            ("0.0.0.0:8609", "127.0.0.1:9094"),
        ),
        (
            {"flakelog.http.listener": "h:8609", "flakelog.ids.listener": "h:7609"},
            9192,
            ["PLAINTEXT://127.0.0.1:9192", "PLAINTEXT://127.0.0.1:9193"],
            ("h:8709", "h:7709"),
        ),
        (
            {"flakelog.ids.listener": "127.0.0.1:9094"},
            None,
            ["PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9093"],
            ("127.0.0.1:9095", "127.0.0.1:9094"),
        ),
        ({"listeners": "A://h:0"}, None, ["A://h:0", "A://h:0"], (HTTP, IDS)),
        ({"listeners": "A://h:0,B://h:1000"}, None, ["A://h:0,B://h:1000", "A://h:0,B://h:1001"],
         ("127.0.0.1:1002", "127.0.0.1:1003")),
    ],
)  # fmt: skip
def test_each_broker_has_the_next_port_and_http_and_ids_come_after_the_last(texts, port, own, shared):
    assert addresses(texts, 2, port=port) == ([(listeners,) for listeners in own], shared)


def test_advertised_addresses_move_with_their_listeners():
    texts = {"listeners": "A://:1000,B://:2000", "advertised.listeners": "A://public:11000,B://inside:2000"}
    own, _ = addresses(texts, 3)
    assert own[2] == ("A://:1002,B://:2002", "A://public:11002,B://inside:2002")


def test_all_share_one_socket_of_http_and_of_ids():
    whole = plan({"flakelog.http.listener": "[::]:8609"}, 4, Path("/data"), BIG)
    assert whole.sockets == {"http": ("::", 8609), "ids": ("127.0.0.1", 9096)}
    assert plan(OFF, 4, Path("/data"), BIG).sockets == {}


def test_the_first_keeps_the_directory_and_the_others_have_their_own():
    whole = plan({"node.id": "7"}, 3, Path("/data"), BIG)
    assert [(child.id, str(child.data_dir)) for child in whole.children] == [
        (7, "/data"),
        (8, "/data/nodes/8"),
        (9, "/data/nodes/9"),
    ]
    assert whole.cluster_dir == Path("/data/cluster")
    assert [child.settings["node.id"] for child in whole.children] == ["7", "8", "9"]


def test_a_worker_number_that_is_given_is_the_first_brokers():
    assert [child.settings["flakelog.ids.worker"] for child in children({"flakelog.ids.worker": "5"}, 2)] == ["5", "6"]
    assert "flakelog.ids.worker" not in children({}, 2)[0].settings


@pytest.mark.parametrize(
    "texts, processes, reason",
    [
        (
            {"listeners": "A://h:9092,B://h:9093"},
            2,
            "A takes 9092 to 9093 with 2 processes, and B takes 9093 to 9094; begin B at 9094 or higher",
        ),
        (
            {"listeners": "A://h:9093,B://:9092"},
            2,
            "A takes 9093 to 9094 with 2 processes, and B takes 9092 to 9093; begin B at 9095 or higher",
        ),
        (
            {"flakelog.http.listener": "127.0.0.1:9094"},
            3,
            "flakelog.http.listener=127.0.0.1:9094: PLAINTEXT takes 9092 to 9094 with 3 processes, and "
            "flakelog.http.listener takes 9094; begin flakelog.http.listener at 9095 or higher",
        ),
        (
            {"listeners": "A://:1000,B://:2000", "advertised.listeners": "A://h:1,B://h:2"},
            2,
            "advertised.listeners=A://h:1,B://h:2: A takes 1 to 2 with 2 processes",
        ),
        ({"listeners": "A://h:65535"}, 2, "it would put listeners at 65536"),
        ({"listeners": "A://h:65534"}, 2, "no port is left after it; give flakelog.http.listener one"),
        ({"listeners": ""}, 2, "must have a listener"),
    ],
)
def test_ports_that_do_not_fit_are_refused_by_name(texts, processes, reason):
    with pytest.raises(InvalidSetting) as refused:
        children(texts, processes)
    assert reason in str(refused.value)


def test_listeners_on_different_hosts_may_have_the_same_ports():
    texts = {"listeners": "A://127.0.0.1:9092,B://10.0.0.1:9092,CONTROLLER://:9093", **OFF}
    assert len(children(texts | {"controller.listener.names": "CONTROLLER"}, 2)) == 2


def test_shares_of_the_machine_are_divided():
    settings = children({}, 4, Machine(16, 16 * GIB, 4_000))[3].settings
    assert {name: settings[name] for name in settings if "max" in name} == {
        "queued.max.request.bytes": str(GIB // 2),
        "max.connections": "500",
        "flakelog.ids.max.connections": "125",
        "flakelog.http.max.connections": "125",
        "flakelog.max.open.files": "200",
    }


def test_a_limit_that_is_given_is_that_of_one_broker():
    given = {"max.connections": "7", "flakelog.max.open.files": "0"}
    settings = children(given, 2, Machine(16, None, 4_000))[0].settings
    assert "max.connections" not in settings and "queued.max.request.bytes" not in settings
    assert settings["flakelog.max.open.files"] == "400", "0 is the default, a share of what the system lets it open"


@pytest.mark.parametrize("cores, polls", [(3, True), (2, False), (1, False)])
def test_no_process_polls_when_each_core_has_one(cores, polls):
    settings = children({"flakelog.busy.poll.us": "50"}, 2, Machine(cores, GIB, 1_000))[0].settings
    assert settings.get("flakelog.busy.poll.us") == (None if polls else "0")


COPIES = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
)


@pytest.mark.parametrize(
    "texts, processes, copies",
    [
        ({}, 1, ["1", "1", "1"]),
        ({}, 2, ["2", "2", "1"]),
        ({}, 3, [None, None, None]),
        ({COPIES[0]: "1", COPIES[2]: "2"}, 2, [None, "2", None]),
        ({"zookeeper.connect": "zk1:2181"}, 2, [None, None, None]),
    ],
)
def test_the_coordinators_topics_have_no_more_copies_than_there_are_processes(texts, processes, copies):
    for child in children(texts, processes):
        assert [child.settings.get(name) for name in COPIES] == copies


def test_the_options_of_a_child_go_over_those_of_its_parent():
    given = ["broker.id=3", "listeners=A://h:1000", "listener.security.protocol.map=A:PLAINTEXT", "max.connections=9"]
    child = children(collect(None, given).texts, 2)[1]
    options = child.arguments
    assert options[:2] == ["--data-dir", "/data/nodes/4"]
    added = [option.removeprefix("--set=") for option in options[2:]]
    settings = Settings(collect(None, [*given, *added]).texts, {})
    assert settings.broker.node_id == 4 and settings.broker.max_connections == 9
    assert settings.server.listeners == "A://h:1001"
