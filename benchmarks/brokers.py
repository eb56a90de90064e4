"""The brokers of a row: ours, the one of another checkout, and Apache Kafka; and fresh topics on them."""

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.apache import Peer, kafka
from benchmarks.measure import OURS, Scale, numbered
from broker.client.blocking import Client
from broker.client.core import LATEST
from broker.client.errors import ClientError
from tests.compat.server_process import ROOT, ServerProcess

LEADERS_SECONDS = 20
# As in apache.py: a deleted topic frees its disk at once, and a group's first member does not wait for others.
# The cleaner looks for work at once; ours cleans what a checkpoint covers.
SETTINGS = {
    "log.segment.delete.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "200",
}
ORIGIN = "import importlib.util as u; print(u.find_spec('broker').origin, u.find_spec('flakelog').origin)"


@contextmanager
def flakelog(root: Path = ROOT, prefix: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """Run a broker of the checkout at `root`, in a data directory of its own. `prefix` is a command to run it under."""
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        with ServerProcess(Path(directory) / "data", SETTINGS, root=root, prefix=prefix) as server:
            yield server


@contextmanager
def brokers(scale: Scale) -> Iterator[dict[str, Peer]]:
    """Run our broker for a row, and yield all that the row measures by name."""
    with ExitStack() as stack:
        peers = {}
        for name, root in checkouts(scale).items():
            server = stack.enter_context(flakelog(root))
            if scale.against is not None:
                report_origin(name, server.pid, root)
            peers[name] = Peer(server.address, server.pid)
        yield peers | kafka(scale)


def checkouts(scale: Scale) -> dict[str, Path]:
    """The checkouts whose servers are measured, by the servers' names."""
    return {OURS: ROOT} | ({} if scale.against is None else {scale.other: scale.against})


# --- which checkout a server runs ----------------------------------------------------------------------------------


class Tree(NamedTuple):
    """A checkout: its directory, and its commit, e.g. "commit 03f824a with changes"."""

    directory: str
    commit: str


def tree_of(root: Path) -> Tree:
    """Ask git which commit a directory has checked out."""
    git = ["git", "-C", str(root)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if commit.returncode:
        return Tree(str(root), "no commit")
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    return Tree(str(root), f"commit {commit.stdout.strip()}" + (" with changes" if changed else ""))


def compile_packages(root: Path) -> None:
    """Compile a checkout's packages to bytecode, so that a server starts equally fast from each checkout."""
    for package in root.glob("*/__init__.py"):
        compileall.compile_dir(package.parent, quiet=1)


def origins(pid: int) -> list[Path]:
    """Where a running server imports its packages from. The same interpreter is asked, in the server's own working
    directory and environment, because both decide it: `python -m` puts the working directory before PYTHONPATH."""
    process = Path(f"/proc/{pid}")
    python = process.joinpath("cmdline").read_bytes().split(b"\0")[0].decode()
    words = process.joinpath("environ").read_bytes().split(b"\0")
    environment = dict(word.decode().split("=", 1) for word in words if word)
    argv = [python, "-c", ORIGIN]
    done = subprocess.run(
        argv, cwd=os.readlink(process / "cwd"), env=environment, capture_output=True, text=True, check=True
    )
    return [Path(word) for word in done.stdout.split()]


def report_origin(name: str, pid: int, root: Path) -> None:
    """Print which checkout a server runs. Raises RuntimeError when it imports packages from another directory."""
    directories = origins(pid)
    for origin in directories:
        if not origin.is_relative_to(root):
            raise RuntimeError(f"{name} imports {origin}, which is not below {root}")
    tree = tree_of(root)
    sys.stderr.write(f"{name}: {directories[0]}, {tree.commit}\n")


# --- topics --------------------------------------------------------------------------------------------------------


class Topics:
    """Fresh topics. Each is deleted after its run, so that its dirty pages do not slow the next run.

    `replicas_of` returns the brokers of a partition, the preferred leader first. Without it, the controller chooses
    them. `prefix` begins the names.
    """

    def __init__(
        self, address: str, replicas_of: Callable[[int], list[int]] | None = None, prefix: str = "bench"
    ) -> None:
        self._replicas_of = replicas_of
        self._prefix = prefix
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        self._address = address
        self._numbers = numbered()

    @contextmanager
    def fresh(self, partitions: int = 1, **config: str) -> Iterator[str]:
        """Create a topic and yield its name; `config` has underscores for dots."""
        name = f"{self._prefix}-{next(self._numbers)}"
        configs = {key.replace("_", "."): value for key, value in config.items()}
        if self._replicas_of is None:
            topic = NewTopic(name, partitions, 1, config=configs)
        else:
            assignment = [self._replicas_of(partition) for partition in range(partitions)]
            topic = NewTopic(name, partitions, replica_assignment=assignment, config=configs)
        self._admin.create_topics([topic])[name].result()
        self._await_leaders(name, partitions)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result()

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics, and wait until they are deleted."""
        if names:
            for deleted in self._admin.delete_topics(list(names)).values():
                deleted.result()

    def _await_leaders(self, name: str, partitions: int) -> None:
        """Wait until each partition answers: Kafka names a leader before that leader knows of it."""
        deadline = time.monotonic() + LEADERS_SECONDS
        with Client(self._address) as client:
            for partition in range(partitions):
                while True:
                    try:
                        client.find_offset(name, partition, LATEST)
                        break
                    except ClientError:
                        if time.monotonic() > deadline:
                            raise
