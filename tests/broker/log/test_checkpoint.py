"""The checkpoint file: the broker reads all of it or refuses it."""

import pytest
from crc32c import crc32c

from broker.log import leader_epochs
from broker.log.checkpoint import CheckpointDamaged, LogPosition, decode, encode

POSITION = LogPosition(2**62, 5, 2**63 - 1, 7, 1 << 40, 200, 1_700_000_000_000, 9, 3, 80, 24)


def signed(body):
    return body + f"{crc32c(body):08x}\n".encode()


def test_positions_come_back_as_they_were():
    positions = {"flights-0": POSITION, 'a "strange" name-1': POSITION}
    assert decode(encode(positions)) == positions
    assert decode(encode({})) == {}


def test_a_checkpoint_damaged_at_any_byte_is_refused():
    data = encode({"flights-0": POSITION})
    for at in range(len(data)):
        for broken in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            with pytest.raises(CheckpointDamaged, match="checkpoint"):
                decode(broken)


@pytest.mark.parametrize(
    "body",
    [b"", b"\n", b"[]\n", b"nonsense\n", b'{"version": 1, "logs": 1}\n{"log": "a-0"}\n', b"\xff\n", b"{}\n"],
)
def test_a_file_with_a_good_crc_that_is_no_checkpoint_is_refused(body):
    with pytest.raises(CheckpointDamaged):
        decode(signed(body))


def test_another_version_is_named():
    with pytest.raises(CheckpointDamaged, match="version 2 .* reads 1"):
        decode(signed(b'{"version": 2, "logs": 0}\n'))


def test_a_number_of_logs_that_does_not_hold_is_refused():
    with pytest.raises(CheckpointDamaged, match="with 3 logs"):
        decode(signed(b'{"version": 1, "logs": 3}\n'))


# --- leader epochs -----------------------------------------------------------------------------------------------


def test_leader_epochs_are_written_as_kafka_writes_them_with_a_crc():
    """The format is that of Kafka's CheckpointFile: version, number of entries, one entry a line."""
    assert leader_epochs.encode([(0, 0), (4, 1250)]) == b"1\n2\n0 0\n4 1250\n88ee8c95\n"
    assert leader_epochs.decode(b"1\n2\n0 0\n4 1250\n88ee8c95\n") == [(0, 0), (4, 1250)]
    assert leader_epochs.decode(b"0\n2\n0 0\n4 1250\n") == [(0, 0), (4, 1250)]


@pytest.mark.parametrize(
    "data", [b"", b"0\n", b"1\n0\n", b"0\n1\n", b"0\n1\n0\n", b"0\n1\nx 0\n", b"\xff", b"0\n1\n0 0\n1 1\n"]
)
def test_anything_else_is_refused(data):
    with pytest.raises(ValueError):
        leader_epochs.decode(data)


def test_an_epoch_begins_once_and_takes_the_place_of_those_that_began_nowhere_before_it():
    """A new epoch replaces the epochs that would begin at its offset or later (KIP-101)."""
    assert leader_epochs.start([], 0, 0) == [(0, 0)]
    assert leader_epochs.start([(0, 0)], 0, 50) == [(0, 0)]
    assert leader_epochs.start([(0, 0)], 3, 50) == [(0, 0), (3, 50)]
    assert leader_epochs.start([(0, 0), (3, 50)], 4, 50) == [(0, 0), (4, 50)]
