"""Certificates of a listener that are renewed while the server runs, with dates that are wrong."""

import time

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from broker.security.altered_tls import AlteredTls
from flakelog.testing.authority import Authority
from idgen.settings import InvalidSetting
from tests.broker.net.renewed_tls import DAY_MS, Renewed, config_of
from tests.broker.net.tls_pair import AUTHORITY


def date(ms):
    return time.strftime("%Y-%m-%d", time.gmtime(ms / 1000))


def altered_tls(listener):
    """Return the altered settings of a listener that was started with PEM files."""
    given = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(listener.file),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": AUTHORITY.pem(),
    }
    return AlteredTls(given, {"SSL": listener.tls}, listener.log.append)


def test_a_renewed_certificate_that_has_expired_is_taken_and_named_with_its_file_and_date(tmp_path):
    """Kafka takes it without a line: only the listener of brokers validates a new keystore (SslFactory)."""
    listener = Renewed(tmp_path / "broker.pem")
    taken, refused = listener.renew(begins_days=-9, ends_days=-2)
    ends = date(listener.now_ms - 2 * DAY_MS)
    wanted = f"clients will refuse SSL: the certificate CN=broker expired on {ends}: put a new one into the same file"
    assert taken == f"listener SSL has a new certificate: CN=broker, until {ends}"
    assert refused == f"{wanted} ({listener.file})"
    assert listener.tls.expires_ms < listener.now_ms, "the metric is that of the new one"
    assert listener.refresh() == [], "it is said once"


def test_a_renewed_certificate_that_is_not_valid_yet_is_named(tmp_path):
    taken, refused = Renewed(tmp_path / "broker.pem").renew(begins_days=2)
    assert "is not valid before" in refused and "broker.pem" in refused and "has a new certificate" in taken


def test_a_renewed_certificate_that_is_valid_is_no_warning(tmp_path):
    (taken,) = Renewed(tmp_path / "broker.pem").renew(ends_days=60)
    assert taken.startswith("listener SSL has a new certificate: CN=broker, until ")


def test_the_listener_of_brokers_keeps_its_certificate_if_the_new_one_has_expired(tmp_path):
    """Kafka lets the old and the new certificate shake hands first."""
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    before_ms = listener.tls.expires_ms
    (line,) = listener.renew(begins_days=-9, ends_days=-2)
    refused = f"listener SSL keeps its certificate and authorities: ssl.keystore.location={listener.file}: "
    assert line.startswith(f"{refused}other brokers would refuse it: the certificate CN=broker expired on")
    assert listener.tls.expires_ms == before_ms and listener.refresh() == []
    with pytest.raises(InvalidSetting, match="other brokers would refuse it"):
        listener.tls.check(listener.config)


def test_the_listener_of_brokers_takes_a_certificate_once_it_is_valid(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True, days=-3)
    (line,) = listener.renew(begins_days=-1)
    assert "other brokers would refuse it: the certificate CN=broker is not valid before" in line
    assert listener.refresh() == []
    listener.now_ms += 2 * DAY_MS + 1_000
    (taken,) = listener.refresh()
    assert taken.startswith("listener SSL has a new certificate: CN=broker, until ")
    assert listener.refresh() == []


def test_the_listener_of_brokers_takes_a_renewed_certificate_beside_one_of_the_chain_that_has_expired(tmp_path):
    """A peer that trusts the authority needs no other of the chain, such as an old cross-signed root."""
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    listener.put(ends_days=60)
    other = AUTHORITY.issue("Old Root", begins_days=-9, ends_days=-2)
    with listener.file.open("ab") as file:
        file.write(other.certificate.public_bytes(Encoding.PEM))
    (taken,) = listener.refresh()
    assert taken.startswith("listener SSL has a new certificate: CN=broker, until ")


def test_altered_settings_whose_certificate_is_not_valid_yet_are_taken_once_it_is(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True, days=-3)
    other = tmp_path / "other.pem"
    AUTHORITY.issue("broker", begins_days=-1, ends_days=60).write_pem(other)
    with pytest.raises(InvalidSetting, match="is not valid before"):
        listener.tls.use(config_of(other))
    assert listener.refresh() == [] and listener.tls.config == listener.config
    listener.now_ms += 2 * DAY_MS + 1_000
    (taken,) = listener.refresh()
    assert taken.startswith("listener SSL has a new certificate: CN=broker, until ")
    assert listener.tls.config.ssl_keystore_location == str(other)


def test_an_alteration_that_is_taken_back_before_its_certificate_is_valid_is_not_used(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True, days=-3)
    other = tmp_path / "other.pem"
    AUTHORITY.issue("broker", begins_days=-1, ends_days=60).write_pem(other)
    altered = altered_tls(listener)
    altered.use({"ssl.keystore.location": str(other)})
    assert "is not valid before" in listener.log[-1]
    altered.use({})
    listener.now_ms += 2 * DAY_MS + 1_000
    assert listener.refresh() == [] and listener.tls.config.ssl_keystore_location == str(listener.file)


def test_files_that_were_refused_are_a_refusal_until_they_are_back_or_fit(tmp_path):
    listener = Renewed(tmp_path / "broker.pem")
    good = listener.file.read_bytes()
    assert listener.tls.refusal is None
    listener.file.unlink()
    (line,) = listener.refresh()
    wanted = f"ssl.keystore.location={listener.file}: cannot be read: No such file or directory"
    assert str(listener.tls.refusal) == wanted
    assert line.endswith(wanted) and listener.refresh() == []
    listener.file.write_bytes(good)
    back = "listener SSL has read its files again: they have its present certificate and authorities"
    assert (listener.refresh(), listener.tls.refusal) == ([back], None)
    listener.file.write_text("half")
    listener.refresh()
    assert listener.tls.refusal is not None
    listener.renew(ends_days=60)
    assert listener.tls.refusal is None


def test_a_file_of_authorities_that_changes_alone_is_no_new_certificate(tmp_path):
    trust_file = AUTHORITY.write_pem(tmp_path / "trusted.pem")
    listener = Renewed(tmp_path / "broker.pem", trust_file=trust_file)
    trust_file.write_text(AUTHORITY.pem() + Authority("Other authority").pem())
    (line,) = listener.refresh()
    assert line.startswith("listener SSL has new authorities: CN=") and line.endswith("; CN=Other authority")


def test_altered_settings_that_were_refused_are_listed_by_their_own_name_until_they_are_withdrawn(tmp_path):
    listener = Renewed(tmp_path / "broker.pem")
    altered = altered_tls(listener)
    assert altered.refusals() == {}
    altered.use({"listener.name.ssl.ssl.keystore.location": "/none.pem"})
    wanted = "listener.name.ssl.ssl.keystore.location=/none.pem: cannot be read: No such file or directory"
    assert altered.refusals() == {"SSL": wanted}
    altered.use({})
    assert altered.refusals() == {}
    listener.file.write_text("half")
    listener.refresh()
    assert altered.refusals()["SSL"].startswith(f"ssl.keystore.location={listener.file}: has no PEM private key")


def test_an_alteration_waits_for_its_certificate_also_while_the_present_one_is_renewed(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True, days=-3)
    other = tmp_path / "other.pem"
    AUTHORITY.issue("broker", begins_days=-1, ends_days=60).write_pem(other)
    with pytest.raises(InvalidSetting, match="is not valid before"):
        listener.tls.use(config_of(other))
    listener.renew(begins_days=-9, ends_days=40)
    listener.now_ms += 2 * DAY_MS + 1_000
    listener.refresh()
    assert listener.tls.config.ssl_keystore_location == str(other)
