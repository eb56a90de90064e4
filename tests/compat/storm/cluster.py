"""A local Storm cluster for the tests, started from the Flux YAML that the command writes.

    need_storm()
    with storm_of("tests.compat.storm.storm_program:everything", directory, STORM_TEST_TOPIC="t") as cluster:
        cluster.ask("deactivate")
"""

import sys
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.storm.jars import StormNotFound, find_storm
from flakelog.storm.local_cluster import LocalCluster
from tests.compat.server_process import PYTHONPATH

JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # for a short life on a small machine


def need_storm():
    """Skip the whole test module with the reason if Storm cannot run here. Call this at the top of the module."""
    try:
        find_storm(fetch=False)
    except StormNotFound as error:
        pytest.skip(str(error), allow_module_level=True)


def write_flux(topology, path, *options):
    """Write the YAML of a topology as the command does; settings come as further options."""
    arguments = ["spout", "storm", topology, "--out", str(path), "--python", sys.executable, *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr


@contextmanager
def storm_of(topology, directory, *options, **environment):
    """Run a topology in a local cluster whose log is `directory`/storm.log; kill it at the end if it still runs."""
    flux = directory / "topology.yaml"
    environment |= {"JAVA_TOOL_OPTIONS": JVM_OPTIONS, "STORM_TEST_DIRECTORY": str(directory)}
    environment["PYTHONPATH"] = PYTHONPATH
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        write_flux(topology, flux, *options)
    with open(directory / "storm.log", "a") as log:
        with LocalCluster(find_storm(fetch=False), flux, directory=directory, environment=environment, log=log) as made:
            made.start()
            yield made
