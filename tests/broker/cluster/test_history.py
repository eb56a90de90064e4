"""Random histories of a cluster (history.py): 90 seeds here, more in `make soak`. A failure names its seed."""

from collections import Counter

import pytest

from tests.broker.cluster.history import History

SEEDS = 90
SOAK_SEEDS = 10_000


def run(seeds):
    counts = Counter()
    for seed in seeds:
        history = History(seed)
        try:
            history.run()
        except AssertionError as error:
            raise AssertionError(f"python -m tests.broker.cluster.history {seed}: {error}") from error
        counts.update(history.counts)
    return counts


def test_histories():
    counts = run(range(SEEDS))
    # The histories do something: topics are made, grown and deleted, ISRs change, and requests meet no controller too.
    answers = ("CreateTopic", "CreatePartitions", "DeleteTopic", "AllocateProducerIds", "AlterPartition")
    for answer in answers:
        assert counts[f"{answer} NONE"] >= 10, counts
    assert counts["CreateTopic NOT_CONTROLLER"] >= 10


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 497))
def test_many_histories(first):
    run(range(first, first + 497))
