"""`flakelog load` from topic to topic of brokers that ask for TLS and a login."""

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from flakelog.testing import Broker
from flakelog.testing.security import PASSWORD

VALUES = [b"one", b"two", b"three"]


@pytest.fixture(scope="module")
def secure():
    with Broker(security="SASL_SSL") as broker:
        yield broker


@pytest.fixture
def load(secure, flakelog, tmp_path):
    """Return a function that loads `orders` into a topic, with some text of the target's properties replaced."""
    lines = (f"{name}={text}".replace("\n", "\\n") for name, text in secure.client_properties.items())
    (tmp_path / "from.properties").write_text("\n".join(lines))

    def run(target, *options, replaced=("", "")):
        (tmp_path / "to.properties").write_text((tmp_path / "from.properties").read_text().replace(*replaced))
        target_args = f"--to kafka://{secure.bootstrap_servers}/{target} --record {tmp_path}/record"
        configs = f"--command-config {tmp_path}/from.properties --to-config {tmp_path}/to.properties"
        return flakelog(f"load orders --servers {secure.bootstrap_servers} {target_args} {configs} {' '.join(options)}")

    return run


@pytest.fixture(scope="module", autouse=True)
def orders(secure):
    for topic in ("orders", "copies"):
        secure.create_topic(topic, 1)
    records = [BatchRecord(offset, 0, b"k", value) for offset, value in enumerate(VALUES)]
    with Client(secure.bootstrap_servers, security=secure.client_properties) as client:
        client.produce("orders", 0, encode_batch(records, base_timestamp_ms=1_700_000_000_000))


def test_a_load_writes_a_topic_over_tls_with_a_login(secure, load):
    code, output, errors = load("copies")
    assert code == 0, errors
    assert [record.value for record in secure.records("copies")] == VALUES
    code, verified, errors = load("copies", "--verify")
    assert code == 0 and PASSWORD not in output + verified + errors


def test_a_login_that_the_targets_broker_refuses_is_named(load):
    code, output, errors = load("others", replaced=(PASSWORD, "very-wrong"))
    assert code != 0 and "topic 'others' at " in errors and "SCRAM-SHA-512" in errors
    assert PASSWORD not in output + errors and "very-wrong" not in output + errors
