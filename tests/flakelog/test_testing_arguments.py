"""`flakelog.testing.Broker` refuses wrong arguments before it begins a process or makes a directory."""

import pytest

from flakelog.testing import Broker


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"topics": ["orders"]}, "topics=['orders']: give the partitions of each topic, such as {'orders': 3}"),
        ({"topics": {"orders": "3"}}, "topics: partitions of orders='3': give a whole number from 1 to 100000"),
        ({"topics": {"orders": 0}}, "topics: partitions of orders=0: give a whole number from 1 to 100000"),
        ({"topics": {"orders": True}}, "topics: partitions of orders=True: give a whole number from 1 to 100000"),
        ({"topics": {5: 1}}, "topics: 5 is no name of a topic: give text"),
        ({"topics": {"orders": {"parts": 3}}}, "topic orders: no parts; give partitions and config"),
        (
            {"topics": {"orders": {"config": 5}}},
            "topics: config of orders=5: give values by name, such as {'log.retention.ms': 1000}",
        ),
        ({"settings": 5}, "settings=5: give values by name, such as {'log.retention.ms': 1000}"),
        ({"nodes": "3"}, "nodes='3': give a whole number from 1 to 16"),
        ({"nodes": 0}, "nodes=0: give a whole number from 1 to 16"),
        ({"start_seconds": "x"}, "start_seconds='x': give a number above 0, at most 86400"),
        ({"start_seconds": 0}, "start_seconds=0: give a number above 0, at most 86400"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, reason):
    with pytest.raises(ValueError) as refused:
        Broker(**arguments)
    assert str(refused.value) == reason
