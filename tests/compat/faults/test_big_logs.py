"""Logs with more files than the process may open, or more data than is in memory, against a real server."""

import os
import shutil
import sys

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.big_log import forget
from broker.client.blocking import Client
from broker.client.core import EARLIEST
from broker.log.storage.page_cache import is_in_memory
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import CLIENTS, Message
from tests.patience import SECONDS, until

SEGMENTS = 400
OPEN_FILES = 256
MIB = 1 << 20

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def make_topic(server, name, **config):
    admin = AdminClient({"bootstrap.servers": server.address})
    config = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(SECONDS)
    return admin


def need_a_disk_that_forgets(directory):
    """Skip the test if written data stays in memory for ever, as in a tmpfs, or if the system cannot tell."""
    path = directory / "tried"
    path.write_bytes(bytes(MIB))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        forget(directory)
        if is_in_memory(file.fileno(), 0, MIB):
            pytest.skip("files are not forgotten here, so none has to be read from a disk")


def open_files(server):
    return len(os.listdir(f"/proc/{server.pid}/fd"))


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit of util-linux")
def test_more_segments_than_open_files_are_read(tmp_path):
    prefix = "prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}"
    # The file limit has no room for the default fifty partitions of committed offsets, which a consumer looks for at
    # its end.
    settings = {"offsets.topic.num.partitions": 1}
    with ServerProcess(tmp_path / "data", settings, prefix=prefix) as server:
        make_topic(server, "flights", segment_bytes="1024")
        client = CLIENTS["confluent-kafka"]
        messages = [Message(None, b"%d " % number + b"x" * 800) for number in range(SEGMENTS)]
        client.produce(server.address, "flights", messages, **{"batch.num.messages": 1})
        assert len(list((tmp_path / "data" / "flights-0").glob("*.log"))) == SEGMENTS
        for _ in range(2):
            found = client.read(server.address, "flights", SEGMENTS)
            assert [message.value for message in found] == [message.value for message in messages]
            assert open_files(server) < OPEN_FILES
            assert server.stop() == 0
            server.start()
        assert "offline" not in server.log


def test_what_is_not_in_memory_is_read_by_a_thread_and_sent_whole(tmp_path):
    need_a_disk_that_forgets(tmp_path)
    with ServerProcess(tmp_path / "data") as server:
        make_topic(server, "flights", max_message_bytes=str(2 * MIB))
        client = CLIENTS["confluent-kafka"]
        messages = [Message(None, os.urandom(MIB // 2)) for _ in range(40)]
        client.produce(server.address, "flights", messages)
        assert server.stop() == 0
        server.start()
        with Client(server.address) as asked:
            asked.find_offset("flights", 0, EARLIEST)
        forget(tmp_path / "data" / "flights-0")
        before = server.read_by_threads()
        found = client.read(server.address, "flights", len(messages))
        assert [message.value for message in found] == [message.value for message in messages]
        assert server.read_by_threads() > before


def test_a_small_fetch_of_what_is_not_in_memory_is_read_by_a_thread(tmp_path):
    """A consumer that reads old data in small fetches does not make other connections wait for the disk."""
    need_a_disk_that_forgets(tmp_path)
    with ServerProcess(tmp_path / "data") as server:
        make_topic(server, "flights")
        messages = [Message(None, os.urandom(1_000)) for _ in range(5_000)]
        CLIENTS["confluent-kafka"].produce(server.address, "flights", messages, **{"batch.num.messages": 10})
        assert server.stop() == 0
        server.start()
        with Client(server.address) as client:
            client.fetch("flights", 0, len(messages) - 1)
            before = server.read_by_threads()
            forget(tmp_path / "data" / "flights-0")
            found = client.fetch("flights", 0, 0, max_bytes=120_000)
            assert server.read_by_threads() > before
        assert found


def test_a_deleted_topic_leaves_the_disk(tmp_path):
    with ServerProcess(tmp_path / "data") as server:
        admin = make_topic(server, "flights")
        CLIENTS["confluent-kafka"].produce(server.address, "flights", [Message(None, bytes(1000))] * 1000)
        admin.delete_topics(["flights"])["flights"].result(SECONDS)
        until(lambda: not list((tmp_path / "data").glob("flights*")), what="the end of its files")
