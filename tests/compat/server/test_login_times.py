"""The time of a failed login: it tells an attacker nothing about which users exist. Run it alone.

    .venv/bin/python -m pytest tests/compat/server/test_login_times.py -m soak -s
"""

import time
from statistics import median

import pytest

from tests.broker.scram_client import ScramClient
from tests.compat.sasl_connection import SaslConnection
from tests.compat.sasl_users import MECHANISMS, USER, set_password, settings
from tests.compat.server_process import ServerProcess
from tests.compat.tls_files import TlsFiles

TRIES = 2_000
DIFFERENCE = 0.05
CASES = {"wrong password": USER, "unknown user": "eve", "wrong password again": USER, "unknown user again": "eve"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    files = TlsFiles(tmp_path_factory.mktemp("tls"))
    own = settings(files) | {"connection.failed.authentication.delay.ms": 0}
    with ServerProcess(tmp_path_factory.mktemp("data"), own) as server:
        set_password(server.address)
        yield server


def failure_ns(address, user, mechanism):
    """Return the time of a login that fails, without the time to connect."""
    with SaslConnection(address) as connection:
        connection.shake_hands(mechanism)
        scram = ScramClient(user, "wrong", mechanism) if mechanism != "PLAIN" else None
        token = f"\0{user}\0wrong".encode() if scram is None else scram.first
        began_ns = time.perf_counter_ns()
        answer = connection.send_token(token)
        took_ns = time.perf_counter_ns() - began_ns
        if scram is not None:
            final = scram.final(answer.auth_bytes)
            began_ns = time.perf_counter_ns()
            answer = connection.send_token(final)
            took_ns += time.perf_counter_ns() - began_ns
        assert answer.error_code
        return took_ns


@pytest.mark.soak
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_unknown_user_takes_as_long_as_a_wrong_password(server, mechanism):
    address = server.addresses["broker.SASL_PLAINTEXT"]
    times_ns = {case: [] for case in CASES}
    for _ in range(TRIES):  # in turn, so that a loaded machine delays all cases alike
        for case, user in CASES.items():
            times_ns[case].append(failure_ns(address, user, mechanism))
    medians = {case: median(times) for case, times in times_ns.items()}
    print(mechanism, {case: f"{ns / 1e6:.3f} ms" for case, ns in medians.items()})
    wrong, unknown, wrong_again, unknown_again = medians.values()
    noise = max(abs(wrong - wrong_again), abs(unknown - unknown_again), DIFFERENCE * wrong)
    assert abs(wrong - unknown) <= noise and abs(wrong_again - unknown_again) <= noise
