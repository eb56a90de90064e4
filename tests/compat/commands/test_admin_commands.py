"""`flakelog topic`, `group` and `config`, as a user meets them: their output, effects and refusals."""

import json
import os
import subprocess
import sys

import pytest
from confluent_kafka import Consumer

from broker.client.blocking import Client
from flakelog.operations import groups
from tests.compat.server_process import ROOT, ServerProcess
from tests.compat.terminal import Terminal
from tests.patience import SECONDS, until


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def words(text):
    """Return the lines of a table, each as a list of words."""
    return [line.split() for line in text.splitlines()]


def consume(broker, group, topic, messages):
    """Return a consumer that has read and committed `messages` messages and is still a member of the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": "reader",
        }
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(messages, SECONDS)) == messages
    consumer.commit(asynchronous=False)
    return consumer


# --- config ------------------------------------------------------------------------------------------------------


def test_settings_of_a_topic_are_shown_set_and_deleted(flakelog):
    flakelog("topic create cfg-a --config segment.bytes=1048576")
    _, shown, _ = flakelog("config get --topic cfg-a")
    assert ["segment.bytes", "1048576", "topic"] in words(shown)
    assert flakelog("config set --topic cfg-a segment.ms=60000 cleanup.policy=compact")[:2] == (
        0,
        "topic cfg-a: segment.ms=60000\ntopic cfg-a: cleanup.policy=compact\n",
    )
    assert flakelog("config get --topic cfg-a segment.ms --json")[1] == (
        '{"name": "segment.ms", "value": "60000", "from": "topic", "read_only": false}\n'
    )
    assert flakelog("config delete --topic cfg-a segment.ms")[:2] == (0, "topic cfg-a: segment.ms=604800000\n")
    assert len(words(flakelog("config get --topic cfg-a --all")[1])) > 20


def test_settings_of_brokers_are_shown_set_and_deleted(flakelog):
    assert flakelog("config set --broker 1 log.cleaner.delete.retention.ms=5000")[0] == 0
    shown = objects(flakelog("config get --broker 1 log.cleaner.delete.retention.ms --json")[1])
    assert [(each["value"], each["from"]) for each in shown] == [("5000", "broker, altered")]
    assert flakelog("config delete --broker 1 log.cleaner.delete.retention.ms")[0] == 0
    code, out, errors = flakelog("config get --all-brokers")
    assert (code, out) == (0, "") and "defaults" in errors


@pytest.mark.parametrize(
    "command, exit_code, said",
    [
        ("config get", 2, "one of --topic NAME"),
        ("config get --topic a --broker 1", 2, "one of --topic NAME"),
        ("config set --topic nowhere a=1", 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ("config set --broker 1 node.id=2", 1, "node.id"),
        ("config set --broker 1 log.retention.m=2", 1, "did you mean log.retention.ms?"),
        ("config set --topic t nonsense", 2, "give NAME=VALUE"),
        ("config get --broker 1 no.such", 1, "broker 1 has no setting no.such"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(flakelog, command, exit_code, said):
    code, out, errors = flakelog(command)
    assert (code, out) == (exit_code, "") and said in errors


# --- topics ------------------------------------------------------------------------------------------------------


def test_a_topic_is_altered_and_grown(flakelog):
    flakelog("topic create adm-b")
    assert flakelog("topic alter adm-b --set segment.bytes=4096 --set flush.ms=50")[0] == 0
    assert flakelog("topic alter adm-b --unset flush.ms")[0] == 0
    assert flakelog("topic add-partitions adm-b --to 3 --yes")[:2] == (0, "adm-b: 3 partitions\n")
    (described,) = objects(flakelog("topic describe adm-b --json")[1])
    assert (len(described["partitions"]), described["settings"]) == (3, {"segment.bytes": "4096"})
    assert "  segment.bytes=4096\n" in flakelog("topic describe adm-b")[1]
    for answer in (" --yes", ""):
        code, _, errors = flakelog("topic add-partitions adm-b --to 2" + answer)
        assert code == 1 and "has 3 partition(s)" in errors and "[y/N]" not in errors
    assert flakelog("topic alter adm-b")[0] == 2


def test_records_are_deleted_up_to_a_place(flakelog):
    flakelog("topic create adm-c --partitions 2")
    flakelog("produce adm-c --partition 1", b"a\nb\nc\n")
    assert flakelog("topic delete-records adm-c --before 1 --partition 1", b"n\n")[0] == 1
    assert flakelog("topic delete-records adm-c --before 1 --partition 1 --yes --json")[1] == (
        '{"topic": "adm-c", "partition": 1, "begin_before": 0, "begin": 1}\n'
    )
    assert flakelog("consume adm-c")[1] == "b\nc\n"
    assert flakelog("topic delete-records adm-c --before latest --yes")[0] == 0
    assert flakelog("consume adm-c")[1] == ""
    assert flakelog("topic delete-records adm-c --before 1 --partition 7 --yes")[0] == 1


# --- users -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [(), ("--password-file", "-")], ids=["asked", "stdin"])
def test_a_password_is_asked_for_twice_at_a_terminal_and_never_shown(broker, flakelog, option):
    command = [sys.executable, "-m", "flakelog", "user", "set", "terminal-ada", "--servers", broker.address, *option]
    with Terminal(command, {**os.environ, "PYTHONPATH": str(ROOT)}) as terminal:
        terminal.until("password of terminal-ada:")
        terminal.type("ada-secret\n")
        shown = terminal.until("again:")
        terminal.type("ada-secret\n")
        shown += terminal.until("terminal-ada has a new password for SCRAM-SHA-512")
    assert "again:" in shown and "ada-secret" not in shown
    assert words(flakelog("user list terminal-ada")[1])[1:] == [["terminal-ada", "SCRAM-SHA-512", "4096"]]
    assert flakelog("user delete terminal-ada", b"no\n")[0] == 1
    code, out, errors = flakelog("user delete terminal-ada", b"yes\n")
    assert (code, out) == (0, "terminal-ada has no password for SCRAM-SHA-512 any more\n")
    assert errors.startswith("delete the password of terminal-ada for SCRAM-SHA-512?")
    assert flakelog("user list terminal-ada")[1:] == ("", "terminal-ada has no password for SCRAM\n")


@pytest.mark.parametrize("mode, is_named", [(0o644, True), (0o600, False)])
def test_a_password_file_that_others_can_read_is_named(flakelog, tmp_path, mode, is_named):
    file = tmp_path / "password"
    file.write_text("bob-secret\n")
    file.chmod(mode)
    code, _, errors = flakelog(f"user set file-bob --password-file {file}")
    line = f"other users of this machine can read {file}, which has a password: chmod 600 it\n"
    assert (code, errors) == (0, line if is_named else "")


@pytest.mark.parametrize(
    "stdin, said",
    [
        (b"", "the password in - is empty"),
        (b"\n", "the password in - is empty"),
        (b"\xff\xfe", "- is no UTF-8 text"),
        (b"x" * 20_000, "the password in - is longer than 16,384 bytes"),
    ],
    ids=["nothing", "line", "bytes", "long"],
)
def test_a_password_that_cannot_be_is_refused_and_not_quoted(flakelog, stdin, said):
    code, _, errors = flakelog("user set wrong-ada --password-file -", stdin)
    assert code == 2 and said in errors and "xxx" not in errors
    assert "wrong-ada" not in flakelog("user list")[1]


# --- groups ------------------------------------------------------------------------------------------------------


def test_a_group_is_listed_and_described_with_its_lag(flakelog, broker):
    flakelog("topic create grp-a")
    flakelog("produce grp-a", b"a\nb\nc\n")
    consumer = consume(broker, "readers-a", "grp-a", 2)
    try:
        assert ["readers-a", "Stable", "consumer"] in words(flakelog("group list")[1])
        lines = words(flakelog("group describe readers-a")[1])
        assert lines[0] == ["readers-a:", "Stable,", "1", "member,", "lag", "1"]
        assert lines[2][:6] == ["grp-a", "0", "2", "3", "1", "reader"]
        (described,) = objects(flakelog("group describe readers-a --json")[1])
        assert described["members"][0]["partitions"] == [["grp-a", 0]]
        code, _, errors = flakelog("group reset-offsets readers-a --to earliest --execute")
        assert code == 1 and "stop them first" in errors
        assert "[y/N]" not in flakelog("group delete readers-a")[2]
        code, _, errors = flakelog("group delete readers-a --yes")
        assert code == 1 and "readers-a is Stable with 1 member; stop them first" in errors
    finally:
        consumer.close()


def test_a_groups_offsets_are_reset_once_that_was_meant(flakelog, broker):
    flakelog("topic create grp-b --partitions 2")
    flakelog("produce grp-b --partition 0", b"a\nb\nc\n")
    consume(broker, "readers-b", "grp-b", 3).close()
    code, shown, errors = flakelog("group reset-offsets readers-b --to 1 --partition 0")
    assert (code, words(shown)[1]) == (0, ["grp-b", "0", "3", "1"]) and "--execute" in errors
    assert objects(flakelog("group describe readers-b --json")[1])[0]["partitions"][0]["committed"] == 3
    assert flakelog("group reset-offsets readers-b --to earliest --topic grp-b --execute --json")[:2] == (
        0,
        '{"topic": "grp-b", "partition": 0, "before": 3, "after": 0}\n'
        '{"topic": "grp-b", "partition": 1, "before": null, "after": 0}\n',
    )
    found = objects(flakelog("group describe readers-b --json")[1])[0]["partitions"]
    assert [(each["committed"], each["lag"]) for each in found] == [(0, 3), (0, 0)]
    for place in ("latest", "@2013-01-01", "id:1"):
        assert flakelog(f"group reset-offsets readers-b --to {place} --execute")[0] == 0
    assert flakelog("group reset-offsets readers-b --to 9 --execute")[0] == 1


def test_the_head_of_a_group_counts_partitions_that_its_lag_leaves_out(flakelog, broker):
    flakelog("topic create grp-d")
    flakelog("produce grp-d", b"a\nb\n")
    with Client(broker.address) as client:
        groups.commit(client, "readers-d", {("grp-d", 0): 1_000})
    head, *_ = flakelog("group describe readers-d")[1].splitlines()
    assert head == "readers-d: Empty, 0 members, lag 0, committed beyond the end of 1 partition"
    flakelog("group delete readers-d --yes")
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "readers-d", "enable.auto.commit": False})
    consumer.subscribe(["grp-d"])
    try:
        until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "a partition")
        head, *_ = flakelog("group describe readers-d")[1].splitlines()
        assert head == "readers-d: Stable, 1 member, lag 0, nothing committed in 1 partition"
    finally:
        consumer.close()


def test_a_group_can_be_given_offsets_before_it_reads_and_be_deleted(flakelog):
    flakelog("topic create grp-c")
    assert flakelog("group reset-offsets readers-c --to latest")[0] == 1
    assert flakelog("group reset-offsets readers-c --to latest --topic grp-c --execute")[0] == 0
    assert flakelog("group delete readers-c", b"n\n")[0] == 1
    code, _, errors = flakelog("group delete readers-c readers-of-nothing")
    assert code == 1 and "there is no group readers-of-nothing" in errors and "[y/N]" not in errors
    assert flakelog("group delete readers-c --yes")[:2] == (0, "deleted readers-c\n")
    code, _, errors = flakelog("group describe readers-c")
    assert code == 1 and "there is no group readers-c" in errors


def test_a_partition_that_is_offline_is_named_and_hides_no_other(tmp_path):
    """An operator asks most when something is wrong."""
    with ServerProcess(tmp_path / "data") as server:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FLAKELOG_SERVERS": server.address}

        def flakelog(command, stdin=""):
            words = [sys.executable, "-m", "flakelog", *command.split()]
            done = subprocess.run(words, env=environment, input=stdin, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, done.stderr
            return done.stdout, done.stderr

        flakelog("topic create kept --partitions 2")
        id = flakelog("produce kept --partition 0 --show-ids", "x\n")[0].split()[2]
        server.restart_without("kept-1")
        environment["FLAKELOG_SERVERS"] = server.address
        out, errors = flakelog("topic describe kept")
        assert [line.split() for line in out.splitlines()[-2:]] == [["0", "0", "1", "1"], ["1", "-", "-", "-"]]
        assert errors.startswith("left out: kept-1: LEADER_NOT_AVAILABLE")
        (problem,) = map(json.loads, flakelog("partitions list --problems --json")[0].splitlines())
        assert (problem["partition"], problem["leader"]) == (1, None)
        assert problem["error"].startswith("kept-1: LEADER_NOT_AVAILABLE")
        assert "offset:    0" in flakelog(f"id find {id}")[0]
        assert flakelog("transactions find-hanging")[1].startswith("left out: kept-1: LEADER_NOT_AVAILABLE")
