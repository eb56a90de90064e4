"""The house rules no linter knows. Each test is one rule; the message says what would be right."""

import ast
import re
import shutil
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.consumer_config import ConsumerConfig
from broker.client.group_config import GroupMemberConfig
from broker.client.security.settings import ClientSecurityConfig
from broker.engine.api_table import APIS, INTER_BROKER
from broker.settings.config import BrokerConfig, TopicConfig
from broker.settings.group_config import GroupConfig
from broker.settings.transaction_config import TransactionConfig
from flakelog.config import ServerConfig
from idgen.config import IdgenConfig
from idgen.settings import settings_of
from partition_manager.config import SpoutConfig
from spout.config import TopologyConfig
from spout.multilang.config import StormConfig

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "flakelog", "coordination", "idgen", "broker", "partition_manager", "spout", "spark_bridge", "pyspark_flakelog",
)  # fmt: skip
LINK_MODE = "120000"  # of a symbolic link in Git's index
FUNCTION_LINES_MAX = 70
CLASS_LINES_MAX = 400
FILE_LINES_MAX = 500

# Tables may have more lines than other files; each is named here with its rows.
TABLES = {
    "broker/settings/config.py": "one row for each setting of the broker and of a topic",
    "broker/settings/kafka_settings.py": "one row for each setting of Kafka that is ignored or refused",
}

# Classes that may have more lines, because no part of them has a state that the rest does not use. At most ten.
LONG_CLASSES = {
    ("partition_manager/manager.py", "PartitionManager"): "figures and parking read the sets that every method keeps",
}
LONG_CLASSES_MAX = 10

# Modules that touch the world. Everything else is a core: bytes, numbers and time come as arguments.
SHELLS = {
    "coordination/asyncio.py",
    "coordination/deferred.py",
    "coordination/directory.py",
    "coordination/embedded_zookeeper.py",
    "coordination/free_port.py",
    "coordination/java.py",
    "coordination/packed_nodes.py",
    "coordination/sessions.py",
    "coordination/socket_folder.py",
    "coordination/stored_nodes.py",
    "coordination/transaction_numbers.py",
    "coordination/wake_ups.py",
    "coordination/zookeeper.py",
    "idgen/clock.py",
    "idgen/fork.py",
    "idgen/http.py",
    "idgen/http_port.py",
    "idgen/peers.py",
    "idgen/server.py",
    "idgen/client/asyncio.py",
    "idgen/client/blocking.py",
    "idgen/client/twisted.py",
    "idgen/snowflake.py",
    "broker/net/close_log.py",
    "broker/net/coordination.py",
    "broker/net/key_fetcher.py",
    "broker/net/peer_connection.py",
    "broker/net/peer_security.py",
    "broker/net/peers.py",
    "broker/net/server.py",
    "broker/net/tls.py",
    "broker/net/ports.py",
    "broker/net/tls_handshake.py",
    "broker/net/tls_listeners.py",
    "broker/net/tls_socket.py",
    "broker/net/tls_stream.py",
    "broker/net/tls_transport.py",
    "broker/net/transport.py",
    "broker/net/reactor.py",
    "broker/net/worker_thread.py",
    "broker/security/tls_context.py",
    "broker/log/storage/lock_holder.py",
    "broker/log/storage/open_files.py",
    "broker/log/storage/os_storage.py",
    "broker/log/storage/page_cache.py",
    "broker/client/async_consumer.py",
    "broker/client/async_fetches.py",
    "broker/client/async_outcomes.py",
    "broker/client/async_producer.py",
    "broker/client/asyncio.py",
    "broker/client/blocking.py",
    "broker/client/connector/async_connector.py",
    "broker/client/connector/connector_engine.py",
    "broker/client/connector/connector_thread.py",
    "broker/client/connector/consumer_connector.py",
    "broker/client/connector/stream_feed.py",
    "broker/client/connector/twisted_connector.py",
    "broker/client/consumer.py",
    "broker/client/consumer_engine.py",
    "broker/client/consumer_offsets.py",
    "broker/client/group_thread.py",
    "broker/client/mirror/checkpoints.py",
    "broker/client/mirror/control.py",
    "broker/client/mirror/group_offsets.py",
    "broker/client/mirror/mirror.py",
    "broker/client/mirror/outlet.py",
    "broker/client/mirror/owned_partitions.py",
    "broker/client/mirror/paused_ends.py",
    "broker/client/mirror/target_topics.py",
    "broker/client/mirror/transactional_copy.py",
    "broker/client/mirror/waits.py",
    "broker/client/registry/relay_tls.py",
    "broker/client/security/client_security.py",
    "broker/client/security/contexts.py",
    "broker/client/security/librdkafka_settings.py",
    "broker/client/security/token_endpoint.py",
    "broker/client/security/twisted_session.py",
    "broker/client/security/twisted_tls.py",
    "broker/client/socket_connection.py",
    "broker/client/timed_wait.py",
    "broker/client/twisted.py",
    "broker/client/producer.py",
    "broker/client/producer_outcomes.py",
    "broker/client/producer_partitions.py",
    "broker/client/producer_hook.py",
    "broker/client/producer_queue.py",
    "broker/client/registry/bootstrap.py",
    "broker/client/fetch_connections.py",
    "partition_manager/dead_letter_sink.py",
    "partition_manager/fetcher.py",
    "spout/background.py",
    "spout/once.py",
    "spout/figures/bolts_reader.py",
    "spout/figures/publisher.py",
    "spout/figures/topology_reader.py",
    "spout/reactor_thread.py",
    "spout/run.py",
    "spout/runner.py",
    "spout/process_end.py",
    "spout/record_producer.py",
    "spout/refused_record.py",
    "spout/transactor.py",
    "spout/multilang/__main__.py",
    "spout/multilang/named_letters.py",
    "spout/multilang/output.py",
    "spout/multilang/shell.py",
    "spout/multilang/starting.py",
    "spout/multilang/world.py",
    "spout/stderr_log.py",
    "spout/topology_source.py",
    "spout/world.py",
    "spout/group_store.py",
    "spark_bridge/reading/kept_clients.py",
    "spark_bridge/reading/range_reader.py",
    "spark_bridge/source/datasource.py",
    "spark_bridge/source/read_task.py",
    "spark_bridge/source/stream_reader.py",
    "spark_bridge/source/topic_producer.py",
    "spark_bridge/source/writer.py",
    "pyspark_flakelog/__init__.py",
    "spark_bridge/output/progress.py",
    "spark_bridge/output/replay_topic.py",
    "spark_bridge/output/storage.py",
    "spark_bridge/arrow_reader.py",
    "spark_bridge/load/destination.py",
    "spark_bridge/load/job.py",
    "spark_bridge/load/topic_sink.py",
    "spark_bridge/reading/side_by_side.py",
    "spark_bridge/reading/range_reads.py",
    "spark_bridge/replay/arrow_job.py",
    "spark_bridge/replay/job.py",
    "spark_bridge/replay/planning.py",
    "spark_bridge/replay/publication.py",
    "spark_bridge/session.py",
    "flakelog/console/own_client.py",
    "flakelog/console/shell.py",
    "flakelog/console/streams.py",
}
WORLD = {
    "twisted", "kazoo", "pyspark", "klein", "confluent_kafka", "os", "socket", "select", "time", "threading", "queue",
    "random", "secrets", "subprocess", "asyncio", "signal", "tempfile", "shutil", "pathlib", "fcntl", "logging",
}  # fmt: skip
# Every file of flakelog/ composes, so it may touch the world; its one rule is to be lazy (tests/flakelog). The console
# is a room of cores with its own shells.
COMPOSITION = ("flakelog/",)
CONSOLE = "flakelog/console/"


CONFIGS = (
    ServerConfig, BrokerConfig, TopicConfig, GroupConfig, TransactionConfig, IdgenConfig, SpoutConfig, TopologyConfig,
    GroupMemberConfig, ConsumerConfig, ConnectorConfig, StormConfig, ClientSecurityConfig,
)  # fmt: skip
SETTINGS = [(config, setting) for config in CONFIGS for setting in settings_of(config)]
# Kafka's and Storm's names that are longer than a field's name should be.
SHORTER_FIELDS = {
    "flakelog.max.inflight.requests.per.connection": "max_inflight_requests",
    "flakelog.max.queued.bytes.per.connection": "max_queued_bytes",
    "topology.sleep.spout.wait.strategy.time.ms": "topology_spout_wait_ms",
    "topology.max.task.parallelism": "topology_max_tasks",
}


def sources(*tops):
    paths = (p for top in tops for p in (ROOT / top).rglob("*.py"))
    return sorted(p for p in paths if "node_modules" not in p.parts)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def is_core(path):
    name = name_of(path)
    return name not in SHELLS and (name.startswith(CONSOLE) or not name.startswith(COMPOSITION))


@cache
def tree_of(path):
    """Parse a file once for all rules, because parsing takes most of their time."""
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes_of(path):
    return tuple(ast.walk(tree_of(path)))


def lines_of(node):
    return node.end_lineno - node.lineno + 1


def imports_of(path, modules):
    """Return the given modules that a file imports, each with a line of such an import.

    Imports for type checkers, imports in functions and `import_module` count like all others. `from package import
    name` imports the module of that name, or else the package's `__init__`. An import of `package.module` does not
    count as one of `package.__init__`, although Python runs that first: otherwise each re-export would make a circle.
    """
    imports = {}
    nodes = nodes_of(path)
    is_dynamic = any(isinstance(node, ast.Call) and called_by(node) == "import_module" for node in nodes)
    for node in nodes:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: name the package, as all other imports do"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        elif is_dynamic and isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Tables of modules, and names such as f"broker.handlers.{module}", of which the beginning is known.
            names = [name for name in modules if name == node.value or node.value == name[: name.rfind(".") + 1]]
        imports.update((name, node.lineno) for name in names if name in modules)
    return imports


def import_graph(root, paths):
    """Return the imports of each module among the others: {module: {imported module: line}}."""
    modules = {}
    for path in paths:
        parts = path.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {module: imports_of(path, modules) for module, path in modules.items()}


def circles_in(graph):
    """Return the strongly connected components that have more than one module, or one that imports itself."""

    def reached_from(module):
        reached, waiting = set(), [module]
        while waiting:
            new = graph[waiting.pop()].keys() - reached
            reached |= new
            waiting += new
        return reached

    reached = {module: reached_from(module) for module in graph}
    circles = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return sorted(sorted(circle) for circle in circles if circle)


ALL = sources(*PACKAGES)
CORES = [p for p in ALL if is_core(p)]
TESTS = sources("tests")
EVERYTHING = sources(*PACKAGES, "benchmarks", "docs", "examples", "tests")


def expect_none(breaches):
    """Fail with a line for each breach of a rule, so that one run shows them all."""
    breaches = list(breaches)
    assert not breaches, "\n".join(breaches)


def test_a_function_fits_on_a_screen():
    expect_none(
        f"{name_of(path)}:{node.lineno} {node.name} has {lines_of(node)} lines; split it by what it does"
        for path in ALL
        for node in nodes_of(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and lines_of(node) > FUNCTION_LINES_MAX
    )


def test_a_class_has_one_job():
    """A class of settings is a table, so it may have any length."""
    tables = {config.__name__ for config in CONFIGS}
    expect_none(
        f"{name_of(path)}:{node.lineno} {node.name} has {lines_of(node)} lines; at most {CLASS_LINES_MAX} are right: "
        f"move one of its jobs into another class, or name it in LONG_CLASSES with the reason"
        for path in EVERYTHING
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and node.name not in tables and lines_of(node) > CLASS_LINES_MAX
        if (name_of(path), node.name) not in LONG_CLASSES
    )


@pytest.mark.parametrize("path, name", LONG_CLASSES)
def test_each_long_class_is_still_long(path, name):
    (node,) = (node for node in tree_of(ROOT / path).body if isinstance(node, ast.ClassDef) and node.name == name)
    assert lines_of(node) > CLASS_LINES_MAX, f"take {name} off LONG_CLASSES"
    assert len(LONG_CLASSES) <= LONG_CLASSES_MAX


def test_a_file_has_one_subject():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in EVERYTHING}
    expect_none(
        f"{name} has {length} lines; at most {FILE_LINES_MAX} are right: split it by its subjects, "
        f"or name it in TABLES of tests/test_tidy.py if it is a table"
        for name, length in lengths.items()
        if length > FILE_LINES_MAX and name not in TABLES
    )


@pytest.mark.parametrize("name", TABLES)
def test_each_exception_is_needed(name):
    assert (ROOT / name).exists(), f"{name} is gone: take it off TABLES"
    length = len((ROOT / name).read_text().splitlines())
    assert length > FILE_LINES_MAX, f"{name} has {length} lines, which every file may have: take it off TABLES"


def touches_of(path):
    """Yield (line, what the file does there to touch the world, what would be right)."""
    for node in nodes_of(path):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print"):
            yield node.lineno, f"calls {node.func.id}()", "take a port"
        for name in names:
            if name.split(".")[0] in WORLD:
                yield node.lineno, f"imports {name}", "hand it in"


def test_a_core_does_not_touch_the_world():
    """Rule 1 of CONTRIBUTING.md: no clock, no file, no socket, no thread, no chance in a core."""
    expect_none(
        f"{name_of(path)}:{line} {touch}: {right}, or make the module a SHELL and name it in tests/test_tidy.py"
        for path in CORES
        for line, touch, right in touches_of(path)
    )


def test_no_imports_form_a_circle():
    """Each module can be read, tested and moved without the modules above it."""
    graph = import_graph(ROOT, ALL)
    paths = [
        "\n  ".join(f"{a}:{graph[a][b]} imports {b}" for a in circle for b in circle if b in graph[a])
        for circle in circles_in(graph)
    ]
    assert not paths, "circles of imports; let the lower module take a port:\n  " + "\n\n  ".join(paths)


@pytest.mark.parametrize(
    "text",
    (
        "import pkg.b",
        "from pkg import b",
        "from pkg.b import x",
        "if TYPE_CHECKING:\n    from pkg.b import x",
        "def f():\n    from pkg.b import x",
        "import_module('pkg.b')",
        "HOMES = {'x': 'pkg.b'}\nimportlib.import_module(HOMES[name])",
        "import_module(f'pkg.{name}')",
    ),
)
def test_every_kind_of_import_can_close_a_circle(tmp_path, text):
    package = tmp_path / "pkg"
    package.mkdir()
    files = {"__init__": "from pkg.b import x", "a": text, "b": "from pkg.a import y"}
    for name, content in files.items():
        (package / f"{name}.py").write_text(content)
    assert circles_in(import_graph(tmp_path, package.glob("*.py"))) == [["pkg.a", "pkg.b"]]


@pytest.mark.parametrize("name", sorted(SHELLS))
def test_a_shell_says_so_in_its_first_line(name):
    path = ROOT / name
    assert path.exists(), f"{name} is gone: take it off SHELLS"
    first = (ast.get_docstring(tree_of(path)) or "").split("\n")[0]
    assert first.startswith("SHELL"), f'{name}: the module docstring begins "SHELL (what it touches): ..."'


def test_every_module_says_what_it_is_for():
    expect_none(f"{name_of(path)} has no module docstring" for path in ALL if not ast.get_docstring(tree_of(path)))


def test_nothing_is_left_for_later():
    expect_none(
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in ALL
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(FIXME|TODO|XXX|HACK)\b", line)
    )


def called_by(node):
    """Return the last part of the name of a call's function, or "" if it has none."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def test_queues_between_threads_are_bounded():
    """Rule 4: a limit on everything."""
    queues = ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue", "DeferredQueue")
    expect_none(
        f"{name_of(path)}:{node.lineno} makes an unbounded {called_by(node)}"
        for path in ALL
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and called_by(node) in queues
        if called_by(node) == "SimpleQueue" or not (node.args or node.keywords)
    )


def test_each_exception_is_raised_once():
    """One that is kept in a constant keeps the frames of each time that it is raised."""
    expect_none(
        f"{name_of(path)}:{node.lineno} raises {node.exc.id}: make it there"
        for path in ALL
        for node in nodes_of(path)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id.isupper()
    )


def waits_and_mocks(path):
    """Yield (line, text, what would be right) of each sleep and each import of a mock."""
    for node in nodes_of(path):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "mock" in ast.unparse(node):
            yield node.lineno, ast.unparse(node), "use the in-memory port"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
            yield node.lineno, ast.unparse(node.func), "wait for the thing itself"


def test_tests_neither_sleep_nor_mock():
    expect_none(
        f"{name_of(path)}:{line} {text}: {right}" for path in TESTS for line, text, right in waits_and_mocks(path)
    )


def test_no_link_is_committed():
    """A link to a directory that is built would name a path of its author's machine."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    command = ["git", "ls-files", "--stage"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    expect_none(f"{file.split()[-1]}: commit no link" for file in files if file.startswith(LINK_MODE))


@pytest.mark.parametrize("api", [*APIS.values(), *INTER_BROKER.values()], ids=lambda api: f"{api.name}-{api.oldest}")
def test_every_api_served_is_documented_where_it_is_handled(api):
    doc = import_module(f"broker.handlers.{api.module}").__doc__
    first = doc.split("\n")[0]
    assert first == f"{api.name}, v{api.oldest} to v{api.newest}.", f"broker/handlers/{api.module}.py begins {first!r}"
    assert "\nBehaviour: " in doc, f"broker/handlers/{api.module}.py does not say how {api.name} behaves"


@pytest.mark.parametrize("config, setting", SETTINGS, ids=[setting.name for _, setting in SETTINGS])
def test_every_setting_is_documented_and_named_as_its_field(config, setting):
    assert len(setting.doc.split()) >= 3, f"{setting.name}: say what it does, and why its default is what it is"
    wanted = setting.name.removeprefix("flakelog.").replace(".", "_")
    assert setting.field == SHORTER_FIELDS.get(setting.name, wanted), f"{config.__name__} should have {wanted}"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_field_of_a_configuration_is_a_setting_with_a_good_default(config):
    assert {setting.field for setting in settings_of(config)} == set(config.__dataclass_fields__)
    config()
