"""The oracle finds planted faults, and finds no difference between a tree and itself.

The faults are planted in the tree of the commit, whose text does not change.
"""

import pytest

from tests.oracle import interleaved, neighbours, trees
from tests.oracle.kinds import KINDS

FRAMES = 500
SEEDS = range(8)

FAULTS = {
    "the log's first offset in an answer is one too high": (
        "bytes",
        "broker/produce/turn.py",
        "encode_reply(staged.correlation_id, base_offset, append_ms, start_offset)",
        "encode_reply(staged.correlation_id, base_offset, append_ms, start_offset + 1)",
    ),
    "a batch is taken though its CRC is wrong": (
        "bytes",
        "broker/log/validation/batch.py",
        "and crc32c(batch[CRC_START:]) == crc",
        "and crc32c(batch[CRC_START:]) != -1",
    ),
    "a topic that does not exist gets another error": (
        "bytes",
        "broker/services/kafka_messages.py",
        "ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, not_hosted(",
        "ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, not_hosted(",
    ),
    "a batch is synced with its log, not with the journal": (
        "bytes",
        "broker/log/log_appender.py",
        "log.journal.add(log, placed[0][1], written, runs)",
        "log.ask_sync(log, True)",
    ),
    "a request is executed while a Produce before it is not done": (
        "several",
        "broker/engine/engine.py",
        "if (others or self._produce_commit.is_due) and self._turn.requests:",
        "if self._produce_commit.is_due and self._turn.requests:",
    ),
    "batches that are written together are answered with one offset": (
        "neighbours",
        "broker/log/log_appender.py",
        "return [(base, base + header.last_offset_delta) for",
        "return [(placed[0][1], base + header.last_offset_delta) for",
    ),
    "a batch is answered before it is on the disk": (
        "neighbours",
        "broker/produce/turn.py",
        "on_disk = durable_end <= last_offset and",
        "on_disk = durable_end < 0 and",
    ),
}


def planted(directory, path, was, becomes):
    """The tree of the commit with one thing changed."""
    tree = trees.unpack(trees.BEFORE, directory)
    file = tree / path
    file.write_text(file.read_text().replace(was, becomes))
    return tree


def differences(before, now, kind, directory):
    """Return {seed: difference} of the scripts whose reports differ."""
    make, difference = KINDS[kind]
    scripts = [make(seed, FRAMES) for seed in SEEDS]
    reports = trees.play((before, now), scripts, directory)
    by_seed = {
        seed: difference(script, was, seen) for seed, script, (was, seen) in zip(SEEDS, scripts, reports, strict=True)
    }
    return {seed: text for seed, text in by_seed.items() if text is not None}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_can_be_planted_in_one_place_of_the_tree(before, fault):
    _, path, was, _ = FAULTS[fault]
    assert (before / path).read_text().count(was) == 1


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_is_the_same_as_itself(before, kind, tmp_path):
    assert differences(before, before, kind, tmp_path) == {}


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(before, fault, tmp_path):
    kind, *change = FAULTS[fault]
    tree = planted(tmp_path / "planted", *change)
    assert differences(before, tree, kind, tmp_path), f"no difference in {len(SEEDS)} scripts"


@pytest.mark.soak
def test_an_answer_that_comes_before_the_disk_is_lost_in_a_power_cut(before, tmp_path):
    """The rule for one tree finds it too, so it would be found if both trees did it."""
    _, *change = FAULTS["a batch is answered before it is on the disk"]
    tree = planted(tmp_path / "planted", *change)
    scripts = [interleaved.script(seed, FRAMES) for seed in SEEDS]
    reports = [report for (report,) in trees.play((tree,), scripts, tmp_path)]
    with pytest.raises(neighbours.Unlike, match="gone after a power cut"):
        for script, report in zip(scripts, reports, strict=True):
            neighbours.hold_alone(script, report)


def test_the_order_of_connections_in_a_turn_is_free(before, tmp_path):
    """The tree before executes requests as they come: with them in another order it still holds what it must."""
    scripts = [interleaved.script(seed, FRAMES) for seed in SEEDS[:3]]
    turned = [interleaved.round_robin(script) for script in scripts]
    reports = [report for (report,) in trees.play((before,), [*scripts, *turned], tmp_path)]
    for script, was, seen in zip(scripts, reports[: len(scripts)], reports[len(scripts) :], strict=True):
        neighbours.hold(script, was, seen)
