"""The largest requests of each API: `CASES` has, by a name, the API and what makes a request of `number` items.

A maker may prepare the broker first, with as many topics, groups or transactions as the request or its answer names.
"""

from typing import Any, NamedTuple

from broker.engine.api_table import APIS
from broker.wire.request_limits import DEFAULT_LIMITS
from tests.broker.any_api import KEYS

CASES = {}
FLAT = {
    "Heartbeat", "SaslHandshake", "SaslAuthenticate", "ApiVersions", "InitProducerId", "AddOffsetsToTxn",
    "DescribeAcls", "DescribeCluster", "UnregisterBroker",
}  # fmt: skip
"""APIs whose requests and answers have no arrays that grow."""
ATOMIC = {
    "produce to partitions v12": 4_000,
    "produce to unknown topics v12": 970,
    "fetch partitions v12": 660,
    "fetch unknown topics v12": 850,
    "begin a fetch session v12": 730,
    "list offsets of partitions v7": 320,
    "list offsets of unknown topics v7": 570,
    "delete records": 290,
    "metadata of unknown topics": 120,
    "metadata that makes topics": 600,  # 4 of them
    "describe topic partitions": 100,
    "describe unknown topic partitions": 100,
    "describe log dirs": 380,
    "describe all log dirs": 360,
    "alter replica log dirs": 200,
    "validate topics": 17540,
    "create topics": 18430,
    "create a topic with many assignments": 120,
    "create partitions": 820,
    "create partitions of unknown topics": 180,
    "create assigned partitions": 120,
    "delete unknown topics v5": 260,
    "delete topics": 730,
    "alter configs": 1460,
    "validate configs": 960,
    "alter configs incrementally": 1490,
    "alter configs of unknown topics": 280,
    "alter many settings of a topic": 120,
    "alter many settings of the broker": 120,
    "delete groups": 2830,
    "delete unknown groups": 400,
    "join with many protocols": 120,
    "leave with many members": 100,
    "commit offsets v2": 1010,
    "commit offsets v9": 1010,
    "commit offsets of unknown topics v9": 140,
    "fetch offsets v2": 130,
    "fetch offsets v9": 140,
    "fetch all offsets v9": 310,
    "delete offsets": 980,
    "add partitions to a transaction": 130,
    "add unknown topics to a transaction": 130,
    "commit offsets in a transaction": 1130,
    "write markers": 2_000,  # 16 at once
    "end a large transaction": 2_000,
    "describe producers of unknown topics": 120,
    "describe unknown transactions": 130,
    "alter client quotas": 480,
    "validate client quotas": 380,
    "describe client quotas": 120,
    "alter credentials": 270,
    "delete unknown credentials": 130,
}
"""By case, the bytecodes that its largest slice takes for each item, because that part of the work is not sliced."""


class Case(NamedTuple):
    """`make(world, number)` prepares a broker and returns the fields of a request; it may have `most` items."""

    api: str
    version: int
    make: Any
    most: int


ITEMS = DEFAULT_LIMITS.items - 2
PARTITIONS = DEFAULT_LIMITS.partitions
SOME = 10_000
"""The number of topics or groups that a broker is prepared with."""


def case(api, *versions, most=ITEMS):
    """Register a maker for an API, in these versions or the newest."""

    def register(make):
        for version in versions or (APIS[KEYS[api]].newest,):
            name = make.__name__.replace("_", " ") + (f" v{version}" if versions else "")
            assert name not in CASES
            CASES[name] = Case(api, version, make, most)
        return make

    return register


def names(number, name="t"):
    return [f"{name}{index}" for index in range(number)]


def topics(world, number):
    """Create topics of one partition, without their logs."""
    world.broker.know(dict.fromkeys(names(number), 1))
    return names(number)


def one_topic(world, number):
    """Create a topic with this number of partitions, without its logs."""
    world.broker.know({"wide": number})
    return "wide"


def logs(world, number):
    """Create a topic with this number of partitions and their logs."""
    world.broker.create("wide", number)
    return "wide"
