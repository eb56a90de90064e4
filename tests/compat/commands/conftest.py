"""Fixtures of the tests of a release: built and installed once for a run."""

import pytest

from tests.compat.clean_environment import build, clean_environment


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Return the directory of the sdist, and of the wheel built from it."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="session")
def wheel(made):
    (wheel,) = made.glob("flakelog-*.whl")
    return wheel


@pytest.fixture(scope="session")
def plain_python(wheel, tmp_path_factory):
    """Return the interpreter of a clean environment after `pip install flakelog`. Tests do not change it."""
    return clean_environment(tmp_path_factory.mktemp("clean"), wheel)
