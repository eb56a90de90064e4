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
    "metadata of a topic with many partitions": 96,
    "metadata that makes topics": 600,
    "describe topic partitions": 140,
    "describe unknown topic partitions": 140,
    "describe log dirs": 450,
    "describe all log dirs": 420,
    "alter replica log dirs": 240,
    "alter client quotas": 400,
    "validate client quotas": 440,
    "describe client quotas": 120,
    "alter credentials": 220,
    "delete unknown credentials": 160,
    "delete groups": 140,
    "delete unknown groups": 180,
    "leave with many members": 120,
    "commit offsets v2": 1_130,
    "commit offsets v9": 1_130,
    "commit offsets of unknown topics v9": 200,
    "fetch offsets v2": 200,
    "fetch offsets v9": 210,
    "fetch all offsets v9": 370,
    "delete offsets": 1_050,
    "add partitions to a transaction": 170,
    "add unknown topics to a transaction": 170,
    "commit offsets in a transaction": 1_180,
    "write markers": 2_000,
    "end a large transaction": 2_000,
    "describe producers of unknown topics": 120,
    "produce to partitions v12": 280,
    "produce with the time of the append v12": 280,
    "produce compressed records v12": 560,
    "produce to unknown topics v12": 680,
    "fetch partitions v12": 740,
    "fetch unknown topics v12": 950,
    "begin a fetch session v12": 820,
    "list offsets of partitions v7": 370,
    "list offsets of unknown topics v7": 640,
    "validate topics": 400,
    "create topics": 1_040,
    "create a topic with many assignments": 130,
    "create partitions": 760,
    "create partitions of unknown topics": 220,
    "create assigned partitions": 110,
    "delete unknown topics v5": 330,
    "delete topics": 280,
    "alter configs": 830,
    "validate configs": 700,
    "alter configs incrementally": 850,
    "alter configs of unknown topics": 330,
    "alter many settings of the broker": 100,
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


def logs(world, number, **properties):
    """Create a topic with this number of partitions and their logs."""
    world.broker.create("wide", number, **properties)
    return "wide"
