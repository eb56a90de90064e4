"""Fixtures: a registry in memory, and two sessions with it."""

import pytest

from coordination.memory import Ensemble, MemoryCoordinator


@pytest.fixture
def ensemble():
    return Ensemble()


@pytest.fixture
def session(ensemble):
    return MemoryCoordinator(ensemble)


@pytest.fixture
def other(ensemble):
    return MemoryCoordinator(ensemble)
