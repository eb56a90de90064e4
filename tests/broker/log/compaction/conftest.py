"""A fixture: a compacted log and its cleaner."""

import pytest

from tests.broker.log.compaction.cleaner_world import CleanerWorld


@pytest.fixture
def world():
    return CleanerWorld()
