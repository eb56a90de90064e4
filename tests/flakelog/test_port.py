"""`flakelog server --port` moves all listeners by the same distance, so that neighbours do not collide."""

import pytest
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.listeners import moved

DEFAULTS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "flakelog.ids.listener": "127.0.0.1:7609",
    "flakelog.http.listener": "127.0.0.1:8609",
}


def test_ids_and_http_move_as_far_as_the_broker():
    assert moved(DEFAULTS, 9192) == {
        "listeners": "PLAINTEXT://127.0.0.1:9192",
        "flakelog.ids.listener": "127.0.0.1:7709",
        "flakelog.http.listener": "127.0.0.1:8709",
    }


def test_hosts_names_and_what_is_off_stay_as_they_are():
    given = {
        "listeners": "PLAINTEXT://[::1]:9092, OUT://:9093",
        "flakelog.ids.listener": "",
        "flakelog.http.listener": "0.0.0.0:0",
    }
    assert moved(given, 9091) == {
        "listeners": "PLAINTEXT://[::1]:9091,OUT://:9092",
        "flakelog.ids.listener": "",
        "flakelog.http.listener": "0.0.0.0:0",
    }


@pytest.mark.parametrize(
    "listeners, port, reason",
    [
        ("PLAINTEXT://127.0.0.1:9092", 80, "it would put flakelog.ids.listener at -1403, -9012 from 7609"),
        ("PLAINTEXT://127.0.0.1:1092", 65_535, "flakelog.ids.listener at 72052"),
        ("PLAINTEXT://127.0.0.1:0", 9192, "there is nothing to move"),
        ("", 9192, "there is nothing to move"),
    ],
)
def test_a_port_that_cannot_be_is_refused(listeners, port, reason):
    with pytest.raises(ValueError, match=reason):
        moved(DEFAULTS | {"listeners": listeners}, port)


def configured(*arguments, **environment):
    """Return exit code, stderr, and the listeners that the server would have."""
    result = CliRunner().invoke(main, ["server", *arguments, "--print-config"], env=environment)
    lines = [line.partition("  # ") for line in result.stdout.splitlines()]
    listeners = dict(setting.split("=", 1) for setting, *_ in lines if "listener" in setting)
    return result.exit_code, result.stderr, listeners


@pytest.mark.parametrize("more", [[], ["--dev"]])
def test_the_option_moves_the_defaults(more):
    code, _, listeners = configured("--port", "9192", *more)
    assert code == 0
    assert (listeners["listeners"], listeners["flakelog.ids.listener"], listeners["flakelog.http.listener"]) == (
        "PLAINTEXT://127.0.0.1:9192", "127.0.0.1:7709", "127.0.0.1:8709"
    )  # fmt: skip


def test_the_option_moves_what_file_and_environment_say_and_what_clients_are_told(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("listeners=PLAINTEXT://0.0.0.0:19092\nadvertised.listeners=PLAINTEXT://log.example:19092\n")
    code, _, listeners = configured(
        "--port", "19093", "--config", str(file), FLAKELOG_HTTP_LISTENER="127.0.0.1:80", FLAKELOG_IDS_LISTENER=""
    )
    assert code == 0
    assert listeners["listeners"] == "PLAINTEXT://0.0.0.0:19093"
    assert listeners["advertised.listeners"] == "PLAINTEXT://log.example:19093"
    assert (listeners["flakelog.ids.listener"], listeners["flakelog.http.listener"]) == ("", "127.0.0.1:81")


def test_what_is_turned_off_by_set_stays_off():
    code, _, listeners = configured("--port", "9192", "--set", "flakelog.http.listener=")
    assert code == 0
    assert listeners["flakelog.http.listener"] == "" and listeners["flakelog.ids.listener"] == "127.0.0.1:7709"


@pytest.mark.parametrize(
    "given, reason",
    [
        ("listeners=PLAINTEXT://:9000", "so does --set listeners=PLAINTEXT://:9000; give one of both"),
        ("flakelog.ids.listener=127.0.0.1:7000", "so does --set flakelog.ids.listener=127.0.0.1:7000"),
        ("listeners=", "there is nothing to move: listeners= has no port"),
    ],
)
def test_a_setting_that_contradicts_the_option_is_refused(given, reason):
    code, errors, _ = configured("--port", "9192", "--set", given)
    assert code == 2 and "--port" in errors and reason in errors
