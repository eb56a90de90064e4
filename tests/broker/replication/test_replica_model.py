"""Random histories of a leader and two followers (replica_model.py): no committed record is lost (R1, R3, R4, E4, E6).

`python -m tests.broker.replication.test_replica_model SEED` replays one.
"""

import sys

import pytest

from tests.broker.replication.replica_faults import FAULTS
from tests.broker.replication.replica_model import ReplicaModel

SEEDS, SOAK_SEEDS = 150, 5_000
FAULT_SEEDS = 200
STEPS = 400


def play(seed, **planted):
    model = ReplicaModel(seed, **planted).run(STEPS)
    model.heal()
    model.check_equal()
    return model


def test_committed_records_stay_and_all_logs_become_equal():
    models = [play(seed) for seed in range(SEEDS)]
    happened = {name: sum(model.counts[name] for model in models) for name in models[0].counts}
    assert min(happened.values()) > SEEDS // 10, f"the histories lack events: {happened}"


@pytest.mark.soak
def test_committed_records_stay_in_many_histories():
    for seed in range(SEEDS, SOAK_SEEDS):
        play(seed)


@pytest.mark.parametrize("leader", FAULTS)
def test_a_leader_that_breaks_a_rule_is_found(leader):
    with pytest.raises(AssertionError):
        for seed in range(FAULT_SEEDS):
            play(seed, partition=leader)


def test_a_follower_that_forgets_its_high_watermark_at_a_truncation_is_found():
    with pytest.raises(AssertionError):
        for seed in range(FAULT_SEEDS):
            play(seed, restore=False)


if __name__ == "__main__":
    print(play(int(sys.argv[1])).counts)
