"""A request that repeats the one before calls nothing more where its rights are checked."""

import pytest

from benchmarks.calls import fetch, produce


@pytest.mark.parametrize("message", [produce, fetch])
def test_a_repeated_request_makes_as_many_calls_with_an_authorizer_as_without(message):
    assert message(has_authorizer=True).codes == message().codes
