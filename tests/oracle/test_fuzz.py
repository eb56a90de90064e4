"""Damaged requests cause no fault, no leak and no change of a log (tests.oracle.fuzzing).

    FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/oracle/test_fuzz.py -k one_seed
    FLAKELOG_FUZZ_FRAMES=1000000 .venv/bin/python -m pytest tests/oracle/test_fuzz.py -m soak
"""

import gc
import os

import pytest

from tests.oracle.fuzzing import FRAMES_OF_A_ROUND, play

SEED = int(os.environ.get("FLAKELOG_SEED", "0"))
SOAK_FRAMES = int(os.environ.get("FLAKELOG_FUZZ_FRAMES", "10000000"))
FEW = 800
ROUNDS_MIN = 60  # caches have their full size after half of them
GROWTH = 1.01


def test_damaged_frames_of_one_seed_do_no_harm():
    counts = play(SEED, FEW)
    assert counts["frames"] == FEW and counts["answered"] > FEW / 10 and counts["closed"] > FEW / 20


@pytest.mark.soak
def test_millions_of_damaged_frames_do_no_harm_and_leave_nothing_in_memory():
    sizes = []
    for number in range(max(SOAK_FRAMES // FRAMES_OF_A_ROUND, ROUNDS_MIN)):
        play(SEED + number)
        gc.collect()
        sizes.append((len(gc.get_objects()), len(os.listdir("/proc/self/fd"))))
    objects, descriptors = sizes[len(sizes) // 2]
    assert sizes[-1][0] < objects * GROWTH and sizes[-1][1] <= descriptors
