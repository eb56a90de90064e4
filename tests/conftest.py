"""What holds for all tests."""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What helps tests asserts as they do: it tells what differed, and does so under PYTHONOPTIMIZE too.
pytest.register_assert_rewrite(*(f"tests.{each.name}" for each in Path(__file__).parent.iterdir() if each.is_dir()))

SOAK_SECONDS = 7_200

# No stopwatch: what is tried here is right or wrong, and a busy machine is slow at either.
settings.register_profile("flakelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("flakelog")

# Many tests make a lot and leave little: looking for garbage as often as Python does took a tenth of their time.
gc.set_threshold(50_000, 20, 100)


def pytest_collection_modifyitems(items):
    """What is marked soak may take longer than other tests."""
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS))
