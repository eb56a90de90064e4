import pytest

from tests.oracle import trees


@pytest.fixture(scope="session")
def before(tmp_path_factory):
    """The tree of the commit that the request path is held to."""
    try:
        return trees.unpack(trees.BEFORE, tmp_path_factory.mktemp("before"))
    except trees.NoHistory as why:
        pytest.skip(f"there is nothing to compare with: {why}")
