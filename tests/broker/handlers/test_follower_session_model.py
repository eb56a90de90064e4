"""Random histories of sessions of followers (follower_session_model.py): they answer and tell what full fetches do.

`python -m tests.broker.handlers.test_follower_session_model SEED` replays one.
"""

import sys

import pytest

from tests.broker.handlers.follower_session_model import FollowerSessionModel

SEEDS, SOAK_SEEDS = 25, 1_000
STEPS = 150


def play(seed):
    return FollowerSessionModel(seed).run(STEPS)


def test_a_session_answers_and_tells_what_full_fetches_do():
    counts = sum((play(seed).counts for seed in range(1, SEEDS)), play(0).counts)
    assert min(counts.values()) >= 1, counts


@pytest.mark.soak
def test_a_session_answers_and_tells_what_full_fetches_do_in_many_histories():
    for seed in range(SEEDS, SOAK_SEEDS):
        play(seed)


if __name__ == "__main__":
    print(play(int(sys.argv[1])).counts)
