"""kcat, as Debian ships it, with librdkafka 2.0.2 of 2023, an old client with particular pitfalls (KAFKA-18659)."""

import json
import shutil
import subprocess
from itertools import count

import pytest

from tests.compat.cluster_servers import one_or_three
from tests.patience import SECONDS

_numbers = count()

if not shutil.which("kcat"):
    pytest.skip("kcat is not there: Debian's package of that name", allow_module_level=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("kcat"), {"group.initial.rebalance.delay.ms": 0}) as server:
        yield server


@pytest.fixture
def kcat(server):
    """Return kcat("-L"), which returns stdout; kcat must succeed."""

    def ran(*arguments, stdin=""):
        argv = ["kcat", "-b", server.address, *map(str, arguments)]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done
        return done.stdout

    return ran


@pytest.fixture
def topic():
    return f"kcat-{next(_numbers)}"


def read(kcat, topic, *arguments):
    """Return all messages from the beginning to the end, as dicts."""
    return [json.loads(line) for line in kcat("-C", "-t", topic, "-e", "-q", "-J", *arguments).splitlines()]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_it_produces_it_consumes(kcat, topic, codec):
    lines = "".join(f"key-{n}:{'value ' * 20}{n}\n" for n in range(100))
    kcat("-P", "-t", topic, "-p", 0, "-K", ":", "-z", codec, "-H", "source=kcat", stdin=lines)
    messages = read(kcat, topic)
    assert [(m["offset"], m["key"], m["payload"]) for m in messages] == [
        (n, f"key-{n}", f"{'value ' * 20}{n}") for n in range(100)
    ]
    assert all(message["headers"] == ["source", "kcat"] for message in messages)


def test_an_idempotent_producer(kcat, topic):
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", stdin="one\ntwo\n")
    assert [message["payload"] for message in read(kcat, topic)] == ["one", "two"]


def test_the_metadata_names_the_node_and_the_topics(kcat, server, topic):
    kcat("-P", "-t", topic, stdin="one\n")
    metadata = json.loads(kcat("-L", "-J", "-t", topic))
    (node,) = metadata["brokers"]
    assert node["name"] == server.address and metadata["controllerid"] == node["id"]
    (described,) = metadata["topics"]
    assert described["topic"] == topic
    (partition,) = described["partitions"]
    assert partition["leader"] == node["id"] and partition["isrs"] == [{"id": node["id"]}]


def test_offsets_are_found_by_time(kcat, topic):
    kcat("-P", "-t", topic, stdin="one\n")
    (first,) = read(kcat, topic)
    assert kcat("-Q", "-t", f"{topic}:0:{first['ts']}") == f"{topic} [0] offset 0\n"
    assert kcat("-Q", "-t", f"{topic}:0:{first['ts'] + 1}") == f"{topic} [0] offset -1\n"
    assert kcat("-Q", "-t", f"{topic}:0:-1") == f"{topic} [0] offset 1\n"
    assert read(kcat, topic, "-o", f"s@{first['ts']}") == [first]


def test_a_group_goes_on_where_it_has_committed(kcat, topic):
    kcat("-P", "-t", topic, stdin="one\ntwo\n")
    group = ("-G", f"group-{topic}", "-X", "auto.offset.reset=earliest", "-q", "-c")
    assert kcat(*group, 2, topic) == "one\ntwo\n"
    kcat("-P", "-t", topic, stdin="three\n")
    assert kcat(*group, 1, topic) == "three\n"


def test_a_transaction_is_read_once_it_is_committed(kcat, topic):
    """kcat commits its transaction when its input ends, and a read_committed consumer then reads the messages."""
    kcat("-P", "-t", topic, "-X", f"transactional.id=id-{topic}", stdin="one\ntwo\n")
    messages = read(kcat, topic, "-X", "isolation.level=read_committed")
    assert [message["payload"] for message in messages] == ["one", "two"]
