"""`--http-config` of commands that serve health and metrics: what cannot work is refused before they begin."""

import pytest
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.commands.http_site import _site_of

MIRROR = "mirror", "run", "--from", "127.0.0.1:1", "--to", "127.0.0.1:2", "--all"


@pytest.mark.parametrize(
    "text, reason",
    [
        ("flakelog.http.ssl.enable=true", "flakelog.http.ssl.enable=true: needs a private key"),
        ("flakelog.http.ssl.enable=maybe", "flakelog.http.ssl.enable=maybe"),
        ("flakelog.http.metrics.open=false", "flakelog.http.metrics.open=false"),
        ("flakelog.http.ssl.enabel=true", "did you mean flakelog.http.ssl.enable?"),
        ("ssl.keystore.location=none.pem\nflakelog.http.ssl.enable=true\nssl.keystore.type=PEM", "none.pem"),
        ("no properties", "no: there is no such setting"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_file_line_and_name(tmp_path, text, reason):
    file = tmp_path / "http.properties"
    file.write_text(text)
    done = CliRunner().invoke(main, [*MIRROR, "--http-port", "0", "--http-config", str(file)])
    assert done.exit_code == 2 and reason in done.stderr, done.stderr
    assert done.stderr.startswith("Error: ") and done.stderr.endswith(f" ({file}:1)\n") and done.stderr.count("\n") == 1


def test_a_configuration_of_no_port_is_wrong_usage(tmp_path):
    file = tmp_path / "http.properties"
    file.write_text("")
    done = CliRunner().invoke(main, [*MIRROR, "--http-config", str(file)])
    assert done.exit_code == 2 and "--http-config is for --http-port, which is not given" in done.stderr


@pytest.mark.parametrize(
    "text, is_named",
    [
        ("ssl.keystore.type=PEM\nssl.keystore.location=none.pem", True),
        ("flakelog.http.ssl.enable=false\nssl.enabled.protocols=TLSv1.3", True),
        ("flakelog.http.hosts=pages.example", False),
    ],
)
def test_settings_of_tls_that_do_not_enable_it_are_named(tmp_path, capsys, text, is_named):
    """The file of a server may have them for its listeners, so they are not refused."""
    file = tmp_path / "http.properties"
    file.write_text(text)
    assert _site_of("127.0.0.1", 0, file).tls is None
    line = f"{file}: the pages are in plain text in spite of ssl.*; flakelog.http.ssl.enable=true makes them HTTPS\n"
    assert capsys.readouterr().err == (line if is_named else "")
