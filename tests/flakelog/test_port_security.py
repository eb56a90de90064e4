"""The settings of TLS at the HTTP port and the id service, and those of the pages of health and metrics."""

import pytest
from click.testing import CliRunner
from twisted.web.test.requesthelper import DummyRequest

from broker.security.listener_settings import split_name
from flakelog.cli import main
from flakelog.config import ServerConfig
from flakelog.console.security import FAILED_LOGINS_MAX, OperatorToken, RequestRefused
from flakelog.page_guard import PageGuard
from flakelog.settings import Settings, UnknownSetting, collect, misspelt_variables
from idgen.settings import InvalidSetting

OF_ALL = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "all.pem", "ssl.client.auth": "requested"}
HTTP_ON, IDS_ON = {"flakelog.http.ssl.enable": "true"}, {"flakelog.ids.ssl.enable": "true"}
TOKEN = "correct horse battery"


def test_both_ports_are_plain_by_default_whatever_the_listeners_speak():
    assert Settings(OF_ALL).port_tls == {}


def test_a_port_has_the_tls_of_all_and_its_own_goes_before_it():
    own = {"flakelog.ids.ssl.client.auth": "required", "flakelog.http.ssl.keystore.location": "http.pem"}
    tls = Settings(OF_ALL | HTTP_ON | IDS_ON | own).port_tls
    assert (tls["http"].ssl_keystore_location, tls["http"].client_auth) == ("http.pem", "requested")
    assert (tls["ids"].ssl_keystore_location, tls["ids"].client_auth) == ("all.pem", "required")
    assert tls["ids"].ssl_keystore_type == "PEM"


def test_a_port_that_is_off_has_no_tls():
    closed = {"flakelog.http.listener": "", "flakelog.ids.listener": ""}
    assert Settings(OF_ALL | HTTP_ON | IDS_ON | closed).port_tls == {}


@pytest.mark.parametrize("port", ["http", "ids"])
def test_a_certificate_for_a_plain_port_is_refused_because_nothing_would_be_encrypted(port):
    name = f"flakelog.{port}.ssl.keystore.location"
    wanted = rf"^{name}=own\.pem: needs flakelog\.{port}\.ssl\.enable=true, else nothing would be encrypted$"
    with pytest.raises(InvalidSetting, match=wanted):
        Settings({name: "own.pem"})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("flakelog.http.ssl.client.auth", "maybe", "must be one of none, requested, required"),
        ("flakelog.ids.ssl.keystore.type", "BCFKS", "must be one of PEM, PKCS12, JKS"),
        ("flakelog.http.ssl.enabled.protocols", "TLSv1.1", "TLSv1.1 is not served: give TLSv1.2, TLSv1.3 or both"),
        ("flakelog.ids.ssl.cipher.suites", "TLS_AES_128_GCM_SHA256", "Python cannot choose among the suites"),
    ],
)
def test_an_error_names_the_setting_of_the_port(name, value, wanted):
    with pytest.raises(InvalidSetting) as error:
        Settings(HTTP_ON | IDS_ON | {name: value})
    assert str(error.value).startswith(f"{name}={value}: {wanted}")


def test_a_misspelt_setting_of_a_port_is_unknown_and_the_nearest_one_is_named():
    with pytest.raises(UnknownSetting, match=r"did you mean flakelog\.http\.ssl\.keystore\.location\?"):
        collect(None, ["flakelog.http.ssl.keystore.locaton=a.pem"])


def test_variables_of_the_environment_set_the_tls_of_a_port():
    environment = {"FLAKELOG_HTTP_SSL_ENABLE": "true", "FLAKELOG_IDS_SSL_KEYSTORE_LOCATION": "ids.pem"}
    texts = collect(None, [], environment).texts
    assert texts == {"flakelog.http.ssl.enable": "true", "flakelog.ids.ssl.keystore.location": "ids.pem"}
    (line,) = misspelt_variables({"FLAKELOG_HTTP_SSL_KEYSTORE_LOCATIO": "x"})
    assert "did you mean FLAKELOG_HTTP_SSL_KEYSTORE_LOCATION?" in line


def test_the_zookeeper_of_the_ids_is_no_tls_of_the_port():
    assert split_name("flakelog.ids.zookeeper.ssl.client.enable") is None
    assert split_name("flakelog.ids.ssl.key.password") == ("ids", "ssl.key.password")


def test_the_printed_settings_show_no_password_of_a_port(tmp_path):
    lines = ["flakelog.http.ssl.enable=true", "flakelog.http.ssl.keystore.password=very-secret"]
    (tmp_path / "server.properties").write_text("\n".join(lines))
    done = CliRunner().invoke(main, ["server", "--config", f"{tmp_path}/server.properties", "--print-config"])
    assert done.exit_code == 0, done.output
    assert "flakelog.http.ssl.keystore.password=(hidden)" in done.output and "very-secret" not in done.output


def test_check_config_names_every_error_of_both_ports(tmp_path):
    lines = ["flakelog.http.ssl.keystore.location=x.pem", "flakelog.ids.ssl.enable=true"]
    lines += ["flakelog.ids.ssl.cipher.suites=TLS_AES_128_GCM_SHA256", "flakelog.http.metrics.open=false"]
    (tmp_path / "server.properties").write_text("\n".join(lines))
    done = CliRunner().invoke(main, ["server", "--check-config", f"{tmp_path}/server.properties"])
    refused = [line.split()[1].partition("=")[0] for line in done.output.splitlines() if line.startswith("refused")]
    assert done.exit_code != 0
    assert sorted(refused) == [
        "flakelog.http.metrics.open", "flakelog.http.ssl.keystore.location", "flakelog.ids.ssl.cipher.suites"
    ]  # fmt: skip


# --- health and metrics ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["health", "metrics"])
def test_a_page_that_is_not_open_needs_a_token(page):
    with pytest.raises(InvalidSetting, match=rf"^flakelog\.http\.{page}\.open=false: needs flakelog\.console\.token"):
        ServerConfig(**{f"http_{page}_open": False})
    ServerConfig(**{f"http_{page}_open": False, "console_token": TOKEN})


@pytest.mark.parametrize("header", ["", "Basic dXNlcjp4", f"Token {TOKEN}", TOKEN])
def test_a_header_without_a_bearer_token_is_told_what_to_send(header):
    """Such a request counts as no guess, so that a probe without a token closes the pages to no program."""
    operator = OperatorToken(TOKEN)
    for now_ms in range(FAILED_LOGINS_MAX + 1):
        with pytest.raises(RequestRefused, match="Authorization: Bearer TOKEN") as refused:
            operator.check_header(header, now_ms)
        assert refused.value.status == 401
    operator.check_header(f"bearer {TOKEN}", 99)


def test_wrong_tokens_are_counted_and_the_right_one_passes_always():
    """Else whoever reaches the port could keep Prometheus out."""
    operator = OperatorToken(TOKEN)
    for now_ms in range(FAILED_LOGINS_MAX):
        with pytest.raises(RequestRefused, match="that is not the token"):
            operator.check_header("Bearer guessed", now_ms)
    with pytest.raises(RequestRefused) as refused:
        operator.check_header("Bearer guessed", 59_999)
    assert refused.value.status == 429
    operator.check_header(f"Bearer {TOKEN}", 59_999)


def test_a_token_at_the_open_page_of_readiness_is_no_guess():
    guard = PageGuard(ServerConfig(http_health_open=False, http_metrics_open=False, console_token=TOKEN), lambda: 0)
    for _ in range(FAILED_LOGINS_MAX):
        assert not guard.shows_details(request_with("guessed"))
    wrong = request_with("guessed")
    assert b"that is not the token" in guard.of_metrics(lambda _: b"figures")(wrong) and wrong.responseCode == 401
    assert guard.of_metrics(lambda _: b"figures")(request_with(TOKEN)) == b"figures"
    assert guard.shows_details(request_with(TOKEN))


def request_with(token):
    """Return a request of Twisted's with this token."""
    request = DummyRequest([b""])
    request.requestHeaders.setRawHeaders(b"authorization", [f"Bearer {token}".encode()])
    return request
