"""`--command-config`: a wrong property in the file of a client is refused with its line."""

import pytest
from click.testing import CliRunner

from flakelog.cli import main


@pytest.mark.parametrize(
    "command", [("topic", "list", "--servers", "127.0.0.1:1"), ("id", "new", "--servers", "127.0.0.1:1")]
)
@pytest.mark.parametrize(
    "text, wanted",
    [
        ("security.protocol=SASL", "security.protocol=SASL: must be one of"),
        ("ssl.truststore.location=none.pem\nsecurity.protocol=SSL\nssl.truststore.type=PEM", "none.pem"),
    ],
)
def test_a_wrong_property_is_named_with_its_line(tmp_path, command, text, wanted):
    file = tmp_path / "client.properties"
    file.write_text(f"# of all programs\n{text}\n")
    done = CliRunner().invoke(main, [*command, "--command-config", str(file)])
    assert done.exit_code == 2 and wanted in done.stderr
    assert done.stderr.endswith(f" ({file}:2)\n") and done.stderr.count("\n") == 1


def test_a_property_that_is_missing_is_named_with_the_file(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n")
    done = CliRunner().invoke(main, ["topic", "list", "--command-config", str(file)])
    assert done.exit_code == 2 and done.stderr.startswith(f"Error: {file}: sasl.jaas.config")
