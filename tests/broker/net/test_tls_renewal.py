"""Certificates of a listener that are renewed while the server runs, with dates that are wrong."""

import time

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from broker.net.tls import ListenerTls
from broker.security.altered_tls import AlteredTls
from broker.security.tls_config import TlsConfig
from flakelog.testing.authority import Authority
from idgen.settings import InvalidSetting
from tests.broker.net.tls_pair import AUTHORITY

DAY_MS = 86_400_000


class Renewed:
    """A listener whose certificates are in a file. `now_ms` is the time, `days` from that of OpenSSL's handshakes."""

    def __init__(self, file, serves_brokers=False, days=0, **settings):
        self.file = file
        self.now_ms = int(time.time() * 1000) + days * DAY_MS
        self.log = []
        self.put(begins_days=-9)
        self.config = config_of(file, **settings)
        self.tls = ListenerTls(
            "SSL", self.config, self.log.append, "use TLS", wall_ms=lambda: self.now_ms, serves_brokers=serves_brokers
        )

    def put(self, authority=AUTHORITY, **days):
        """Put a new certificate into the file."""
        authority.issue("broker", **days).write_pem(self.file)

    def renew(self, authority=AUTHORITY, **days):
        """Put a new certificate into the file, and have the listener refresh it. Return the lines of the log."""
        self.put(authority, **days)
        return self.refresh()

    def refresh(self):
        self.log.clear()
        self.tls.refresh()
        return list(self.log)


def config_of(file, *authorities, **settings):
    """Return the settings of a listener that trusts these authorities, or that of the tests."""
    trusted = "".join(authority.pem() for authority in authorities or (AUTHORITY,))
    return TlsConfig(
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(file),
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=trusted,
        **settings,
    )


def date(ms):
    return time.strftime("%Y-%m-%d", time.gmtime(ms / 1000))


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
    refused = f"listener SSL keeps its certificate: ssl.keystore.location={listener.file}: "
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
    given = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(listener.file),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": AUTHORITY.pem(),
    }
    altered = AlteredTls(given, {"SSL": listener.tls}, listener.log.append)
    altered.use({"ssl.keystore.location": str(other)})
    assert "is not valid before" in listener.log[-1]
    altered.use({})
    listener.now_ms += 2 * DAY_MS + 1_000
    assert listener.refresh() == [] and listener.tls.config.ssl_keystore_location == str(listener.file)


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


# --- the old and the new certificate of brokers shake hands (SslFactory of Kafka) -------------------------------------

STRANGER = Authority("Other authority")


def test_the_listener_of_brokers_keeps_its_certificate_if_it_does_not_trust_the_new_one(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    (line,) = listener.renew(STRANGER)
    assert line.startswith(
        f"listener SSL keeps its certificate: ssl.keystore.location={listener.file}: a broker with these settings and "
        "one with the present settings could not connect to each other: "
    )


def test_a_listener_of_clients_alone_takes_a_certificate_of_any_authority(tmp_path):
    (line,) = Renewed(tmp_path / "broker.pem").renew(STRANGER)
    assert line.startswith("listener SSL has a new certificate")


def test_brokers_change_their_authority_in_three_steps_each_of_which_lets_old_and_new_shake_hands(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True, ssl_client_auth="required")
    other = tmp_path / "other.pem"
    STRANGER.issue("broker").write_pem(other)
    with pytest.raises(InvalidSetting, match="could not connect to each other"):
        listener.tls.check(config_of(other, STRANGER, ssl_client_auth="required"))
    for file, *trusted in ([listener.file, AUTHORITY, STRANGER], [other, AUTHORITY, STRANGER], [other, STRANGER]):
        listener.tls.use(config_of(file, *trusted, ssl_client_auth="required"))
    assert listener.tls.config.ssl_keystore_location == str(other)


def test_the_listener_of_brokers_trusts_no_other_authority_in_place_of_that_of_its_certificate(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    with pytest.raises(InvalidSetting, match="one with the present settings could not connect"):
        listener.tls.use(config_of(listener.file, STRANGER))
    assert listener.tls.config == listener.config


def test_brokers_that_could_not_connect_to_each_other_are_not_started(tmp_path):
    """Kafka: "A client SSLEngine created with the provided settings can't connect to a server SSLEngine"."""
    file = STRANGER.issue("broker").write_pem(tmp_path / "broker.pem")
    with pytest.raises(InvalidSetting, match="and one with the same settings could not connect to each other"):
        ListenerTls("SSL", config_of(file), print, "use TLS", wall_ms=lambda: 0, serves_brokers=True)


def test_a_certificate_of_brokers_that_has_expired_is_replaced_by_one_that_shakes_hands_with_itself(tmp_path):
    """Kafka refuses it, so that a broker needs a restart; here it only has to be of an authority that is trusted."""
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    listener.now_ms += 40 * DAY_MS
    (line,) = listener.renew(STRANGER, ends_days=60)
    assert "and one with the same settings could not connect to each other" in line
    assert listener.renew(ends_days=60)[0].startswith("listener SSL has a new certificate")
