"""Configuration of all tests: assertion rewriting, the Hypothesis profile, garbage collection and soak timeouts."""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Rewrite the asserts of helper modules too, so that their failures show the difference, even under PYTHONOPTIMIZE.
_FOLDERS = (folder for folder in Path(__file__).parent.iterdir() if folder.is_dir())
pytest.register_assert_rewrite(*(f"tests.{folder.name}" for folder in _FOLDERS))

SOAK_SECONDS = 7_200

# No deadline, because these tests check results and not speed, and a busy machine makes any example slow.
settings.register_profile("flakelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("flakelog")

# Collect garbage less often, because many tests allocate a lot and leave little garbage. Collecting as often as Python
# does by default took a tenth of their time.
gc.set_threshold(50_000, 20, 100)


def pytest_collection_modifyitems(items):
    """Give tests marked soak a longer time limit than other tests."""
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS))
