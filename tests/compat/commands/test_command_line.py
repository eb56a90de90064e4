"""The commands as a user meets them: output, errors in one line and meaningful exit codes."""

import ast
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

import flakelog as face
from idgen.snowflake import Snowflake
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import QUIET
from tests.patience import SECONDS

NOBODY = "127.0.0.1:1"  # no process listens on this port


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_topic_is_made_described_and_deleted(flakelog):
    assert flakelog("topic create cli-life --partitions 2 --config segment.bytes=1048576") == (
        0,
        "created cli-life: 2 partitions\n",
        "",
    )
    flakelog("produce cli-life --partition 1", b"a\nb\n")
    _, described, _ = flakelog("topic describe cli-life --json")
    assert objects(described)[0]["partitions"] == [
        {"partition": 0, "begin": 0, "end": 0, "offsets": 0},
        {"partition": 1, "begin": 0, "end": 2, "offsets": 2},
    ]
    assert any(line.split() == ["cli-life", "2"] for line in flakelog("topic list")[1].splitlines())
    assert flakelog("topic delete cli-life --yes")[:2] == (0, "deleted cli-life\n")
    assert flakelog("topic describe cli-life")[0] == 1


def test_a_topic_is_not_deleted_unless_that_was_meant(flakelog):
    flakelog("topic create cli-kept")
    assert flakelog("topic delete cli-kept", b"n\n")[0] == 1
    assert flakelog("topic describe cli-kept")[0] == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("ids", ["", "--show-ids"])
def test_what_is_produced_is_consumed_in_order(flakelog, codec, ids):
    topic = f"cli-order-{codec}{ids}"
    lines = b"".join(b"line %d \xc3\xa9\n" % n for n in range(10_000))  # more than a small input, so by librdkafka
    code, _, errors = flakelog(f"produce {topic} --compression {codec} {ids}", lines)
    assert code == 0, errors
    assert flakelog(f"consume {topic}")[1] == lines.decode()


def test_the_ids_shown_when_producing_are_those_that_are_consumed(flakelog):
    """Each offset has one id, and ids rise with the offset."""
    flakelog("topic create cli-ids --partitions 3")
    shown = objects(flakelog("produce cli-ids --key-separator : --show-ids --json", b"a:1\nb:2\nc:3\nd:4\n")[1])
    read = objects(flakelog("consume cli-ids --json")[1])
    assert {(one["partition"], one["offset"], one["id"]) for one in shown} == {
        (one["partition"], one["offset"], one["id"]) for one in read
    }
    assert [one["id"] for one in read] == sorted(one["id"] for one in read)
    assert {one["key"]: one["value"] for one in read} == {"a": "1", "b": "2", "c": "3", "d": "4"}


def test_both_ways_of_producing_put_a_key_into_the_same_partition(flakelog):
    flakelog("topic create cli-keys --partitions 5")
    lines = b"".join(b"key-%d:v\n" % n for n in range(40))
    flakelog("produce cli-keys --key-separator :", lines)
    flakelog("produce cli-keys --key-separator : --show-ids", lines)
    places = {}
    for one in objects(flakelog("consume cli-keys --json")[1]):
        places.setdefault(one["key"], set()).add(one["partition"])
    assert len(places) == 40 and all(len(each) == 1 for each in places.values())


def test_consume_begins_where_it_is_told(flakelog):
    flakelog("produce cli-from", b"".join(b"%d\n" % n for n in range(100)))
    read = objects(flakelog("consume cli-from --json")[1])
    assert flakelog("consume cli-from --from 98")[1] == "98\n99\n"
    assert flakelog("consume cli-from --from latest")[1] == ""
    assert flakelog(f"consume cli-from --from id:{read[97]['id']}")[1] == "97\n98\n99\n"
    assert flakelog(f"consume cli-from --from @{read[0]['timestamp']} --count 1")[1] == "0\n"
    assert flakelog("consume cli-from --from @2100-01-01")[1] == ""


def test_an_offset_that_is_not_there_is_refused_with_those_that_are(flakelog):
    flakelog("produce cli-range", b"a\nb\n")
    assert flakelog("consume cli-range --from 3") == (1, "", "Error: cli-range-0 has offsets 0 to 2, not 3\n")


def test_an_offset_of_several_partitions_is_refused(flakelog):
    flakelog("topic create cli-several --partitions 2")
    code, _, errors = flakelog("consume cli-several --from 3")
    assert code == 2 and "name one by --partition" in errors
    assert flakelog("consume cli-several --from 0 --partition 1")[0] == 0
    assert "has partitions 0 to 1, not 2" in flakelog("consume cli-several --partition 2")[2]


def test_an_id_finds_its_message_in_any_topic_and_partition(flakelog):
    flakelog("topic create cli-find --partitions 3")
    flakelog("produce cli-find --key-separator :", b"".join(b"k%d:%d\n" % (n, n) for n in range(300)))
    wanted = objects(flakelog("consume cli-find --json")[1])[217]
    (found,) = objects(flakelog(f"id find {wanted['id']} --json")[1])
    shown = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    assert {name: found[name] for name in shown} == {name: wanted[name] for name in shown}


def test_ids_of_transactions_are_found_and_one_that_was_never_given_is_not(flakelog, broker):
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "cli-find", **QUIET})
    producer.init_transactions(SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("cli-in-transactions", end.__name__)
        producer.flush(SECONDS)
        end(SECONDS)
    read = objects(flakelog("consume cli-in-transactions --json")[1])
    assert [each["offset"] for each in read] == [0, 2], "and the markers between them are no messages"
    for each in read:
        (found,) = objects(flakelog(f"id find {each['id']} --json")[1])
        assert (found["topic"], found["offset"]) == ("cli-in-transactions", each["offset"])
        never_given = each["id"] | 0xFFF  # the last id of its millisecond
        assert flakelog(f"id find {never_given}")[0] == 1


def test_an_id_no_message_has_is_not_found(flakelog):
    code, out, errors = flakelog("id find 4096")
    assert (code, out) == (1, "") and errors.startswith("Error: no message has id 4096 (2010-11-04T01:42:54.657Z)")


def test_a_time_span_is_found_as_offsets_of_each_partition_by_the_id_index(flakelog):
    flakelog("topic create cli-span --partitions 3")
    for part in range(3):
        flakelog("produce cli-span --key-separator :", b"".join(b"k%d:%d\n" % (n, part) for n in range(100)))
    read = objects(flakelog("consume cli-span --json")[1])
    start, end = (min(each["id_time"] for each in read if each["value"] == str(part)) for part in (1, 2))
    expected = {}
    for each in read:
        if start <= each["id_time"] < end:
            expected.setdefault(each["partition"], set()).add(each["offset"])
    assert len(expected) == 3
    found = objects(flakelog(f"id find --time {start} {end} --topic cli-span --json")[1])
    assert {each["partition"]: set(range(each["first_offset"], each["end_offset"])) for each in found} == expected
    table = flakelog(f"id find --time {start} {end}")[1].splitlines()
    assert table[0].split() == ["TOPIC", "PARTITION", "FIRST", "OFFSET", "END", "OFFSET"] and len(table) >= 4


def test_a_time_span_without_messages_is_told_and_one_that_ends_before_it_starts_is_refused(flakelog):
    code, out, errors = flakelog("id find --time 2011-01-01 2011-01-02")
    assert (code, out) == (1, "") and "no message has an id of 2011-01-01T00:00:00.000Z to 2011-01-02" in errors
    assert "before its start" in flakelog("id find --time 2011-01-02 2011-01-01")[2]
    for neither in ("id find", "id find 7 --time 2011-01-02 2011-01-03"):
        assert "give an ID, or --time FROM TO" in flakelog(neither)[2]
    flakelog("produce cli-ever", b"x\n")
    assert "cli-ever" in flakelog("id find --time 1970-01-01 2200-01-01")[1]


def test_new_ids_rise_and_are_decoded(flakelog, tmp_path):
    asked = [int(line) for line in flakelog("id new --count 20001")[1].splitlines()]
    assert len(asked) == 20_001 and asked == sorted(set(asked))
    made = objects(flakelog(f"id new --count 3 --directory {tmp_path} --json")[1])
    assert [each["sequence"] for each in made] == [0, 1, 2]
    assert objects(flakelog(f"id decode {made[0]['id']} --json")[1]) == made[:1]


def test_a_time_range_is_a_range_of_ids(flakelog):
    assert flakelog("id range 2013-01-01 2013-02-01")[1] == "285898127569846272 297132151403446272\n"
    assert flakelog("id range 2013-02-01 2013-01-01")[0] == 2
    assert flakelog("id range 2070-01-01 2600-01-01")[1].split()[1] == str((1 << 63) - 1)
    for outside in ("2001-01-01 2002-01-01", "2500-01-01 2600-01-01"):
        _, out, errors = flakelog(f"id range {outside}")
        assert len(set(out.split())) == 1 and "the layout has those of 2010-11-04T01:42:54.657Z to 2080-" in errors


@pytest.mark.parametrize(
    "command",
    ["topic list", "topic create x", "topic describe x", "topic delete x --yes", "produce x", "consume x", "id find 7"],
)
def test_without_a_broker_one_line_names_the_address_and_the_command_that_starts_one(flakelog, command):
    code, out, errors = flakelog(f"{command} --servers {NOBODY}", b"line\n")
    assert (code, out) == (3, "")
    assert errors.startswith(f"Error: no broker answers at {NOBODY} (") and errors.count("\n") == 1
    assert errors.endswith("start one with: flakelog server\n")


def test_without_an_id_service_one_line_says_which_commands_start_one(flakelog):
    code, _, errors = flakelog(f"id new --server {NOBODY}")
    assert code == 3 and errors.count("\n") == 1
    assert f"no id service answers at {NOBODY}" in errors and "flakelog idgen" in errors


@pytest.mark.parametrize(
    "command, said",
    [
        ("topic list --servers nonsense", "'nonsense' is no address; give host:port"),
        ("topic create x --set segment.bytes", "'segment.bytes' is no setting; give NAME=VALUE"),
        ("consume x --from yesterday", "'yesterday' is no place to begin"),
        ("id decode 12a", "'12a' is no id"),
        ("id range noon now", "'noon' is no time"),
        ("id decode 1 --set flakelog.ids.epoch=5", "did you mean flakelog.ids.epoch.ms?"),
        ("id new --directory a --zookeeper b:2181", "not from both"),
        ("id new --directory a --server b:7609", "or are made here"),
    ],
)
def test_a_wrong_call_is_refused_with_what_would_be_right(flakelog, command, said):
    code, out, errors = flakelog(command)
    assert (code, out) == (2, "") and said in errors


def test_a_topic_that_is_not_there_is_made_by_produce_and_by_nothing_else(flakelog):
    code, _, errors = flakelog("consume cli-absent")
    assert code == 1 and errors.startswith("Error: topic cli-absent: UNKNOWN_TOPIC_OR_PARTITION; `flakelog topic list`")
    assert "made topic cli-absent: 1 partition" in flakelog("produce cli-absent", b"x")[2]
    assert flakelog("consume cli-absent")[1] == "x\n"


def test_a_setting_no_topic_has_is_refused(flakelog):
    code, _, errors = flakelog("topic create cli-setting --config segment.bytez=4")
    assert code == 1 and "did you mean segment.bytes?" in errors


def test_a_line_without_its_separator_is_refused_by_its_number(flakelog):
    code, _, errors = flakelog("produce cli-lines --key-separator =", b"a=1\nb=2\nc\n")
    assert code == 1 and "line 3 has no '='" in errors
    assert flakelog("consume cli-lines --key-separator =")[1] == "a=1\nb=2\n"


def test_follow_goes_on_until_ctrl_c(broker, flakelog):
    flakelog("produce cli-follow", b"before\n")
    command = [sys.executable, "-m", "flakelog", "consume", "cli-follow", "--follow", "--servers", broker.address]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert following.stdout.readline() == "before\n"
    flakelog("produce cli-follow", b"after\n")
    assert following.stdout.readline() == "after\n"
    following.send_signal(signal.SIGINT)
    assert following.communicate(timeout=SECONDS) == ("", "") and following.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["produce cli-closed", "consume cli-closed", "topic list"])
def test_a_stream_that_the_caller_closed_is_an_empty_one(flakelog, broker, arguments, closed):
    """A daemon may close all three. Files and sockets that the command opens then get their numbers, but no output."""
    flakelog("produce cli-closed", b"x\n")
    line = f"'{sys.executable}' -m flakelog {arguments} {closed}"
    env = {**os.environ, "FLAKELOG_SERVERS": broker.address}
    done = subprocess.run(["bash", "-c", line], env=env, input=b"", capture_output=True, timeout=SECONDS)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is full stands in /dev/full on Linux only")
@pytest.mark.parametrize("arguments", [["settings"], ["--help"], ["compat", "--json"]])
def test_output_to_a_full_disk_fails_in_one_line(arguments):
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "flakelog", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (1, "Error: the output could not be written: No space left on device\n")


HEAVY = "twisted", "kazoo", "pyspark", "kio", "confluent_kafka", "rich", "pyarrow"


def loaded_by(program):
    """Return the heavy modules that a program loads in a separate process."""
    shown = f"import sys\n{program}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, env=os.environ)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "program, allowed",
    [
        ("import flakelog", set()),
        ("from flakelog import Snowflake, IdClient, Layout", set()),
        ("from flakelog import Producer", {"confluent_kafka"}),
        ("from flakelog import Client", {"kio"}),
        ("from flakelog import Topology, LogSpout, Bolt, Spout, BatchBolt, JsonScheme", set()),
        ("from flakelog import run", {"twisted", "kio"}),
        ("from flakelog.cli import main, COMMANDS\n[main.get_command(None, name) for name in COMMANDS]", set()),
    ],
)
def test_a_name_loads_no_more_than_it_needs(program, allowed):
    """flakelog/__init__ is lazy (PEP 562)."""
    assert loaded_by(program) <= allowed


def test_each_name_offered_exists_for_type_checkers_too():
    tree = ast.parse(Path(face.__file__).read_text())
    typed = {
        alias.asname or alias.name
        for block in tree.body
        if isinstance(block, ast.If)
        for statement in block.body
        for alias in statement.names
    }
    assert typed == set(face.__all__) == set(dir(face))
    assert all(getattr(face, name) is not None for name in face.__all__)
    with pytest.raises(AttributeError, match="flakelog has no 'Snowflakes'"):
        face.Snowflakes


def test_worker_numbers_are_listed_with_who_holds_them_and_where_ids_are_unique(flakelog, tmp_path):
    with Snowflake(directory=tmp_path, worker=5):
        code, out, errors = flakelog(f"id workers --directory {tmp_path}")
        (line,) = out.splitlines()[1:]
        assert code == 0 and line.split()[:2] == ["5", "held"] and "in process" in line
        assert errors.strip() == f"ids are unique in directory {tmp_path}, /snowflake-servers"
        (told,) = objects(flakelog(f"id workers --directory {tmp_path} --json")[1])
        assert told["unique_in"] == f"directory {tmp_path}"
        (worker,) = told["workers"]
        assert (worker["number"], worker["state"]) == (5, "held") and 0 < worker["rest_ms"] <= 30_000
    (told,) = objects(flakelog(f"id workers --directory {tmp_path} --json")[1])
    assert told["workers"][0]["state"] == "free"
    assert flakelog("id workers")[0] == 2


def test_a_server_that_listens_everywhere_is_listed_with_where_it_is_reached(flakelog, tmp_path):
    """The registry shows a reachable address, because 0.0.0.0 does not identify the holder of a number."""
    settings = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised.listeners": "PLAINTEXT://broker.example:9094",
        "flakelog.ids.listener": "0.0.0.0:0",
    }
    with ServerProcess(tmp_path / "data", settings) as server:
        (told,) = objects(flakelog(f"id workers --directory {tmp_path / 'data' / 'ids'} --json")[1])
        holders = {each["role"]: each["holder"] for each in told["workers"]}
        port = server.ids.rpartition(":")[2]
    assert holders == {"log": "broker.example:9094", "ids": f"{socket.gethostname()}:{port}"}


def test_a_directory_without_worker_numbers_is_said_to_be_one_and_left_as_it_is(flakelog, tmp_path):
    assert flakelog(f"id workers --directory {tmp_path}")[2] == f"Error: no worker numbers are kept in {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_servers_data_directory_is_not_taken_for_the_one_with_its_worker_numbers(flakelog, tmp_path):
    """A second registry is refused, because two registries side by side would give out the same numbers and ids."""
    with Snowflake(directory=tmp_path / "ids"):
        code, _, errors = flakelog(f"id new --directory {tmp_path}")
        assert code == 1 and f"its worker numbers are in {tmp_path}/ids" in errors
        assert f"{tmp_path}/ids has some" in flakelog(f"id workers --directory {tmp_path}")[2]
    assert [each.name for each in tmp_path.iterdir()] == ["ids"]
