"""A scan of a listener by sslyze: no weak protocol, cipher suite or known hole with the default settings.

    make suites && .venv/bin/python -m pytest tests/compat/server/test_tls_scan.py -m soak

The reports are kept in build/soak/.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.compat.server_process import ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import PROGRAM_SECONDS

ROOT = Path(__file__).parents[3]
SSLYZE = ROOT / "build" / "sslyze" / "bin" / "sslyze"
REPORTS = ROOT / "build" / "soak"
OLD = "ssl_2_0_cipher_suites", "ssl_3_0_cipher_suites", "tls_1_0_cipher_suites", "tls_1_1_cipher_suites"
TLS_1_2 = {
    f"TLS_ECDHE_{{kind}}_WITH_{cipher}"
    for cipher in ("AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256")
}
TLS_1_3 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
# Not --early_data: that scan sends HTTP, and fails where the server closes the connection for it.
SCANS = (
    "--sslv2", "--sslv3", "--tlsv1", "--tlsv1_1", "--tlsv1_2", "--tlsv1_3", "--certinfo", "--compression",
    "--elliptic_curves", "--ems", "--fallback", "--heartbleed", "--openssl_ccs", "--reneg", "--resum",
    "--robot",
)  # fmt: skip
CURVE_BITS_MIN = 224  # NIST SP 800-57

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not SSLYZE.exists(), reason="sslyze is not there: `make suites` installs it"),
]


@pytest.fixture(scope="module", params=["ecdsa", "rsa"])
def scan(request, tmp_path_factory):
    """Return the kind of the broker's key, and the results of all scans."""
    kind = request.param
    directory = tmp_path_factory.mktemp("scan")
    files = TlsFiles(directory / "tls", kind)
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"sslyze-{kind}.json"
    with ServerProcess(directory / "data", files.settings()) as server:
        address = "localhost:" + server.addresses["broker.SSL"].rpartition(":")[2]
        argv = [SSLYZE, *SCANS, "--mozilla_config", "disable", "--json_out", report, address]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False)
        assert report.exists(), done.stdout + done.stderr
        assert "Traceback" not in server.log
    (target,) = json.loads(report.read_text())["server_scan_results"]
    assert target["scan_status"] == "COMPLETED", target["connectivity_error_trace"]
    return kind, target["scan_result"]


def result(scan, name):
    """Return the result of one scan, which has to be whole."""
    found = scan[1][name]
    assert found["status"] == "COMPLETED", (name, found)
    return found["result"]


def accepted(scan, name):
    return {suite["cipher_suite"]["name"] for suite in result(scan, name)["accepted_cipher_suites"]}


@pytest.mark.parametrize("version", OLD)
def test_no_old_version_is_spoken(scan, version):
    assert accepted(scan, version) == set()


def test_each_suite_has_forward_secrecy_and_authenticated_encryption(scan):
    kind = scan[0].upper()
    assert accepted(scan, "tls_1_2_cipher_suites") == {suite.format(kind=kind) for suite in TLS_1_2}
    assert accepted(scan, "tls_1_3_cipher_suites") == TLS_1_3


def test_no_known_hole_is_found(scan):
    assert not result(scan, "heartbleed")["is_vulnerable_to_heartbleed"]
    assert not result(scan, "openssl_ccs_injection")["is_vulnerable_to_ccs_injection"]
    assert result(scan, "robot")["robot_result"] in ("NOT_VULNERABLE_NO_ORACLE", "NOT_VULNERABLE_RSA_NOT_SUPPORTED")
    assert not result(scan, "tls_compression")["supports_compression"]
    assert not result(scan, "session_renegotiation")["is_vulnerable_to_client_renegotiation_dos"]


def test_no_weak_curve_is_taken(scan):
    curves = result(scan, "elliptic_curves")["supported_curves"]
    assert curves and all(curve["name"].startswith("X") or _bits(curve["name"]) >= CURVE_BITS_MIN for curve in curves)


def _bits(curve):
    """Return the size in the name of a curve, such as 256 for prime256v1."""
    return int("".join(letter for letter in curve.split("r1")[0].split("v1")[0] if letter.isdigit()))
