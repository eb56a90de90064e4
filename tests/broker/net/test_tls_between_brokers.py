"""TLS settings of the listener by which brokers reach each other: they have to work for both ends (Kafka's SslFactory).
"""

import datetime
import ssl
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from broker.client.security.settings import parse_security
from broker.net.peer_security import PeerSecurity
from broker.net.tls import LOOK_AGAIN_MS, ListenerTls
from broker.security.altered_tls import AlteredTls
from broker.security.tls_config import tls_of
from broker.security.tls_endpoint import check_handshake
from flakelog.testing.authority import Authority, pem_of
from idgen.settings import InvalidSetting
from tests.broker.net.renewed_tls import DAY_MS, Renewed, config_of
from tests.broker.net.tls_pair import AUTHORITY, server_context

STRANGER = Authority("Other authority")


def test_the_listener_of_brokers_keeps_its_certificate_if_it_does_not_trust_the_new_one(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    (line,) = listener.renew(STRANGER)
    assert line.startswith(
        f"listener SSL keeps its certificate and authorities: ssl.keystore.location={listener.file}: a broker with "
        "these settings and one with the present settings could not connect to each other: the authorities in "
        "ssl.truststore.certificates refuse its certificate: "
    )


@pytest.mark.parametrize("client_auth", ["required", "none"])
def test_new_authorities_that_refuse_the_certificate_of_brokers_are_named_and_not_it(tmp_path, client_auth):
    trust_file = AUTHORITY.write_pem(tmp_path / "trusted.pem")
    listener = Renewed(tmp_path / "b.pem", serves_brokers=True, trust_file=trust_file, ssl_client_auth=client_auth)
    STRANGER.write_pem(trust_file)
    (line,) = listener.refresh()
    assert line.startswith(
        f"listener SSL keeps its certificate and authorities: ssl.truststore.location={trust_file}: a broker with these"
        " settings and one with the present settings could not connect to each other: these authorities refuse the "
        f"certificate in {listener.file}: "
    )


def test_a_start_names_the_file_of_the_authorities_that_refuse_the_certificate(tmp_path):
    file, trust_file = STRANGER.issue("broker").write_pem(tmp_path / "b.pem"), AUTHORITY.write_pem(tmp_path / "t.pem")
    config = config_of(file, trust_file=trust_file)
    tls = ListenerTls("SSL", config, print, "use TLS", wall_ms=now_ms, serves_brokers=True)
    with pytest.raises(InvalidSetting, match=f"{file}: .*: the authorities in {trust_file} refuse its certificate: "):
        tls.begin()


def test_a_file_of_authorities_without_a_certificate_is_named(tmp_path):
    (tmp_path / "t.pem").write_text("-----BEGIN NOTHING-----")
    file = AUTHORITY.issue("broker").write_pem(tmp_path / "b.pem")
    with pytest.raises(InvalidSetting, match=f"ssl.truststore.location={tmp_path / 't.pem'}: has no certificate"):
        ListenerTls("SSL", config_of(file, trust_file=tmp_path / "t.pem"), print, "use TLS", wall_ms=now_ms)


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
    tls = ListenerTls("SSL", config_of(file), print, "use TLS", wall_ms=lambda: 0, serves_brokers=True)
    with pytest.raises(InvalidSetting, match="and one with the same settings could not connect to each other"):
        tls.begin()


def test_a_certificate_of_brokers_that_has_expired_is_replaced_by_one_that_shakes_hands_with_itself(tmp_path):
    """Kafka refuses it, so that a broker needs a restart; here it only has to be of an authority that is trusted."""
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    listener.now_ms += 40 * DAY_MS
    (line,) = listener.renew(STRANGER, ends_days=60)
    assert "and one with the same settings could not connect to each other" in line
    assert listener.renew(ends_days=60)[0].startswith("listener SSL has a new certificate")


def test_new_settings_that_a_start_would_refuse_are_refused_also_if_the_present_ones_fit(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    listener.tls.use(config_of(listener.file, AUTHORITY, STRANGER))
    other = STRANGER.issue("broker").write_pem(tmp_path / "other.pem")
    with pytest.raises(InvalidSetting, match="and one with the same settings could not connect to each other"):
        listener.tls.use(config_of(other, AUTHORITY))


def now_ms():
    return int(time.time() * 1000)


def with_dates(authority, begins_days, ends_days):
    """Return the certificate of an authority, with its key and other dates."""
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    renewed = (
        x509.CertificateBuilder()
        .subject_name(authority.certificate.subject)
        .issuer_name(authority.certificate.subject)
        .public_key(authority.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins_days * day)
        .not_valid_after(now + ends_days * day)
    )
    for extension in authority.certificate.extensions:
        renewed = renewed.add_extension(extension.value, extension.critical)
    return renewed.sign(authority.key, hashes.SHA256())


def test_an_authority_of_brokers_that_has_expired_is_replaced_by_its_renewal(tmp_path):
    """The broker's own certificate is valid, but no other settings shake hands with a trust store that has expired."""
    trust_file = tmp_path / "trusted.pem"
    trust_file.write_text(pem_of(with_dates(AUTHORITY, -9, -2)))
    file = AUTHORITY.issue("broker").write_pem(tmp_path / "broker.pem")
    log = []
    tls = ListenerTls(
        "SSL", config_of(file, trust_file=trust_file), log.append, "use TLS", wall_ms=now_ms, serves_brokers=True
    )
    with pytest.raises(InvalidSetting, match="certificate has expired"):
        tls.begin()
    trust_file.write_text(AUTHORITY.pem())
    tls.refresh()
    assert log[-1].startswith("listener SSL has new authorities: CN=")


def test_files_that_brokers_refused_are_taken_once_the_present_certificate_has_expired(tmp_path):
    trust_file = AUTHORITY.write_pem(tmp_path / "trusted.pem")
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True, trust_file=trust_file, ssl_client_auth="required")
    STRANGER.write_pem(trust_file)
    (line,) = listener.renew(STRANGER, ends_days=60)
    assert "one with the present settings could not connect" in line
    listener.now_ms += 2 * LOOK_AGAIN_MS
    assert listener.refresh() == [], "the present ones work"
    listener.now_ms += 40 * DAY_MS
    assert listener.refresh()[0].startswith("listener SSL has a new certificate")


def test_files_that_brokers_refuse_again_are_named_once(tmp_path):
    listener = Renewed(tmp_path / "broker.pem", serves_brokers=True)
    listener.renew(STRANGER, ends_days=60)
    listener.now_ms += 40 * DAY_MS
    (line,) = listener.refresh()
    assert "and one with the same settings could not connect to each other" in line
    listener.now_ms += 2 * LOOK_AGAIN_MS
    assert listener.refresh() == []


# --- a start with settings that were altered before it ----------------------------------------------------------------


class Restarted:
    """A broker whose authority was changed at run time, by alterations that are stored."""

    def __init__(self, tmp_path, **days):
        old, new, trusted = (tmp_path / name for name in ("old.pem", "new.pem", "trusted.pem"))
        AUTHORITY.issue("broker", **days).write_pem(old)
        STRANGER.issue("Renamed broker").write_pem(new)
        AUTHORITY.write_pem(trusted)
        self.given = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(old),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
            "ssl.client.auth": "required",
        }
        STRANGER.write_pem(tmp_path / "new authority.pem")
        self.altered = {
            "ssl.keystore.location": str(new),
            "ssl.truststore.location": str(tmp_path / "new authority.pem"),
        }
        self.log = []
        config = tls_of("SSL", self.given)
        self.tls = ListenerTls("SSL", config, self.log.append, "use TLS", wall_ms=now_ms, serves_brokers=True)
        self.settings = AlteredTls(self.given, {"SSL": self.tls}, self.log.append)


@pytest.mark.parametrize("days", [{}, {"begins_days": -9, "ends_days": -2}])
def test_a_start_takes_altered_settings_that_do_not_fit_those_of_its_file(tmp_path, days):
    """Kafka makes its SslFactory after it has read the altered settings; those of the file may even have expired."""
    broker = Restarted(tmp_path, **days)
    broker.settings.use(broker.altered)
    broker.settings.begin()
    assert broker.tls.config.ssl_keystore_location == broker.altered["ssl.keystore.location"]
    assert broker.log == []


def test_a_start_whose_altered_settings_do_not_work_keeps_those_of_its_file_and_says_so(tmp_path):
    broker = Restarted(tmp_path)
    broker.settings.use({"ssl.truststore.location": broker.altered["ssl.truststore.location"]})
    broker.settings.begin()
    assert broker.tls.config.ssl_truststore_location == broker.given["ssl.truststore.location"]
    (line,) = broker.log
    assert line.startswith("listener SSL keeps its TLS settings: ")


def test_a_start_without_any_settings_that_work_is_refused(tmp_path):
    broker = Restarted(tmp_path, begins_days=-9, ends_days=-2)
    broker.settings.use({})
    with pytest.raises(InvalidSetting, match="trusted.pem refuse its certificate: certificate has expired"):
        broker.settings.begin()


# --- the connections of a broker to others ----------------------------------------------------------------------------


class Connecting:
    """A broker that connects to others, which trust AUTHORITY alone. Both its stores are files."""

    def __init__(self, tmp_path, **settings):
        self.trust_file = AUTHORITY.write_pem(tmp_path / "trusted.pem")
        self.listener = Renewed(tmp_path / "broker.pem", serves_brokers=True, trust_file=self.trust_file, **settings)
        self._others = server_context()
        self._others.verify_mode = ssl.CERT_REQUIRED
        self._others.load_verify_locations(cadata=AUTHORITY.pem())
        given = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
        given |= {
            "ssl.keystore.location": str(self.listener.file),
            "ssl.truststore.location": str(self.trust_file),
        }
        self.security = PeerSecurity(
            lambda properties: parse_security({"security.protocol": "SSL", **properties}),
            given,
            self.listener.log.append,
            self.listener.tls,
        )

    def connect(self):
        """Shake hands with another broker. Return the context. Raise ssl.SSLError."""
        context = self.security.now.context()
        check_handshake(context, self._others)
        return context


def test_a_broker_still_reaches_others_after_its_listener_has_refused_a_new_certificate(tmp_path):
    broker = Connecting(tmp_path)
    before = broker.connect()
    (line,) = broker.listener.renew(STRANGER)
    assert "keeps its certificate" in line and broker.connect() is before


def test_a_broker_still_reaches_others_after_its_listener_has_refused_a_new_authority(tmp_path):
    broker = Connecting(tmp_path)
    STRANGER.write_pem(broker.trust_file)
    (line,) = broker.listener.refresh()
    assert "keeps its certificate" in line and broker.connect()


def test_a_broker_shows_others_the_new_certificate_that_its_listener_has_taken(tmp_path):
    broker = Connecting(tmp_path)
    before = broker.connect()
    broker.listener.renew(ends_days=60)
    assert broker.connect() is not before


@pytest.mark.parametrize("algorithm, checks_name", [("https", True), ("", False)])
def test_a_broker_checks_the_names_of_others_unless_a_setting_says_otherwise(tmp_path, algorithm, checks_name):
    broker = Connecting(tmp_path, ssl_endpoint_identification_algorithm=algorithm)
    assert broker.connect().check_hostname is checks_name
