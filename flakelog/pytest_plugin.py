"""Fixtures for pytest: a real broker for a test suite, and a new topic for each test.

pytest loads this plugin by its entry point. Its dependencies are imported when a test requests a fixture.

    @pytest.mark.flakelog_topic(partitions=3, config={"cleanup.policy": "compact"})
    def test_orders_are_counted(flakelog_broker, flakelog_topic):
        flakelog_broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")

With xdist each worker has a separate broker, so that a failure one test requests cannot reach another test. When a
test ends the broker is healed: it runs, and no faults are pending. The report of a failing test has the broker's log.
"""

import re
from collections.abc import Generator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from flakelog.testing import Broker

NAME_CHARACTERS_MAX = 200  # of Kafka's 249; a number is appended
MARKER = "flakelog_topic(partitions=1, config=None): what the topic of the fixture flakelog_topic is like"

_BROKER = pytest.StashKey["Broker"]()
_MARK = pytest.StashKey[int]()
_numbers = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("flakelog_settings", "settings of the tests' broker, NAME=VALUE, one a line", type="linelist")
    parser.addini("flakelog_security", "protocol of the broker's listener", type="string", default="PLAINTEXT")
    parser.addini("flakelog_nodes", "brokers of the tests' cluster; 1 is a broker alone", type="string", default="1")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def flakelog_broker(pytestconfig: pytest.Config) -> "Generator[Broker]":
    """Provide a flakelog.testing.Broker that all tests of this process share."""
    from flakelog.testing import Broker

    settings, nodes = _settings(pytestconfig.getini("flakelog_settings")), _nodes(pytestconfig.getini("flakelog_nodes"))
    security = _security(pytestconfig.getini("flakelog_security"))
    with Broker(settings=settings, nodes=nodes, security=security) as broker:
        pytestconfig.stash[_BROKER] = broker
        yield broker
        del pytestconfig.stash[_BROKER]


@pytest.fixture
def flakelog_topic(request: pytest.FixtureRequest, flakelog_broker: "Broker") -> Generator[str]:
    """Provide the name of a new topic for this test only; it is deleted when the test ends, unless the test did so."""
    stem = re.sub("[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:NAME_CHARACTERS_MAX]
    wanted = _wanted(request.node.get_closest_marker("flakelog_topic"))
    name = flakelog_broker.create_topic(f"{stem}-{next(_numbers)}", **wanted)
    yield name
    from broker.client.errors import BrokerError
    from broker.wire.errors import ErrorCode

    try:
        flakelog_broker.delete_topic(name)
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise


def _settings(lines: list[str]) -> dict[str, str]:
    for line in lines:
        if "=" not in line:
            raise pytest.UsageError(f"flakelog_settings: {line!r} must be NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def _nodes(text: str) -> int:
    from flakelog.testing.arguments import NODES_MAX

    if not (text.isdecimal() and 1 <= int(text) <= NODES_MAX):
        raise pytest.UsageError(f"flakelog_nodes: {text!r} must be a number from 1 to {NODES_MAX}")
    return int(text)


def _security(text: str) -> str:
    from flakelog.testing.security import PROTOCOLS

    if text not in PROTOCOLS:
        raise pytest.UsageError(f"flakelog_security: {text!r} must be one of {', '.join(PROTOCOLS)}")
    return text


def _wanted(marker: pytest.Mark | None) -> Mapping[str, Any]:
    if marker is None:
        return {}
    if marker.args or marker.kwargs.keys() - {"partitions", "config"}:
        raise pytest.UsageError(f"the marker is {MARKER.partition(':')[0]}, by these names")
    return marker.kwargs


# --- around each test ------------------------------------------------------------------------------------------------


def _broker_of(item: pytest.Item) -> "Broker | None":
    """Return the broker if this test uses it and it has started, else None."""
    names = getattr(item, "fixturenames", ())
    return item.config.stash.get(_BROKER, None) if "flakelog_broker" in names else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    broker = _broker_of(item)
    item.stash[_MARK] = broker.mark() if broker is not None else 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Heal the broker first, because the teardown of the test's fixtures needs it."""
    broker = _broker_of(item)
    if broker is not None:
        broker.heal()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    broker = _broker_of(item)
    log = broker.log(item.stash.get(_MARK, 0)) if report.failed and broker is not None else ""
    if log:
        report.sections.append((f"flakelog's log ({report.when})", log))
    return report
