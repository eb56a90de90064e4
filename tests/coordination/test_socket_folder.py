"""coordination.socket_folder: sockets that only their owner may open, whatever the length of their path."""

import socket
from contextlib import closing

import pytest

from coordination import socket_folder
from coordination.port import CoordinatorUnavailable
from coordination.socket_folder import SocketFolder, make_folder


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / ("long" * 40)
    make_folder(path)
    with closing(SocketFolder(path)) as opened:
        yield opened


def test_a_socket_is_reached_by_a_path_that_is_longer_than_the_system_allows(folder):
    with folder.listen("broker-1", 1), socket.socket(socket.AF_UNIX) as client:
        client.connect(folder.socket_path("broker-1"))


def test_only_the_owner_may_open_the_folder_and_its_sockets(tmp_path):
    (tmp_path / "sockets").mkdir(0o755)
    make_folder(tmp_path / "sockets")
    with closing(SocketFolder(tmp_path / "sockets")) as folder, folder.listen("broker-1", 1):
        assert (tmp_path / "sockets").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "sockets" / "broker-1").stat().st_mode & 0o777 == 0o600


def test_a_socket_takes_the_place_of_one_whose_process_was_killed(folder):
    folder.listen("broker-1", 1).close()
    with folder.listen("broker-1", 1), socket.socket(socket.AF_UNIX) as client:
        client.connect(folder.socket_path("broker-1"))


def test_a_path_that_the_system_cannot_use_is_refused_by_name(folder, monkeypatch):
    monkeypatch.setattr(socket_folder, "PATH_BYTES_MAX", 10)
    with pytest.raises(CoordinatorUnavailable, match="broker-1 is too long for a socket, which may have 10 bytes"):
        folder.socket_path("broker-1")
