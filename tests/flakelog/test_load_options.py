"""Options of `flakelog load` that are refused before a server is asked."""

import json
import sys

import pytest
from click.testing import CliRunner

from flakelog.cli import main
from spark_bridge.load.destination import Destination
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.output.storage import StorageError

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "order", "type": "long"}]}


@pytest.fixture
def load(tmp_path):
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))

    def run(*more):
        schema = ["--schema", f"{tmp_path}/order.avsc"]
        return CliRunner().invoke(main, ["load", "orders", "--to", f"{tmp_path}/t", *schema, *more])

    return run


def test_a_load_of_avro_names_the_extra_that_is_missing(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    done = load("--decode", "avro")
    assert done.exit_code == 1 and done.output.count("\n") == 1
    assert done.output.startswith("Error: --decode avro needs fastavro (")
    assert done.output.endswith("; try: pip install 'flakelog[avro]'\n")


@pytest.mark.parametrize("number", ["-1", "1e3", "", "nan", "9" * 30 + "x"])
def test_a_wrong_number_of_rejected_messages_is_refused_by_name(load, number):
    done = load("--decode", "json", "--max-rejected", number)
    assert done.exit_code == 2 and "--max-rejected" in done.output


def test_a_load_since_a_time_to_come_is_refused(load):
    """Its place would be the log's end now, so the next load would take messages from before that time."""
    done = load("--since", "2999-01-01")
    assert done.exit_code == 2 and "2999-01-01 is still to come; give a time that has passed" in done.output


def test_a_limit_of_rejected_messages_needs_decode(tmp_path):
    done = CliRunner().invoke(main, ["load", "orders", "--to", f"{tmp_path}/t", "--max-rejected", "1"])
    assert done.exit_code == 2
    assert "--max-rejected counts values that do not decode; give --decode json or avro with it" in done.output


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_file_is_no_place_for_loads(tmp_path, kind):
    (tmp_path / "in.txt").touch()
    with pytest.raises(StorageError, match=r"in\.txt is a file; name a directory"):
        Destination(f"{tmp_path}/in.txt", kind).find(LoadOptions("orders"))


@pytest.mark.parametrize(
    "properties, location, reason",
    [
        ("security.protocol=SSL", "files", "--to-config is for loads into a topic; parquet has no brokers"),
        ("sasl.pasword=very-secret", "kafka://127.0.0.1:1/t", "is no setting of a client's security"),
        ("sasl.password=${env:NO_SUCH_VARIABLE}", "kafka://127.0.0.1:1/t", "the environment has no NO_SUCH_VARIABLE"),
    ],
)
def test_properties_of_the_targets_cluster_that_cannot_work_are_refused_by_name(tmp_path, properties, location, reason):
    (tmp_path / "to.properties").write_text(properties)
    record = ["--record", f"{tmp_path}/record"] if location.startswith("kafka:") else []
    target = ["--to", location if record else f"{tmp_path}/{location}", "--to-config", f"{tmp_path}/to.properties"]
    done = CliRunner().invoke(main, ["load", "orders", *target, *record])
    assert done.exit_code != 0 and reason in " ".join(done.output.split()) and "very-secret" not in done.output


def test_no_text_of_a_destination_shows_the_properties_of_its_cluster():
    destination = Destination("kafka://127.0.0.1:1/t", "topic", "record", (("sasl.password", "very-secret"),))
    assert "very-secret" not in f"{destination} {destination!r}"
