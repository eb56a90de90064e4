"""Fixtures of the compat tests: real servers, started once per run or per module, and names and topics for a test."""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.apache import SHORT_LIVED, await_answer, start_kafka
from benchmarks.native import Unavailable
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from flakelog.cli import REPORT, main
from tests.compat import numbers_topic, served_data, stock_java
from tests.compat.cluster_servers import one_or_three
from tests.compat.server_process import ServerProcess

ServerProcess.forked = True

# The longest files, which start first, in the order of their seconds. A file runs in one worker process, so a long one
# that starts last would keep one worker busy after the others have finished.
LONGEST = (
    "test_readme", "test_errors_as_kafka", "test_spark", "test_demo", "test_wheel", "test_old_records",
    "test_connector_options", "test_console_browser", "test_transactions", "test_no_silence",
    "test_golden_frames", "test_front_door", "test_replicated_faults", "test_full_disk", "test_cluster_faults",
    "test_stock_clients", "test_storm_cluster", "test_several_processes_adoption", "test_several_processes",
    "test_server_start", "test_many_id_connections", "test_benchmarks", "test_ids_of_a_cluster", "test_kill_9",
    "test_bench_commands", "test_client_security", "test_load_tables", "test_java_clients", "test_big_logs",
    "test_cluster_servers", "test_pytest_plugin", "test_quotas", "test_ids_under_faults", "test_own_tokens",
    "test_console_search", "test_tls_ports", "test_sasl_listeners", "test_mirror", "test_spark_stream",
)  # fmt: skip

# Files that share what takes long to start or to build. Each group runs in one worker process, which makes it once.
SHARED = {
    "Apache Kafka": {
        "test_errors_as_kafka", "test_fetch_connections", "test_load_topic", "test_produce_as_kafka",
        "test_python_kafka", "test_range_reader", "test_transactional_producer",
    },
    "a JVM with Spark": {"test_spark", "test_connector_options", "test_connector_streams", "test_ids_of_a_cluster"},
    "a release": {"test_wheel", "test_front_door"},
}  # fmt: skip
PAGE = re.compile(r"::test_a_page_shows_what_happens\[(.+)-line-\d+")


# The Spark of every test, and of every program that a test starts, reads its defaults here.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).with_name("java") / "spark_conf")

SHORT_SESSIONS = {"group.min.session.timeout.ms": "1000", "group.initial.rebalance.delay.ms": "0"}


def pytest_collection_modifyitems(items):
    order = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def worker_scope(nodeid):
    """Return the name of the tests that run in the same worker process as this one, in their order.

    They are those of its file, with two exceptions: a group of SHARED is one scope, and each page of `test_readme` is.
    """
    file = nodeid.partition("::")[0]
    if page := PAGE.search(nodeid):
        return f"{file}[{page[1]}]"
    return next((name for name, files in SHARED.items() if Path(file).stem in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile`, distribute the tests by their `worker_scope`."""
    from xdist.scheduler import LoadFileScheduling

    class LoadScopes(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return worker_scope(nodeid)

    return LoadScopes(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """Run a real ZooKeeper server. Each test uses a separate chroot: f"{zookeeper.hosts}/name"."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """Run an Apache Kafka node and yield its address. Each test uses separate topics."""
    directory = tmp_path_factory.mktemp("kafka")
    try:
        _, process = start_kafka(directory, jvm_options=SHORT_LIVED)
    except Unavailable as why:
        pytest.skip(str(why))
    try:
        address = (directory / "address").read_text()
        await_answer(address, process)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def java():
    """Run Kafka's Java clients and tools in a process, for the tests of one file.

    A client that a test leaves behind goes on looking for its server, and says so on the stderr of later tools.
    """
    if reason := stock_java.missing():
        pytest.skip(reason)
    with stock_java.StockJava() as java:
        yield java


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """Run a `flakelog server`. Each test uses separate topics and leaves the server running."""
    with one_or_three(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(scope="session")
def group_broker(tmp_path_factory):
    """Run a `flakelog server` on which sessions of group members may be short, so that a killed one is found soon."""
    with one_or_three(tmp_path_factory.mktemp("group-broker"), SHORT_SESSIONS) as server:
        yield server


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return a data directory after a server's clean stop; tests work on copies."""
    directory = tmp_path_factory.mktemp("stopped") / "data"
    with ServerProcess(directory) as server:
        served_data.fill(server.address)
        assert server.stop() == 0
    return directory


@pytest.fixture
def name(request):
    """Return a name for the topics, groups and transactions of the test, made from the test's name."""
    return re.sub("[^a-z0-9]", "-", request.node.name)[:80]


@pytest.fixture
def topic(group_broker, name):
    """Fill a topic with the numbers 0 to 9, and return its name. Files whose tests need other topics override it."""
    return numbers_topic.fill(group_broker.address, name)


@pytest.fixture
def flakelog(broker):
    """Return a function that runs a command in this process against the real server: (exit code, stdout, stderr)."""
    env = {"FLAKELOG_SERVERS": broker.address, "FLAKELOG_IDS": broker.ids}

    def run(command, stdin=b"", **more):
        result = CliRunner().invoke(main, command.split(), input=stdin, env=env | more)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert REPORT not in result.stderr, result.stderr
        return result.exit_code, result.stdout, result.stderr

    return run
