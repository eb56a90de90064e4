"""What the compat tests share: real servers, started once for a run."""

import pytest
from click.testing import CliRunner

from benchmarks.apache import await_answer, start_kafka
from benchmarks.native import Unavailable
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from flakelog.cli import main
from tests.compat.server_process import ServerProcess

# A file stays in one process: where several share the work, these begin first, or one of them would run on alone.
LONGEST = (
    "test_readme", "test_spark", "test_kill_9", "test_benchmarks", "test_stock_clients", "test_server_process",
    "test_kafka_tools", "test_demo", "test_old_records", "test_java_clients", "test_golden_frames", "test_transactions",
    "test_wheel", "test_ids_under_faults", "test_big_logs", "test_spout_runner", "test_errors_as_kafka",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    order = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """A real ZooKeeper server; tests use a chroot of their own: f"{zookeeper.hosts}/name"."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """The address of an Apache Kafka."""
    directory = tmp_path_factory.mktemp("kafka")
    try:
        _, process = start_kafka(directory)
    except Unavailable as why:
        pytest.skip(str(why))
    try:
        address = (directory / "address").read_text()
        await_answer(address, process)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A running `flakelog server`; tests use topics of their own and leave it running."""
    with ServerProcess(tmp_path_factory.mktemp("broker") / "data") as server:
        yield server


@pytest.fixture
def flakelog(broker):
    """Run a command in this process, against the real server: (exit code, stdout, stderr)."""
    env = {"FLAKELOG_SERVERS": broker.address, "FLAKELOG_IDS": broker.ids}

    def run(command, stdin=b"", **more):
        result = CliRunner().invoke(main, command.split(), input=stdin, env=env | more)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run
