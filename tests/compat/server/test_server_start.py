"""Starts of the server: each failure gives one clear line and an exit code, and damages no data."""

import shutil
import signal
import socket
from pathlib import Path

import pytest

from broker.client.blocking import Client
from broker.client.core import LATEST
from broker.client.errors import BrokerError
from broker.wire.errors import ErrorCode
from coordination.free_port import FreePort
from idgen.layout import Layout
from tests.compat.raw_connection import RawConnection
from tests.compat.served_data import MESSAGES, SEGMENT, TOPIC, assert_serves, checksums, fill, refused
from tests.compat.server_process import DidNotStart, ServerProgram


@pytest.fixture
def data_dir(stopped, tmp_path):
    return Path(shutil.copytree(stopped, tmp_path / "data"))


# --- bad starts ------------------------------------------------------------------------------------------------------


def test_a_second_server_on_a_directory_is_refused_and_the_first_serves_on(data_dir):
    with ServerProgram(data_dir) as first:
        before = checksums(data_dir)
        line = refused(ServerProgram(data_dir))
        assert "another process uses this data directory" in line and str(first.pid) in line
        assert checksums(data_dir) == before
        assert_serves(first.address)


def test_another_id_is_refused_because_the_partitions_are_those_of_the_first(data_dir):
    server = ServerProgram(data_dir, {"node.id": "5"})
    with pytest.raises(DidNotStart, match="has the partitions of broker 1, and node.id is 5: start it with node.id=1"):
        server.start()
    assert "Move them away" not in server.log
    with ServerProgram(data_dir) as again:
        assert_serves(again.address)


@pytest.mark.parametrize(
    "setting, scheme", [("listeners", "PLAINTEXT://"), ("flakelog.ids.listener", ""), ("flakelog.http.listener", "")]
)
def test_a_port_in_use_is_named_and_nothing_is_changed(data_dir, setting, scheme):
    before = checksums(data_dir)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:{}".format(taken.getsockname()[1])
        line = refused(ServerProgram(data_dir, {setting: scheme + address}))
    assert f"cannot listen on {address}" in line and "in use" in line
    assert checksums(data_dir) == before
    with ServerProgram(data_dir) as server:
        assert_serves(server.address)


@pytest.mark.parametrize("name", ["metadata.json", "checkpoint"])
@pytest.mark.parametrize("damage", ["garbled", "truncated", "empty", "a directory"])
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_changed(data_dir, name, damage):
    """An unreadable file is never treated as absent, because an empty log would then replace a damaged one."""
    path = data_dir / name
    data = path.read_bytes()
    path.unlink()
    if damage == "a directory":
        path.mkdir()
    else:
        path.write_bytes({"garbled": b"\x00\xffgarbage" + data[9:], "truncated": data[:-7], "empty": b""}[damage])
    before = checksums(data_dir)
    assert name in refused(ServerProgram(data_dir))
    assert checksums(data_dir) == before


def test_a_registry_that_cannot_be_used_is_named(data_dir):
    shutil.rmtree(data_dir / "ids")
    (data_dir / "ids").write_text("a file where a directory belongs")
    before = checksums(data_dir)
    assert str(data_dir / "ids") in refused(ServerProgram(data_dir))
    assert checksums(data_dir) == before


def test_a_partition_that_cannot_be_read_is_offline_by_name_and_the_others_are_served(data_dir):
    path = data_dir / f"{TOPIC}-1" / SEGMENT
    path.unlink()
    path.mkdir()
    with ServerProgram(data_dir) as server:
        assert f"no file {TOPIC}-1/{SEGMENT}" in server.wait_for_log(f"partition {TOPIC}-1 is offline")
        assert_serves(server.address, TOPIC, 0)
        with Client(server.address) as client, pytest.raises(BrokerError) as caught:
            client.fetch(TOPIC, 1, 0)
        assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE and f"{TOPIC}-1: " in str(caught.value)


def test_a_log_shorter_than_what_was_synced_is_offline_by_name(data_dir):
    """Damage below the checkpoint is never cut away."""
    path = data_dir / f"{TOPIC}-1" / SEGMENT
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    before = checksums(data_dir / f"{TOPIC}-1")
    with ServerProgram(data_dir) as server:
        assert SEGMENT in server.wait_for_log(f"partition {TOPIC}-1 is offline")
        assert_serves(server.address, TOPIC, 0)
        assert server.stop() == 0
    assert checksums(data_dir / f"{TOPIC}-1") == before


@pytest.mark.parametrize("assignment, wanted", [("log.segment.byte=1", "log.segment.bytes"), ("num.partitions=0", "1")])
def test_an_unknown_or_impossible_setting_is_refused_with_what_would_be_right(tmp_path, assignment, wanted):
    name, _, value = assignment.partition("=")
    line = refused(ServerProgram(tmp_path / "data", {name: value}))
    assert name in line and wanted in line
    assert not (tmp_path / "data").exists()


# --- stopping --------------------------------------------------------------------------------------------------------


def garble_first_batch(data_dir):
    """Invert a byte in the first batch of the log, so that the CRC of this batch is wrong."""
    path = data_dir / f"{TOPIC}-0" / SEGMENT
    data = bytearray(path.read_bytes())
    data[65] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_after_a_clean_stop_no_batch_is_read_at_the_next_start(tmp_path, number):
    with ServerProgram(tmp_path / "data") as server:
        fill(server.address)
        assert server.stop(number) == 0
        garble_first_batch(tmp_path / "data")
        mark = server.mark()
        server.start()
        with Client(server.address) as client:
            assert client.find_offset(TOPIC, 0, LATEST) == MESSAGES
        assert server.log_since(mark).splitlines() == [server.log_since(mark).splitlines()[0]]  # `ready:` alone
        assert "Traceback" not in server.log


def test_after_a_kill_every_batch_past_the_checkpoint_is_read(tmp_path):
    """After a kill the server reads every batch past the checkpoint, and so finds the same damage."""
    with ServerProgram(tmp_path / "data") as server:
        fill(server.address)
        server.kill()
        garble_first_batch(tmp_path / "data")
        server.start()
        assert "ends at offset 0" in server.wait_for_log(f"partition {TOPIC}-0 recovered")


# --- other ways to run it --------------------------------------------------------------------------------------------


def test_it_listens_on_ipv6(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with ServerProgram(tmp_path / "data", {"listeners": "PLAINTEXT://[::1]:0"}) as server:
        assert server.address.startswith("[::1]:")
        fill(server.address)
        assert_serves(server.address)
        with RawConnection(server.address) as stranger:
            stranger.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            server.wait_for_log("connection of [::1]:")


def test_over_zookeeper_two_servers_stamp_with_numbers_of_their_own(tmp_path, zookeeper):
    where = f"{zookeeper.hosts}/server-process"
    servers = [ServerProgram(tmp_path / name, zookeeper=where) for name in ("one", "two")]
    with servers[0], servers[1]:
        workers = []
        for server in servers:
            assert f"ids unique in zookeeper {where}" in server.log
            fill(server.address)
            with Client(server.address) as client:
                records, _ = client.fetch(TOPIC, 0, 0)
            workers.append({Layout().unpack(record.id).worker_number for record in records})
        assert len(workers[0]) == len(workers[1]) == 1 and workers[0] != workers[1]
        assert servers[0].stop() == 0


def test_without_its_zookeeper_it_says_so(tmp_path):
    with FreePort() as nobody:
        server = ServerProgram(tmp_path / "data", {"flakelog.start.timeout.ms": 2_000}, zookeeper=nobody.address)
        with pytest.raises(DidNotStart) as caught, server:
            pass
    waiting, failed = caught.value.stderr.splitlines()
    assert f"waiting for ZooKeeper at {nobody.address}, which does not answer" in waiting
    assert f"no ZooKeeper answered at {nobody.address} in 2000 ms" in failed
