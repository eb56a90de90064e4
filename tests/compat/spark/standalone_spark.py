"""A standalone Spark cluster on this machine: a master, two workers, and Python environments for the executors.

    with StandaloneSpark(directory) as cluster:
        cluster.run(PROGRAM, python, *arguments)

`environment` makes a Python environment with exactly the packages of the extra `executor`. They are links to the
installed ones, so that nothing is downloaded or copied.
"""

import json
import os
import re
import subprocess
import sys
import venv
from configparser import ConfigParser
from importlib.metadata import distribution
from pathlib import Path
from shutil import copytree, ignore_patterns
from zipfile import ZipFile

import pyspark

from coordination.java import find_java
from spark_bridge.session import java_home
from tests.compat.clean_environment import ROOT, required_by
from tests.compat.commands.test_wheel import PACKAGES
from tests.patience import PROGRAM_SECONDS, until

WORKERS = 2
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def environment(directory):
    """Make a Python environment with the packages of the extra `executor` only; return its interpreter."""
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    link_packages(packages, executor_packages())
    return directory / "bin" / "python"


def link_packages(directory, names):
    """Link installed distributions into a directory that is, or can be, on a Python's path."""
    for name in names:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files} - {"..", "__pycache__"}:
            if not (directory / top).exists():
                (directory / top).symlink_to(installed.locate_file(top))


def executor_packages():
    """Return the distributions of the extra `executor`, and those that they require."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = setup["options.extras_require"]["executor"].split()
    names = {re.match(r"[\w.-]+", requirement).group() for requirement in named}
    return names | {other for name in names for other in required_by({name: distribution(name).requires or ()})}


def install(python):
    """Copy Flakelog's packages into an environment, as pip would."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    for name in PACKAGES:
        copytree(ROOT / name, packages / name, ignore=ignore_patterns("__pycache__"))


def zip_of_packages(path):
    """Write a zip of Flakelog's packages, for addPyFile; return its path."""
    with ZipFile(path, "w") as file:
        for name in PACKAGES:
            for source in (ROOT / name).rglob("*.py"):
                file.write(source, source.relative_to(ROOT))
    return path


class StandaloneSpark:
    """A master and its workers. The workers' environment names no Python and has no PYTHONPATH."""

    def __init__(self, directory):
        self.directory = directory
        self._processes = []
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
        self._environment |= {"JAVA_HOME": str(java_home(find_java(), directory)), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.master = None

    def __enter__(self):
        master = "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        log = self._start("master", *master)
        self.master = until(lambda: _first_group(r"(spark://127\.0\.0\.1:\d+)", log), "the master's address")
        for number in range(WORKERS):
            work = self.directory / f"work-{number}"
            worker = "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0"
            log = self._start(f"worker-{number}", *worker, "--work-dir", work, self.master)
            until(lambda log=log: _first_group("(Successfully registered)", log), "a worker")
        return self

    def __exit__(self, *_):
        for process in reversed(self._processes):
            process.terminate()
            process.wait(PROGRAM_SECONDS)

    def run(self, program, python, *arguments, directory=None):
        """Run a driver program whose executors use `python`; return what it prints, read as JSON.

        The driver runs in this test's environment, with the checkout on its path, as an installed Flakelog would be.
        """
        done = self.finish(program, python, *arguments, directory=directory)
        assert done.returncode == 0, done.stderr[-5000:]
        return json.loads(done.stdout.splitlines()[-1])

    def finish(self, program, python, *arguments, directory=None):
        """Run a driver program as `run` does; return the finished process."""
        environment = self._environment | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", program, self.master, *map(str, arguments)]
        return subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, timeout=PROGRAM_SECONDS
        )

    def _start(self, name, *arguments):
        log = self.directory / f"{name}.log"
        with log.open("w") as file:
            command = [_SPARK_CLASS, *arguments]
            process = subprocess.Popen(command, env=self._environment, stdout=file, stderr=file, cwd=self.directory)
        self._processes.append(process)
        return log


def _first_group(pattern, path):
    match = re.search(pattern, path.read_text())
    return match and match.group(1)
