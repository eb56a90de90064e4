"""`flakelog check` names damage in a data directory, and its exit code says whether there is any."""

import pytest
from click.testing import CliRunner

from broker.log.storage.os_storage import OsStorage
from flakelog.commands.check import check
from tests.broker.engine_client import EngineBroker


@pytest.fixture
def data(tmp_path):
    """The data directory of a server that has stopped: a topic with three messages."""
    broker = EngineBroker(OsStorage(str(tmp_path)))
    broker.create("flights")
    client = broker.connect()
    for value in b"one", b"two", b"three":
        client.produce("flights", value)
    broker.services.logs.close()
    return tmp_path


def checked(directory):
    done = CliRunner().invoke(check, [str(directory)])
    return done.exit_code, done.output


def test_a_sound_directory_has_no_damages(data):
    code, said = checked(data)
    assert code == 0, said
    assert "1 partition, 1 segment" in said
    assert "0 damages" in said


def test_a_flipped_bit_is_named_with_its_file(data):
    log = next(data.glob("flights-0/*.log"))
    bytes_there = bytearray(log.read_bytes())
    bytes_there[100] ^= 1
    log.write_bytes(bytes_there)
    code, said = checked(data)
    assert code == 1
    assert "flights-0" in said
    assert "1 damage" in said


def test_a_directory_in_use_is_refused_and_its_holder_named(data):
    other = OsStorage(str(data))
    other.lock()
    code, said = checked(data)
    assert code == 1
    assert "another process uses this data directory" in said


def test_a_device_is_no_directory():
    code, said = checked("/dev/null")
    assert code == 1 and "/dev/null cannot be checked: Not a directory" in said


def test_a_check_changes_nothing(data):
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    checked(data)
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert {path for path in before | after if before.get(path) != after.get(path)} <= {data / ".lock"}


def test_a_directory_without_data_is_not_called_sound(tmp_path):
    code, said = checked(tmp_path)
    assert code == 1 and "is empty: there is nothing to check" in said
    (tmp_path / "letter.txt").write_text("no log")
    code, said = checked(tmp_path)
    assert code == 1 and "is no data directory" in said and "damages" not in said
