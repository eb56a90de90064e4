"""The source trees that the oracle compares, and the processes that play scripts on them."""

import io
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.archives import unpack_tar

BEFORE = "c2409e0bf851e409d363b37d1721b78135e3a2b3"
"""The last commit that changed answers or files on purpose: it keeps all five batches of a producer over a restart.

Its forerunners, and what each was the first to do:

    1907c4c4   give each round of the journal a header, the file of leader epochs a CRC, the checkpoint its last epoch
    a5344205   leave the space that the reserve lacks out of DescribeLogDirs, and answer a Produce that needs no space
    4762b344   give the file `reserve` its size and bytes
    c5fd1934   refuse each Produce while the disk is full
    47c20049   show unclean.leader.election.enable among the settings of topics
    5f9f0951   count a marker, and answer a SyncGroup, once it is on the disk
    dcb015ae   (the request path before it was rewritten)
"""

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NOW = Path(os.environ.get("ORACLE_NEW", ROOT)).resolve()
"""The tree that is held to the commit."""

DRIVER = HERE / "driver.py"
SECONDS = 1_800  # for one process; it plays thousands of frames in a few seconds


class NoHistory(Exception):
    """Git cannot give the commit; the message says why."""


def unpack(commit, directory):
    """Put the tree of a commit into a new directory; NoHistory where git or the commit is missing."""
    try:
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "--format=tar", commit], capture_output=True, check=True
        ).stdout
    except FileNotFoundError:
        raise NoHistory("git is not installed") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        raise NoHistory(f"git cannot give commit {commit}: {reason}") from None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        unpack_tar(archive, directory)
    return directory


class Playing:
    """A process that plays scripts on a tree."""

    def __init__(self, tree, scripts, directory, name):
        self._scripts, self._reports = directory / f"{name}.scripts", directory / f"{name}.reports"
        self._number = len(scripts)
        self._tree = tree
        self._scripts.write_bytes(pickle.dumps(scripts))
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # to compile a tree takes longer than to play on it
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(DRIVER), str(self._scripts), str(self._reports)],
            cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def reports(self):
        """Wait for the process, and yield the report of each script."""
        output, _ = self._process.communicate(timeout=SECONDS)
        assert self._process.returncode == 0, f"the driver failed in {self._tree}:\n{output.decode(errors='replace')}"
        with self._reports.open("rb") as file:
            for _ in range(self._number):
                yield pickle.load(file)
        self._scripts.unlink()
        self._reports.unlink()


def play(trees, scripts, directory):
    """Play scripts on several trees together; for each script the reports in the order of the trees."""
    playing = [Playing(tree, scripts, directory, f"tree-{number}") for number, tree in enumerate(trees)]
    return zip(*(process.reports() for process in playing), strict=True)
