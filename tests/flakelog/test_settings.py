"""Settings: a properties file with Kafka's names, the environment and --set over it, validated once."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from broker.settings.config import ListenerLimits
from broker.settings.kafka_settings import broker_settings
from flakelog.cli import main
from flakelog.listeners import Listener
from flakelog.settings import (
    Given,
    Settings,
    UnknownSetting,
    collect,
    gather,
    misspelt_variables,
    names,
    read_properties,
    variable_of,
)
from idgen.settings import InvalidSetting

# The config/server.properties that Kafka 4 ships, without its comments.
KAFKAS_OWN = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("# as Kafka ships it\nnum.partitions=4\n\n! old style\nlog.segment.bytes = 1048576\n")
    return path


def texts(*assignments, environment=None, file=None):
    return collect(file, assignments, environment).texts


# --- sources ---------------------------------------------------------------------------------------------------------


def test_a_properties_file_is_read_as_kafkas_is(file):
    assert texts(file=file) == {"num.partitions": "4", "log.segment.bytes": "1048576"}


@pytest.mark.parametrize(
    "text, value",
    [
        ("a=b", "b"),
        ("a: b", "b"),
        ("a b c", "b c"),
        ("a=", ""),
        ("a=b=c", "b=c"),
        ("a=PLAINTEXT://\\\n   127.0.0.1:9092\n", "PLAINTEXT://127.0.0.1:9092"),
        ("a=C\\:\\\\x\\u0041", "C:\\xA"),
        ("a=-----BEGIN\\n\\tx\\r\\f", "-----BEGIN\n\tx\r\f"),
        ("a=1\na=2", "2"),
    ],
)
def test_a_line_is_read_as_java_reads_it(text, value):
    """A line is read as java.util.Properties.load reads it."""
    (setting,) = read_properties(text, "x")
    assert (setting.name, setting.text) == ("a", value)


def test_the_command_line_goes_over_the_environment_and_that_over_the_file(file):
    environment = {"FLAKELOG_NUM_PARTITIONS": "6", "FLAKELOG_IDS_WORKER": "7"}
    collected = collect(file, ["num.partitions=8"], environment)
    assert collected.texts == {"num.partitions": "8", "log.segment.bytes": "1048576", "flakelog.ids.worker": "7"}
    assert collected.origins == {
        "num.partitions": "--set",
        "log.segment.bytes": f"{file}:5",
        "flakelog.ids.worker": "FLAKELOG_IDS_WORKER",
    }
    assert texts(environment=environment, file=file)["num.partitions"] == "6"


def test_a_mode_goes_under_all_that_is_given(file):
    mode = [Given("num.partitions", "2", "--dev"), Given("group.initial.rebalance.delay.ms", "0", "--dev")]
    collected = collect(file, [], {}, mode)
    assert collected.texts["num.partitions"] == "4"
    assert collected.origins["group.initial.rebalance.delay.ms"] == "--dev"


def test_every_setting_has_a_variable_of_its_own():
    every = {*names(), *(row.name for row in broker_settings())}
    assert len({variable_of(name) for name in every}) == len(every)
    assert variable_of("listeners") == "FLAKELOG_LISTENERS"
    assert variable_of("flakelog.ids.epoch.ms") == "FLAKELOG_IDS_EPOCH_MS"


def test_kafkas_other_names_are_variables_too():
    assert texts(environment={"FLAKELOG_LOG_RETENTION_HOURS": "2"}) == {"log.retention.ms": "7200000"}


def test_clients_are_told_of_a_setting_under_the_name_it_was_given_by():
    """Clients see the given names separately, as in Kafka's DescribeConfigs."""
    environment = {"FLAKELOG_NUM_IO_THREADS": "9", "FLAKELOG_LOG_RETENTION_MS": "5"}
    shown = collect(None, ["log.retention.hours=2", "broker.id=3"], environment).shown
    assert shown == {"log.retention.hours": "2", "node.id": "3", "num.io.threads": "9"}
    shown = collect(None, ["log.retention.hours=2", "log.retention.ms=7"]).shown
    assert shown == {"log.retention.hours": "2", "log.retention.ms": "7"}


def test_a_variable_that_is_nearly_a_setting_is_pointed_out():
    """A misspelt variable only gets a warning, because other programs may own FLAKELOG_ variables."""
    environment = {"FLAKELOG_NUM_PARTITION": "4", "FLAKELOG_SEEDS": "1", "FLAKELOG_LISTENERS": "", "HOME": "/"}
    assert collect(None, [], environment).texts == {"listeners": ""}
    (line,) = misspelt_variables(environment)
    assert line.startswith("FLAKELOG_NUM_PARTITION is no setting") and line.endswith("FLAKELOG_NUM_PARTITIONS?")


@pytest.mark.parametrize("assignment", ["num.partitions", "=4", ""])
def test_an_assignment_without_a_name_or_a_value_is_refused(assignment):
    with pytest.raises(InvalidSetting, match="must be name=value"):
        texts(assignment)


def test_a_line_that_is_no_setting_is_refused_by_its_number(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=4\nlisteners\n")
    with pytest.raises(InvalidSetting, match=r"server\.properties, line 2=listeners: must be name=value"):
        collect(path)


# --- names -----------------------------------------------------------------------------------------------------------


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownSetting, match=r"^num\.partition: there is .* did you mean num\.partitions"):
        texts("num.partition=4")


def test_a_topics_setting_among_the_servers_is_refused_with_that_of_all_topics():
    with pytest.raises(UnknownSetting, match=r"^flush\.ms: it is a topic's; .* is log\.flush\.interval\.ms$"):
        texts("flush.ms=5")


def test_the_nearest_name_may_be_one_that_only_kafka_has():
    with pytest.raises(UnknownSetting, match=r"did you mean num\.replica\.fetchers\?"):
        texts("num.replica.fetcher=4")


def test_a_setting_like_no_other_is_refused_without_a_guess():
    with pytest.raises(UnknownSetting, match=r"^xyzzy: there is no such setting$"):
        texts("xyzzy=4")


def test_what_changes_nothing_is_left_aside():
    collected = collect(None, ["num.io.threads=16", "zookeeper.sync.time.ms=9", "listener.name.x.ssl.protocol=TLS"])
    assert collected.texts == {}
    assert collected.ignored == ["listener.name.x.ssl.protocol", "num.io.threads", "zookeeper.sync.time.ms"]


def test_two_ids_of_one_broker_are_refused(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("node.id=3\nbroker.id=3\n")
    assert collect(file).texts == {"node.id": "3"}
    file.write_text("node.id=3\nbroker.id=4\n")
    with pytest.raises(InvalidSetting, match="broker.id=4: node.id=3 is given too; give one of both"):
        collect(file)


def test_what_would_mean_something_else_is_refused_with_a_way_out():
    with pytest.raises(InvalidSetting, match=r"^process\.roles=controller: .*; process\.roles=broker,controller"):
        texts("process.roles=controller")
    assert texts("process.roles=broker") == {}


@pytest.mark.parametrize(
    "given, wanted",
    [
        (["log.retention.hours=2"], {"log.retention.ms": "7200000"}),
        (["log.retention.hours=-1"], {"log.retention.ms": "-1"}),
        (["log.retention.hours=2", "log.retention.minutes=3"], {"log.retention.ms": "180000"}),
        (["log.retention.ms=5", "log.retention.minutes=3"], {"log.retention.ms": "5"}),
        (["log.roll.hours=1"], {"log.roll.ms": "3600000"}),
        (["log.flush.scheduler.interval.ms=9"], {"log.flush.interval.ms": "9"}),
        (["broker.id=3"], {"node.id": "3"}),
        (["log.dir=/a", "log.dirs=/b"], {"log.dirs": "/b"}),
    ],
)
def test_of_kafkas_names_for_one_thing_the_first_in_its_order_goes(given, wanted):
    """log.retention.ms wins over minutes, minutes over hours: https://kafka.apache.org/documentation/#brokerconfigs."""
    assert texts(*given) == wanted


def test_a_synonym_of_the_command_line_goes_over_the_name_itself_in_the_file(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("log.retention.ms=5\n")
    assert texts("log.retention.hours=1", file=path) == {"log.retention.ms": "3600000"}


def test_a_synonym_that_is_no_number_is_refused_by_its_own_name():
    with pytest.raises(InvalidSetting, match=r"^log\.retention\.hours=week: must be a whole number"):
        texts("log.retention.hours=week")


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("broker.id=nine", "broker.id=nine: must be a whole number"),
        ("broker.id=-5", "node.id=-5: must be at least 0"),
        ("node.id=nine", "node.id=nine: must be a whole number"),
        ("log.retention.hours=week", "log.retention.hours=week: must be a whole number"),
        ("num.partitions=0", "num.partitions=0: must be between 1 and 100000"),
        ("num.partition=4", "num.partition: there is no such setting; did you mean num.partitions?"),
        ("retention.ms=5", "retention.ms: it is a topic's; the default for all topics is log.retention.ms"),
        ("process.roles=x", "process.roles=x: one process is broker and controller"),
        ("num.partitions=${env:NOT_SET}", "num.partitions=${env:NOT_SET}: "),
        ("listener.name.plaintext.max.connections=ten", "listener.name.plaintext.max.connections=ten: must be"),
        ("listener.name.inside.max.connections=10", "listener.name.inside.max.connections=10: there is no such"),
        ("ssl.client.auth=maybe", "ssl.client.auth=maybe: must be one of none, requested, required"),
        ("unclean.leader.election.enable=perhaps", "unclean.leader.election.enable=perhaps: must be true or false"),
    ],
)
def test_a_wrong_setting_of_a_file_is_refused_with_its_line_and_what_would_be_right(file, given, wanted):
    file.write_text(f"# first\n\n{given}\nbroker.rack=a\n")
    with pytest.raises(InvalidSetting) as error:
        collect(file).settings()
    origin = f"{file}:3, as broker.id" if wanted.startswith("node.id=-5") else f"{file}:3"
    assert str(error.value).startswith(wanted) and str(error.value).endswith(f" ({origin})")


def test_a_wrong_setting_of_the_environment_is_refused_with_its_variable_and_of_the_command_line_by_itself(file):
    with pytest.raises(InvalidSetting, match=r"^node\.id=x: must be a whole number \(FLAKELOG_NODE_ID\)$"):
        collect(file, [], {"FLAKELOG_NODE_ID": "x"}).settings()
    with pytest.raises(InvalidSetting, match=r"^broker\.id=x: must be a whole number$"):
        collect(file, ["broker.id=x"]).settings()


def test_kafkas_own_server_properties_are_taken(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text(KAFKAS_OWN)
    server = Settings(collect(path).texts).server
    assert server.broker_listeners == [Listener("PLAINTEXT", "", 9092)]
    assert server.advertised["PLAINTEXT"] == Listener("PLAINTEXT", "localhost", 9092)
    assert server.log_dirs == "/tmp/kraft-combined-logs"


def test_all_errors_are_found_together():
    verdicts = gather(None, ["num.partition=4", "zookeeper.ssl.client.enable=true", "num.io.threads=1"]).verdicts
    assert [verdict.standing for verdict in verdicts] == ["unknown", "refused", "ignored"]
    assert all(verdict.reason for verdict in verdicts)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("num.partitions", "0", "must be between 1 and 100000"),
        ("num.partitions", "four", "must be a whole number"),
        ("auto.create.topics.enable", "yes", "must be true or false"),
        ("listeners", "127.0.0.1:9092", "must be PLAINTEXT://host:port"),
        ("listeners", "SASL_SSL://127.0.0.1:9092", "sasl.enabled.mechanisms=GSSAPI: .* is not served: give SCRAM"),
        ("listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", "PLAINTEXT is there twice"),
        ("listeners", "PLAINTEXT://a:1,INSIDE://b:2", "add INSIDE:SSL, or PLAINTEXT on a network you trust"),
        ("listeners", "PLAINTEXT://127.0.0.1:99999", "must be host:port"),
        ("listeners", "PLAINTEXT://::1:9092", "an IPv6 address in brackets"),
        ("listener.security.protocol.map", "PLAINTEXT", "must be NAME:PROTOCOL"),
        ("listener.security.protocol.map", "PLAINTEXT:SASL_SSL", "GSSAPI .* is not served"),
        ("advertised.listeners", "OTHER://a:1", "must be of listeners, which are PLAINTEXT"),
        ("inter.broker.listener.name", "OTHER", "must be of listeners, which are PLAINTEXT"),
        ("controller.listener.names", "PLAINTEXT", "all are controllers'"),
        ("log.dirs", "/a,/b", "one directory is served"),
        ("flakelog.http.listener", "8609", "must be host:port"),
        ("flakelog.ids.worker", "1024", "must be between 0 and 1023"),
        ("flakelog.ids.time.bits", "42", "add up to 64 bits"),
        ("flakelog.ids.raise.interval.ms", "20000", "must be at most half of flakelog.ids.lead.ms"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(name, value, wanted):
    with pytest.raises(InvalidSetting, match=wanted):
        Settings({name: value})


def test_settings_reach_the_part_they_are_of():
    settings = Settings({"num.partitions": "4", "flakelog.ids.worker": "7", "listeners": "PLAINTEXT://[::1]:0"})
    assert settings.broker.num_partitions == 4
    assert settings.idgen.ids_worker == 7
    assert settings.server.broker_listeners == [Listener("PLAINTEXT", "::1", 0)]


def test_an_empty_listener_turns_its_part_off():
    assert Settings({"listeners": ""}).server.broker_listeners == []
    assert Settings({"flakelog.http.listener": ""}).server.http_address is None


def test_several_listeners_have_names_that_a_map_gives_a_protocol():
    server = Settings(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092, inside://0.0.0.0:9094",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:plaintext",
            "advertised.listeners": "INSIDE://broker.local:9094",
        }
    ).server
    assert server.broker_listeners == [Listener("PLAINTEXT", "127.0.0.1", 9092), Listener("INSIDE", "0.0.0.0", 9094)]
    assert server.advertised == {"INSIDE": Listener("INSIDE", "broker.local", 9094)}
    assert [listener.name for listener in server.open_listeners] == ["INSIDE"]


def test_a_listener_of_brokers_is_a_danger_while_other_machines_reach_it_and_clients_use_it_too():
    def danger(listeners, **named):
        settings = {"listeners": listeners, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT"}
        server = Settings(settings | {name.replace("_", "."): value for name, value in named.items()}).server
        return server.danger_of_inter_broker(server.inter_broker_listener, has_authorizer=False)

    assert "can delete the cluster's data" in danger("PLAINTEXT://10.0.0.1:9092")
    assert "listener PLAINTEXT" in danger("PLAINTEXT://10.0.0.1:9092", inter_broker_listener_name="PLAINTEXT")
    assert danger("PLAINTEXT://10.0.0.1:9092,B://10.0.0.1:9093") is not None, "no setting says which is the brokers'"
    assert danger("PLAINTEXT://10.0.0.1:9092,B://10.0.0.1:9093", inter_broker_listener_name="B") is None
    assert danger("PLAINTEXT://127.0.0.1:9092") is None


def test_a_listener_that_brokers_may_use_too_is_a_danger_until_they_use_it_no_more():
    settings = {
        "listeners": "PLAINTEXT://10.0.0.1:9092,B://10.0.0.1:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
        "inter.broker.listener.name": "B",
        "flakelog.inter.broker.listeners.more": "PLAINTEXT",
    }
    server = Settings(settings).server
    assert "empty flakelog.inter.broker.listeners.more" in server.danger_of_inter_broker("B", has_authorizer=False)
    assert server.danger_of_inter_broker("B", has_authorizer=True) is None


def test_the_names_that_kafka_users_know_are_accepted():
    """The names are those of https://kafka.apache.org/documentation/#brokerconfigs."""
    assert {"listeners", "num.partitions", "log.segment.bytes", "message.max.bytes", "node.id"} <= set(names())


@pytest.mark.parametrize("everywhere", ["PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://[::]:9092"])
def test_who_listens_everywhere_must_say_how_clients_reach_it(everywhere):
    """An address of every interface is refused, as in Kafka: Metadata would send each client to its own machine."""
    with pytest.raises(InvalidSetting, match=r"as in advertised\.listeners=PLAINTEXT://my-host\.example:9092$"):
        Settings({"listeners": everywhere})
    with pytest.raises(InvalidSetting, match=r"^advertised\.listeners="):
        Settings({"listeners": "PLAINTEXT://127.0.0.1:9092", "advertised.listeners": everywhere})
    Settings({"listeners": everywhere, "advertised.listeners": "PLAINTEXT://broker:9092"})


def test_limits_of_one_listener():
    """A single listener has limits (KIP-402, KIP-612), and its name is in any case, as in `listeners`."""
    listeners = "INSIDE://127.0.0.1:9092,OUTSIDE://127.0.0.1:9093"
    given = {"listeners": listeners, "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"}
    limits = {"listener.name.inside.max.connections": "5", "listener.name.INSIDE.max.connection.creation.rate": "7"}
    assert texts(*(f"{name}={value}" for name, value in limits.items())) == limits
    assert Settings(given | limits).listener_limits == {"INSIDE": ListenerLimits(5, 7)}
    with pytest.raises(InvalidSetting, match="there is no such listener; listeners has INSIDE, OUTSIDE$"):
        Settings(given | {"listener.name.inner.max.connections": "5"})
    for value, wanted in (("0", "must be at least 1"), ("x", "must be a whole number")):
        with pytest.raises(InvalidSetting, match=rf"^listener\.name\.inside\.max\.connections={value}: {wanted}$"):
            Settings(given | {"listener.name.inside.max.connections": value})


def test_what_holds_for_all_listeners_is_refused_for_one_and_not_taken_for_none():
    with pytest.raises(InvalidSetting, match=r"settings hold for all listeners; set max\.connections\.per\.ip$"):
        texts("listener.name.inside.max.connections.per.ip=5")


def test_a_plain_start_does_not_load_the_table_of_kafkas_settings():
    """The table is not loaded, because it is large and a start must be quick."""
    program = (
        "import sys; from flakelog.settings import Settings, collect; "
        "Settings(collect(None, ['num.partitions=2'], {'FLAKELOG_NODE_ID': '2'}).texts); "
        "sys.exit('broker.settings.kafka_settings' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_printed_settings_of_a_listener_show_no_password(tmp_path):
    """`--print-config` once showed the logins of single listeners."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="very-secret";'
    lines = ["listeners=INSIDE://127.0.0.1:9092", "listener.security.protocol.map=INSIDE:SASL_PLAINTEXT"]
    lines += ["sasl.enabled.mechanisms=PLAIN", f"listener.name.inside.plain.sasl.jaas.config={login}"]
    (tmp_path / "server.properties").write_text("\n".join(lines))
    done = CliRunner().invoke(main, ["server", "--config", f"{tmp_path}/server.properties", "--print-config"])
    assert done.exit_code == 0 and "listener.name.inside.plain.sasl.jaas.config=(hidden)" in done.output
    assert "very-secret" not in done.output
