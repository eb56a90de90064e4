"""The client properties of a topology in Storm: they travel in its configuration, and secrets stay where they are."""

import os
import sys

import pytest
import yaml
from click.testing import CliRunner

from broker.client.security.client_security import ClientSecurity
from broker.client.security.readable_properties import made_readable
from flakelog.cli import main
from idgen.properties import parse_properties
from idgen.settings import InvalidSetting
from spout.log_spout import LogSpout
from spout.multilang.handshake import handshake_of
from spout.topology import Topology
from spout.topology_source import ConfiguredTopology
from tests.spout.multilang.storm_side import handshake
from tests.spout.worlds import Collect

PROGRAM = """
from flakelog import Bolt, LogSink, LogSpout, Topology
topology = Topology("copies")
topology.spout("lines", LogSpout("lines", store="kafka"))
topology.bolt("out", LogSink("copies")).shuffle("lines")
"""
LOGIN = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=ada\n"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
def storm(tmp_path, monkeypatch):
    """Return a function that writes properties to a file, and the topology with them: (exit code, YAML, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "copies_for_storm.py").write_text(PROGRAM)

    def run(properties):
        (tmp_path / "client.properties").write_text(properties)
        arguments = ["copies_for_storm:topology", "--out", "-", "--command-config", "client.properties"]
        result = CliRunner().invoke(main, ["spout", "storm", *arguments])
        return result.exit_code, result.stdout, result.stderr

    return run


def security_of(config):
    """Return the security of the spout in a worker whose topology has this configuration."""
    topology = Topology("copies")
    topology.spout("lines", LogSpout("lines", store="kafka", security={"security.protocol": "SSL"}))
    topology.bolt("end", Collect()).shuffle("lines")
    shaken = handshake_of(handshake(topology.plan(), "lines", conf=config))
    (spout,) = ConfiguredTopology(topology, shaken.texts(), shaken.security()).plan().spouts
    return spout.make().security


@pytest.mark.parametrize(
    "secret",
    [
        "sasl.password=${env:ADA_PASSWORD_OF_THE_TEST}",
        f'sasl.jaas.config={JAAS} username="ada" password="${{file:/nowhere/secrets.properties:ada}}";',
        "sasl.jaas.config=${dir:/nowhere:jaas}",
    ],
)
def test_a_reference_goes_to_the_workers_as_it_is(storm, secret):
    properties = LOGIN.replace("sasl.username=ada\n", "") + secret if "jaas" in secret else LOGIN + secret
    code, text, err = storm(properties)
    assert (code, err) == (0, "")
    config = yaml.safe_load(text)["config"]
    assert security_of(config) == {name: text for name, text, _ in parse_properties(properties, "")}


def test_without_the_option_the_security_is_that_of_the_code():
    assert security_of({"kafka.topics": "of another spout"}) == {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    "secret",
    [
        "sasl.password=very-secret",
        f'sasl.jaas.config={JAAS} username="ada" password="very-secret";',
        f'sasl.jaas.config={JAAS} username="${{env:ADA}}" password="very-secret";',
    ],
)
def test_a_secret_of_a_cluster_must_be_a_reference_because_storm_shows_a_topologys_settings(storm, secret):
    code, text, err = storm(LOGIN.replace("sasl.username=ada\n", "") + secret if "jaas" in secret else LOGIN + secret)
    assert (code, text) == (2, "") and "very-secret" not in err
    assert "all who see the topology would read: give ${file:FILE:KEY} or ${env:NAME}" in " ".join(err.split())


def test_a_wrong_property_is_refused_when_the_file_is_written(storm):
    code, text, err = storm(LOGIN + "sasl.pasword=${env:ADA}")
    assert (code, text) == (2, "") and "sasl.pasword" in err and "is no setting of a client's security" in err


def test_processes_of_this_machine_read_a_secret_from_the_file_itself(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(LOGIN + "sasl.password=very-secret\n")
    given = {name: text for name, text, _ in parse_properties(file.read_text(), str(file))}
    readable = made_readable(given, os.fspath(file))
    assert readable == given | {"sasl.password": f"${{file:{file}:sasl.password}}"}
    assert ClientSecurity.of(readable).settings.credentials == ClientSecurity.of(given).settings.credentials


def test_a_secret_beside_a_reference_is_refused_for_processes_of_this_machine_too():
    mixed = {"sasl.jaas.config": f'{JAAS} username="${{env:ADA}}" password="very-secret";'}
    with pytest.raises(InvalidSetting) as refused:
        made_readable(mixed, "/etc/client.properties")
    assert "very-secret" not in str(refused.value)
