"""The suites of franz-go and librdkafka pass against three brokers whose topics have three copies.

`make suites` builds them. A test that fails here and passes against Apache Kafka shows a fault of ours.
"""

import os
import re
import subprocess
from contextlib import ExitStack

import pytest

from tests.compat.clients import stock_go
from tests.compat.faults.replicated_brokers import ReplicatedServers
from tests.compat.server_process import ROOT
from tests.patience import PROGRAM_SECONDS

pytestmark = pytest.mark.soak

FRANZ_GO = stock_go.HERE / "target" / "kgo.test"
RECORDS = 100_000
"""The records of each long test of franz-go. Its default is 500,000."""
NEED_SOURCE = "TestOptValuesCoversEveryOption"
"""A test of franz-go that reads its source in the current directory, and asks no broker."""
LIBRDKAFKA = ROOT / "build" / "librdkafka" / "librdkafka-2.0.2"
OPTIONS = "-p1 -L -Q -E -K"
"""One test at a time: short tests with a broker, on an unimpaired network, without known faults."""
NOT_FOR_US = {
    "0052": "runs kafka-topics.sh",
    "0077": "runs kafka-topics.sh",
    "0081": "creates topics within 0 ms, which Kafka 4.3 does not do either",
    "0092": "sets message.format.version, which Kafka 4.3 does not know either",
    "0109": "runs kafka-acls.sh",
    "0115": "runs kafka-acls.sh",
}
"""Tests of librdkafka that do not run here, and why."""
SCENARIOS = {"default": "true", "noautocreate": "false"}
"""librdkafka's names for values of auto.create.topics.enable: each of its tests is for one of them."""


@pytest.fixture(scope="module")
def scenario(request):
    return getattr(request, "param", "default")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper, scenario):
    with ExitStack() as stack:
        directory, chroot = tmp_path_factory.mktemp("suites"), f"{zookeeper.hosts}/suites-{scenario}"
        settings = {
            "auto.create.topics.enable": SCENARIOS[scenario],
            "num.partitions": "4",
            "zookeeper.session.timeout.ms": "30000",
        }
        yield ReplicatedServers(directory, chroot, stack, settings=settings)


def run(argv, directory, env):
    """Run a suite, and return what it printed."""
    done = subprocess.run(
        argv,
        cwd=directory,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=4 * PROGRAM_SECONDS,
        check=False,
    )
    return done.stdout


def has_no_fault(cluster):
    return "a fault of" not in cluster.log and "Traceback" not in cluster.log


@pytest.mark.timeout(5 * PROGRAM_SECONDS)
def test_franz_go_passes_its_own_tests(cluster, tmp_path):
    if not FRANZ_GO.exists():
        pytest.skip("franz-go's tests are not there: `make suites` builds them where Go is installed")
    env = {"KGO_SEEDS": cluster.bootstrap, "KGO_TEST_RF": "3", "KGO_TEST_RECORDS": str(RECORDS)}
    options = "-test.v", f"-test.timeout={3 * PROGRAM_SECONDS}s", f"-test.skip={NEED_SOURCE}"
    printed = run([FRANZ_GO, *options], tmp_path, env)
    outcomes = {name: outcome for outcome, name in re.findall(r"^--- (\w+): (\w+) ", printed, re.MULTILINE)}
    failed = [name for name, outcome in outcomes.items() if outcome == "FAIL"]
    assert not failed and outcomes["TestGroupETL"] == outcomes["TestTxnEtl"] == "PASS", (failed, printed[-20_000:])
    assert has_no_fault(cluster)


@pytest.mark.timeout(5 * PROGRAM_SECONDS)
@pytest.mark.parametrize("scenario", SCENARIOS, indirect=True)
def test_librdkafka_passes_its_own_tests(cluster, tmp_path, scenario):
    runner = LIBRDKAFKA / "tests" / "test-runner"
    if not runner.exists():
        pytest.skip("librdkafka's tests are not there: `make suites` builds them on Debian")
    settings = tmp_path / "test.conf"
    settings.write_text(
        f"metadata.broker.list={cluster.bootstrap}\ntest.timeout.multiplier=4\ntest.topic.random=true\n"
    )
    env = {
        "RDKAFKA_TEST_CONF": str(settings),
        "LD_LIBRARY_PATH": f"{LIBRDKAFKA}/src:{LIBRDKAFKA}/src-cpp",
        "TEST_KAFKA_VERSION": "3.9.1",
        "TESTS_SKIP": ",".join(NOT_FOR_US),
    }
    printed = run([runner, *OPTIONS.split(), "-s", scenario], runner.parent, env)
    outcomes = dict(re.findall(r"Test (\w+) (PASSED|FAILED)", printed))
    failed = [name for name, outcome in outcomes.items() if outcome == "FAILED"]
    assert outcomes and not failed, (failed, printed[-20_000:])
    assert has_no_fault(cluster)
