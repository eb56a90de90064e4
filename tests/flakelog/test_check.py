"""`flakelog check` names damage in a data directory, and its exit code says whether there is any."""

import pytest
from click.testing import CliRunner

from broker.log.storage.os_storage import OsStorage
from broker.metadata.image import RegisteredBroker
from flakelog.commands.check import check
from tests.broker.engine_client import EngineBroker


@pytest.fixture
def data(tmp_path):
    """The data directory of a server that has stopped: a topic with three messages."""
    written_by(1, tmp_path)
    return tmp_path


def written_by(broker_id, directory, is_alone=True):
    """Write three messages of a topic, and stop, as the broker `broker_id`, alone or in a cluster."""
    directory.mkdir(parents=True, exist_ok=True)
    broker = EngineBroker(OsStorage(str(directory)), own=RegisteredBroker(broker_id, {"": ("localhost", 9092)}))
    broker.create("flights")
    client = broker.connect()
    for value in b"one", b"two", b"three":
        client.produce("flights", value)
    if not is_alone:
        broker.services.local.join("cluster", "zookeeper zk1:2181")
    broker.services.logs.close()


def flip_a_bit(log):
    bytes_there = bytearray(log.read_bytes())
    bytes_there[100] ^= 1
    log.write_bytes(bytes_there)


def checked(directory, *options, answer=None):
    done = CliRunner().invoke(check, [str(directory), *options], input=answer)
    return done.exit_code, done.output


def test_a_sound_directory_has_no_damages(data):
    code, output = checked(data)
    assert code == 0, output
    assert "1 partition, 1 segment" in output
    assert "0 damages" in output


def test_a_flipped_bit_is_named_with_its_file(data):
    flip_a_bit(next(data.glob("flights-0/*.log")))
    code, output = checked(data)
    assert code == 1
    assert "flights-0" in output
    assert "1 damage" in output


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_logs_of_a_broker_with_another_id_are_checked_and_not_called_strays(tmp_path, is_alone):
    written_by(2, tmp_path, is_alone=is_alone)
    code, output = checked(tmp_path)
    assert code == 0 and "1 partition, 1 segment" in output and "no topic" not in output
    flip_a_bit(next(tmp_path.glob("flights-0/*.log")))
    code, output = checked(tmp_path)
    assert code == 1 and "1 damage" in output


def test_the_directories_of_all_processes_are_checked_with_that_of_the_first(data):
    written_by(2, data / "nodes" / "2", is_alone=False)
    code, output = checked(data)
    assert code == 0 and "2 partitions, 2 segments" in output
    flip_a_bit(next(data.glob("nodes/2/flights-0/*.log")))
    code, output = checked(data)
    assert code == 1 and f"{data / 'nodes' / '2'}: flights-0" in output and "1 damage" in output


def test_a_directory_in_use_is_refused_and_its_holder_named(data):
    other = OsStorage(str(data))
    other.lock()
    code, output = checked(data)
    assert code == 1
    assert "another process uses this data directory" in output


def test_a_device_is_no_directory():
    code, output = checked("/dev/null")
    assert code == 1 and "/dev/null cannot be checked: Not a directory" in output


def test_a_check_changes_nothing(data):
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    checked(data)
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert {path for path in before | after if before.get(path) != after.get(path)} <= {data / ".lock"}


def test_a_directory_without_data_is_not_called_sound(tmp_path):
    code, output = checked(tmp_path)
    assert code == 1 and "is empty: there is nothing to check" in output
    (tmp_path / "letter.txt").write_text("no log")
    code, output = checked(tmp_path)
    assert code == 1 and "is no data directory" in output and "damages" not in output


@pytest.mark.parametrize("text", [None, b"nonsense"], ids=["missing", "damaged"])
def test_a_lost_checkpoint_is_named_with_the_ways_out_and_begun_anew_once_it_is_confirmed(data, text):
    """Without it, a start cuts a log at its first damage, also where the damage is older than the last sync."""
    file = data / "checkpoint"
    file.unlink()
    if text is not None:
        file.write_bytes(text)
    flip_a_bit(next(data.glob("flights-0/*.log")))
    code, output = checked(data)
    assert code == 1 and f"{file}" in output and "Put it back from a copy" in output and "--new-checkpoint" in output
    code, output = checked(data, "--new-checkpoint", answer="n\n")
    assert code == 1 and "a start would say: partition flights-0" in output and " cut" in output
    assert "What the next start would cut is lost then" in output and file.exists() == (text is not None)
    code, output = checked(data, "--new-checkpoint", "--yes")
    assert code == 0 and f"began a new checkpoint in {data}" in output
    code, output = checked(data)
    assert code == 0 and "0 damages" in output


def test_a_sound_checkpoint_is_not_begun_anew(data):
    before = (data / "checkpoint").read_bytes()
    code, output = checked(data, "--new-checkpoint", "--yes")
    assert code == 1 and "has a sound checkpoint" in output
    assert (data / "checkpoint").read_bytes() == before


def test_a_new_checkpoint_makes_the_next_start_one_after_a_crash(data):
    """Else readers of the records that it cuts could not find out (KIP-101)."""
    assert (data / ".stopped-cleanly").exists()
    (data / "checkpoint").unlink()
    assert checked(data, "--new-checkpoint", "--yes")[0] == 0
    assert not (data / ".stopped-cleanly").exists()
