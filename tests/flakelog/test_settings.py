"""Settings: a properties file with Kafka's names, --set over it, validated once (DESIGN section 13)."""

import pytest

from flakelog.settings import Settings, UnknownSetting, collect, names, read_properties
from idgen.config import InvalidSetting


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("# as Kafka ships it\nnum.partitions=4\n\n! old style\nlog.segment.bytes = 1048576\n")
    return path


def test_a_properties_file_is_read_as_kafkas_is(file):
    assert collect(file, []) == {"num.partitions": "4", "log.segment.bytes": "1048576"}


def test_a_backslash_joins_lines():
    """java.util.Properties.load: a line terminator behind a backslash is no terminator."""
    text = "listeners=PLAINTEXT://\\\n127.0.0.1:9092\n"
    assert read_properties(text, "x") == {"listeners": "PLAINTEXT://127.0.0.1:9092"}


def test_set_goes_over_the_file(file):
    assert collect(file, ["num.partitions=8"])["num.partitions"] == "8"


def test_a_value_may_hold_the_equals_sign():
    assert read_properties("advertised.listeners=a=b", "x") == {"advertised.listeners": "a=b"}


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownSetting, match=r"^num\.partition: there is .* did you mean num\.partitions"):
        collect(None, ["num.partition=4"])


def test_a_setting_like_no_other_is_refused_without_a_guess():
    with pytest.raises(UnknownSetting, match=r"^xyzzy: there is no such setting$"):
        collect(None, ["xyzzy=4"])


def test_a_line_that_is_no_setting_is_refused_by_its_number(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=4\nlisteners\n")
    with pytest.raises(InvalidSetting, match=r"server\.properties, line 2=listeners: must be name=value"):
        collect(path, [])


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("num.partitions", "0", "must be between 1 and 100000"),
        ("num.partitions", "four", "must be a whole number"),
        ("auto.create.topics.enable", "yes", "must be true or false"),
        ("listeners", "127.0.0.1:9092", "must be PLAINTEXT://host:port"),
        ("listeners", "SSL://127.0.0.1:9092", "SSL is not served; PLAINTEXT://host:port is"),
        ("listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", "one listener is served"),
        ("listeners", "PLAINTEXT://127.0.0.1:99999", "must be host:port"),
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
    assert settings.server.broker_address == ("::1", 0)


def test_an_empty_listener_turns_its_part_off():
    assert Settings({"listeners": ""}).server.broker_address is None
    assert Settings({"flakelog.http.listener": ""}).server.http_address is None


def test_the_names_kafka_users_know_are_known():
    """https://kafka.apache.org/documentation/#brokerconfigs"""
    assert {"listeners", "num.partitions", "log.segment.bytes", "message.max.bytes", "node.id"} <= set(names())


@pytest.mark.parametrize("everywhere", ["PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://[::]:9092"])
def test_who_listens_everywhere_must_say_how_clients_reach_it(everywhere):
    """As Kafka: Metadata would send every client to its own machine."""
    with pytest.raises(InvalidSetting, match=r"^advertised\.listeners=PLAINTEXT.*give the name they know this host by"):
        Settings({"listeners": everywhere})
    with pytest.raises(InvalidSetting, match=r"^advertised\.listeners="):
        Settings({"listeners": "PLAINTEXT://127.0.0.1:9092", "advertised.listeners": everywhere})
    named = Settings({"listeners": everywhere, "advertised.listeners": "PLAINTEXT://broker:9092"})
    assert named.server.advertised_address == ("broker", 9092)
