"""One table of all options: taken, ignored with a warning, or refused with a reason, for each use."""

import pytest

from broker.client.offset_spec import Latest
from spark_bridge.selection.option_table import BY_NAME, TABLE, OptionError, Use, Verdict, sort_out
from spark_bridge.selection.options import parse
from spark_bridge.selection.selector import TimeBound
from spark_bridge.selection.stream_options import parse_stream
from spark_bridge.selection.write_options import parse_write

READ = {"kafka.bootstrap.servers": "host:9092", "subscribe": "t"}


def test_names_differ_and_each_option_says_what_it_means():
    assert len(BY_NAME) == len(TABLE)
    assert [option.name for option in TABLE if not option.meaning] == []


def test_what_is_not_taken_has_a_reason():
    unexplained = [
        option.name
        for option in TABLE
        if not option.reason and any(option.verdict(use) is not Verdict.TAKEN for use in Use)
    ]
    assert unexplained == []


def test_names_are_of_any_case():
    """Spark folds the case of names; the answer has them as the table writes them."""
    assert sort_out({"STARTINGID": "5"}, Use.READ).options == {"startingId": "5"}


def test_a_setting_of_kafkas_that_means_nothing_is_ignored_with_one_warning():
    warnings = parse(READ | {"kafka.max.poll.records": "9", "kafka.fetch.max.byte": "1", "groupIdPrefix": "x"}).warnings
    assert warnings == (
        "option groupIdPrefix is ignored: reads join no consumer group and commit no offsets",
        "option kafka.fetch.max.byte is ignored: Flakelog's client has no such setting; is kafka.fetch.max.bytes "
        "meant?",
        "option kafka.max.poll.records is ignored: a task reads whole fetches",
    )


def test_limits_of_triggers_are_for_streams():
    """The connector ignores them in a batch read, with a warning."""
    limits = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2"}
    assert len(parse(READ | limits).warnings) == 2
    stream = parse_stream(READ | limits)
    assert (stream.limits.max_offsets, stream.limits.min_offsets, stream.read.warnings) == (5, 2, ())
    with pytest.raises(OptionError, match="minOffsetsPerTrigger is 6, more than maxOffsetsPerTrigger, which is 5"):
        parse(READ | limits | {"minOffsetsPerTrigger": "6"})


@pytest.mark.parametrize(
    "name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "endingId", "manifest"]
)
def test_a_stream_has_no_end(name):
    """The connector refuses an end of a streaming query."""
    with pytest.raises(OptionError, match=f"{name} is refused for a streaming read: a stream has no end"):
        parse_stream(READ | {name: "1"})


def test_a_stream_starts_at_latest_or_where_it_is_told():
    assert parse_stream(READ).start == Latest()
    assert parse_stream(READ | {"startingTimestamp": "5"}).start == TimeBound(5)


def test_a_write_takes_no_selection():
    assert parse_write({"kafka.bootstrap.servers": "host:9092", "topic": "t"}).topic == "t"
    assert parse_write(READ).warnings == ("option subscribe is ignored: it selects or splits what is read",)


@pytest.mark.parametrize("use", [parse, parse_stream, parse_write])
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"kafka.sasl.mechanisms": "PLAIN"}, "option kafka.sasl.mechanisms is refused .*: is librdkafka's; give"),
        ({"kafka.ssl.passwort": "marked"}, "option kafka.ssl.passwort is refused .*: is no setting of a client's"),
        ({"kafka.security.protocol": "TLS"}, "option kafka.security.protocol=TLS: must be one of PLAINTEXT, SSL"),
        ({"kafka.ssl.truststore.location": "marked"}, "option kafka.ssl.truststore.location=.hidden.: is not used by"),
    ],
)
def test_security_that_cannot_work_is_refused_by_name(use, more, reason):
    with pytest.raises(OptionError, match=reason) as error:
        use(READ | {"topic": "t"} | more if use is parse_write else READ | more)
    assert "marked" not in str(error.value)


def test_tasks_get_the_properties_with_their_references_and_nothing_shows_them():
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "${file:/etc/spark/secrets.properties:jaas}",
        "sasl.username": "marked",
    }
    options = {f"kafka.{name}": text for name, text in login.items()}
    read, write = parse(READ | options), parse_write(READ | {"topic": "t"} | options)
    assert dict(read.settings.security) == dict(read.driver_settings.security) == dict(write.security) == login
    assert "marked" not in f"{read} {write}"


def test_plaintext_is_no_security():
    assert parse(READ | {"kafka.security.protocol": "plaintext"}).warnings == ()
