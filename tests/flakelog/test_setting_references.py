"""References to secrets in a server's settings: `${file:...}`, `${dir:...}` and `${env:...}`."""

import pytest
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.settings import IGNORED, REFUSED, collect, gather
from idgen.settings import InvalidSetting

JAAS = "listener.name.inside.plain.sasl.jaas.config"
LOGIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="%s";'
LISTENERS = """
listeners=INSIDE://127.0.0.1:9092
advertised.listeners=INSIDE://127.0.0.1:9092
listener.security.protocol.map=INSIDE:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
"""


@pytest.fixture
def file(tmp_path):
    """Return a function that writes the server's file of settings, beside secrets.properties."""
    (tmp_path / "secrets.properties").write_text("ada=very-secret\nworker=7\n")

    def written(text):
        (tmp_path / "server.properties").write_text(text)
        return tmp_path / "server.properties"

    return written


def test_a_setting_has_the_property_of_another_file(file, tmp_path):
    reference = f"${{file:{tmp_path}/secrets.properties:ada}}"
    properties = collect(file(f"{LISTENERS}{JAAS}={LOGIN % reference}"))
    assert properties.texts[JAAS] == LOGIN % "very-secret"
    properties.settings()


def test_a_directory_and_the_environment_hold_values_too_in_each_source_of_settings(file, tmp_path, monkeypatch):
    (tmp_path / "days").write_text("72\n")
    monkeypatch.setenv("BYTES_OF_THE_TEST", "1000000")
    given = collect(
        file(f"log.retention.hours=${{dir:{tmp_path}:days}}"),
        ["log.retention.bytes=${env:BYTES_OF_THE_TEST}"],
        {"FLAKELOG_NODE_ID": f"${{file:{tmp_path}/secrets.properties:worker}}"},
    )
    assert given.texts == {"log.retention.ms": "259200000", "log.retention.bytes": "1000000", "node.id": "7"}


@pytest.mark.parametrize(
    "text, reason",
    [
        (f"{JAAS}=${{env:NO_SUCH_VARIABLE}}", "${env:NO_SUCH_VARIABLE}: the environment has no NO_SUCH_VARIABLE"),
        (f"{JAAS}=${{file:/nowhere/x:ada}}", "${file:/nowhere/x:ada}: the file cannot be read: No such file"),
        (f"{JAAS}=${{file:x}}", "${file:x}: give ${file:FILE:KEY}, a property of a file, or"),
    ],
)
def test_a_reference_to_nothing_is_refused_by_name(file, text, reason):
    with pytest.raises(InvalidSetting) as refused:
        collect(file(text))
    assert str(refused.value).startswith(f"{JAAS}=(hidden): {reason}")


def test_a_line_that_is_no_property_in_the_file_of_secrets_is_not_shown(file, tmp_path):
    (tmp_path / "secrets.properties").write_text("very-secret\n")
    with pytest.raises(InvalidSetting) as refused:
        collect(file(f"{JAAS}=${{file:{tmp_path}/secrets.properties:ada}}"))
    assert "secrets.properties" in str(refused.value) and "very-secret" not in str(refused.value)


def test_a_property_without_effect_keeps_its_reference(file, tmp_path):
    text = f"${{file:{tmp_path}/secrets.properties:ada}}"
    (verdict,) = gather(file(f"confluent.license={text}")).verdicts
    assert (verdict.standing, verdict.given.text) == (IGNORED, text)


@pytest.mark.parametrize(
    "text, standing",
    [
        ("config.providers=env,file", IGNORED),
        ("config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider", IGNORED),
        ("config.providers=vault", REFUSED),
        ("config.providers.vault.class=com.example.VaultConfigProvider", REFUSED),
    ],
)
def test_the_three_providers_need_no_names_and_others_are_refused(file, text, standing):
    (verdict,) = gather(file(text)).verdicts
    assert verdict.standing == standing


@pytest.mark.parametrize("option", ["--print-config", "--check-config"])
def test_the_printed_settings_show_no_secret_that_a_reference_stands_for(file, tmp_path, option):
    written = file(f"{LISTENERS}{JAAS}={LOGIN % f'${{file:{tmp_path}/secrets.properties:ada}}'}")
    arguments = ["--config", str(written), option] if option == "--print-config" else [option, str(written)]
    done = CliRunner().invoke(main, ["server", *arguments])
    assert done.exit_code == 0 and f"{JAAS}=(hidden)" in done.output and "very-secret" not in done.output
