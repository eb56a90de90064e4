"""The leader epoch of a batch is outside its CRC: verification compares it with the epochs that the log knows."""

import pytest

from broker.log import leader_epochs
from broker.log.integrity.segment_walk import Damaged, SegmentWalk
from broker.log.segment import Segment
from tests.broker.log.conftest import in_epochs

LOG = f"flights-0/{0:020d}.log"
ALL = 1 << 62


def walked(storage, position, epochs, epoch_max):
    """Walk from a position of a batch to the end of the log, and return the walk."""
    segment = Segment(storage, "flights-0", 0)
    segment_walk = SegmentWalk(segment, segment.size, epochs, epoch_max, 4096, position=position)
    segment_walk.step(ALL, ALL)
    return segment_walk


@pytest.mark.parametrize("start", [0, 2, 3])
@pytest.mark.parametrize("epoch", [1, 2, 4, 5])
def test_a_batch_with_another_epoch_than_the_log_knows_is_damaged(start, epoch):
    """Also the first batch of a walk, and one whose epoch rises before a real rise."""
    storage, positions, epochs = in_epochs(2, 2, 3, 3, 5)
    assert walked(storage, positions[start], epochs, 5).batches == 5 - start
    storage.files[LOG].data[positions[3] + 12 : positions[3] + 16] = epoch.to_bytes(4, "big")
    with pytest.raises(Damaged, match=f"at byte {positions[3]}: leader epoch {epoch}; 3 to 3 are possible"):
        walked(storage, positions[start], epochs, 5)


def test_a_log_that_lost_its_file_of_epochs_is_read():
    storage, positions, _ = in_epochs(1, 2, 2, 4)
    assert walked(storage, 0, leader_epochs.UNWRITTEN, 4).batches == 4
    assert walked(storage, positions[1], [(0, 0), (5, 4)], 5).batches == 3
