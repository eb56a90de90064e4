"""Where a follower's log leaves its leader's, by the leader's epochs (KIP-595), and the file of the epochs."""

import pytest

from broker.log.leader_epochs import decode, divergence, encode

EPOCHS = [(3, 10), (5, 20), (9, 40)]
START, END = 10, 50


@pytest.mark.parametrize("last_epoch, offset", [(3, 10), (3, 20), (5, 25), (5, 40), (9, 40), (9, 50)])
def test_a_log_that_ends_inside_its_last_epoch_goes_on(last_epoch, offset):
    assert divergence(EPOCHS, last_epoch, offset, START, END) is None


@pytest.mark.parametrize(
    "last_epoch, offset, leaves_at", [(3, 21, (3, 20)), (4, 15, (3, 20)), (8, 25, (5, 40)), (9, 51, (9, 50))]
)
def test_a_log_with_more_of_an_epoch_leaves_where_the_leaders_ends(last_epoch, offset, leaves_at):
    assert divergence(EPOCHS, last_epoch, offset, START, END) == leaves_at


def test_a_log_that_a_power_cut_has_shortened_before_its_last_epoch_drops_that_epoch():
    """It knows that epoch 9 was begun, and lacks the end of epoch 5 before: it would refuse those batches for ever."""
    assert divergence(EPOCHS, 9, 30, START, END) == (5, 40)
    assert divergence(EPOCHS[2:], 9, 30, START, END) == (8, 40)


@pytest.mark.parametrize("offset", [10, 15, 30])
def test_a_log_whose_last_epoch_the_leader_has_deleted_leaves_at_the_leaders_start(offset):
    """Where that epoch ended is not known, so the follower may have batches that the leader never had."""
    assert divergence(EPOCHS, 2, offset, START, END) == (2, START)


def test_an_epoch_to_come_is_not_known():
    assert divergence(EPOCHS, 10, 30, START, END) == (-1, -1)
    assert divergence([], 1, 30, START, END) == (-1, -1)


def test_an_empty_log_at_offset_0_goes_on_whatever_epoch_it_names():
    """New partitions have epoch 0 in their files. A truncation of each would cost a start much."""
    assert divergence([(4, 0)], 0, 0, 0, 20) is None


@pytest.mark.parametrize(
    "line", ["-5 0", "2147483648 0", "0 9223372036854775808", "1_0 0", "0", "0 0 0", "x 0", "\N{SUPERSCRIPT TWO} 0", ""]
)
def test_a_line_that_is_no_epoch_with_its_start_damages_the_file(line):
    with pytest.raises(ValueError, match="is no epoch with its start offset"):
        decode(f"0\n1\n{line}\n".encode())


@pytest.mark.parametrize("lines", ["3 10\n3 20", "3 10\n2 20", "3 10\n4 10", "3 10\n4 9"])
def test_epochs_that_do_not_rise_damage_the_file(lines):
    with pytest.raises(ValueError, match="does not follow"):
        decode(f"0\n2\n{lines}\n".encode())


def test_a_file_gives_the_epochs_that_it_was_written_with():
    assert decode(encode(EPOCHS)) == EPOCHS and decode(encode([])) == []
