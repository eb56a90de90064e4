"""`flakelog mirror` between clusters that ask for TLS and logins, each with its own."""

from broker.client.blocking import Client
from flakelog.testing import Broker
from flakelog.testing.security import PASSWORD
from tests.compat.mirror.mirror_process import MirrorProcess, has_all, records_of, send


def written(file, properties):
    """Write properties as Java reads them, and return the file's name."""
    escaped = {name: text.replace("\\", "\\\\").replace("\n", "\\n") for name, text in properties.items()}
    file.write_text("".join(f"{name}={text}\n" for name, text in escaped.items()))
    return str(file)


def test_the_source_and_the_target_have_a_security_each(tmp_path):
    with Broker(topics={"eu": 1}, security="SASL_SSL") as source, Broker(security="SSL") as target:
        send(source.bootstrap_servers, "eu", range(100), security=source.client_properties)
        source_file = written(tmp_path / "source.properties", source.client_properties)
        target_file = written(tmp_path / "target.properties", target.client_properties)
        options = "--topics", "eu", "--from-config", source_file, "--to-config", target_file
        mirror = MirrorProcess(source.bootstrap_servers, target.bootstrap_servers, *options, output=tmp_path / "log")
        with mirror, Client(target.bootstrap_servers, security=target.client_properties) as client:
            has_all(client, "eu", 100)
        copied, original = (
            records_of(cluster.bootstrap_servers, "eu", 100, security=cluster.client_properties)
            for cluster in (target, source)
        )
        assert copied == original
        assert PASSWORD not in mirror.log and "PRIVATE KEY" not in mirror.log
