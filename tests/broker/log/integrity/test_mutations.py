"""Whatever file is damaged between a stop and a start, no client sees other data than before."""

import os

import pytest

from tests.broker.log.integrity import mutations

SEEDS_OF_TEST, SEEDS_OF_SOAK = range(20), range(20, 320)
FIRST = os.environ.get("FLAKELOG_SEED")


@pytest.mark.parametrize("seed", SEEDS_OF_TEST if FIRST is None else [int(FIRST)])
def test_a_damaged_file_is_found(seed):
    """Run one seed again with FLAKELOG_SEED=123."""
    mutations.damage_and_read(seed)


@pytest.mark.soak
def test_300_damaged_files_are_found():
    for seed in SEEDS_OF_SOAK:
        mutations.damage_and_read(seed)
