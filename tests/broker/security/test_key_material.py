"""Keys and certificates from PEM and PKCS#12 stores, as Kafka's settings name them."""

import time

import pytest
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from broker.security.key_material import changed_names, read_authorities, read_key
from broker.security.tls_config import TlsConfig
from flakelog.testing.authority import ECDSA, RSA, Authority, pem_of
from idgen.settings import InvalidSetting

AUTHORITY_NAME = "The authority"
AUTHORITY = Authority(AUTHORITY_NAME)
BROKER = AUTHORITY.issue("broker")
OTHER = AUTHORITY.issue("other")


def nothing(location):
    raise AssertionError(f"{location} is not to be read")


def read(location):
    with open(location, "rb") as file:
        return file.read()


def pem_file(location):
    return TlsConfig(ssl_keystore_type="PEM", ssl_keystore_location=str(location))


def test_a_pem_file_has_the_key_and_its_certificates(tmp_path):
    material = read_key(pem_file(BROKER.write_pem(tmp_path / "broker.pem")), read)
    assert material.chain == (BROKER.certificate, AUTHORITY.certificate)
    assert material.key_pem().decode() == BROKER.key_pem()


def test_an_inline_key_reads_no_file():
    config = TlsConfig(
        ssl_keystore_type="PEM",
        ssl_keystore_key=BROKER.key_pem("secret"),
        ssl_keystore_certificate_chain=BROKER.chain_pem(),
        ssl_key_password="secret",
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=AUTHORITY.pem(),
    )
    assert read_key(config, nothing).own == BROKER.certificate
    assert read_authorities(config, nothing) == (AUTHORITY.certificate,)


def test_a_pkcs12_file_has_the_key_and_its_certificates_whatever_their_order(tmp_path):
    file = BROKER.write_pkcs12(tmp_path / "broker.p12", "secret")
    for kind in ("PKCS12", "JKS"):  # Java too reads PKCS#12 where a store is said to be JKS
        config = TlsConfig(
            ssl_keystore_type=kind, ssl_keystore_location=str(file), ssl_keystore_password="secret"
        )
        assert read_key(config, read).chain == (BROKER.certificate, AUTHORITY.certificate)


def test_a_pkcs12_truststore_has_authorities(tmp_path):
    data = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(AUTHORITY.certificate, b"ca")], NoEncryption())
    (tmp_path / "trust.p12").write_bytes(data)
    config = TlsConfig(ssl_truststore_type="PKCS12", ssl_truststore_location=str(tmp_path / "trust.p12"))
    assert read_authorities(config, read) == (AUTHORITY.certificate,)


def test_without_a_truststore_there_are_no_authorities():
    assert read_authorities(TlsConfig(), nothing) == ()


def refused(config, read=read):
    with pytest.raises(InvalidSetting) as error:
        read_key(config, read)
    return str(error.value)


def test_a_jks_store_is_refused_with_the_command_that_converts_it(tmp_path):
    (tmp_path / "broker.jks").write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    told = refused(TlsConfig(ssl_keystore_location=str(tmp_path / "broker.jks")))
    assert "convert it: keytool -importkeystore -srckeystore" in told and "-deststoretype PKCS12" in told


def test_a_store_of_another_type_is_refused_with_the_right_one(tmp_path):
    file = BROKER.write_pem(tmp_path / "broker.pem")
    told = refused(TlsConfig(ssl_keystore_location=str(file)))
    assert told.endswith("is a PEM file: set ssl.keystore.type=PEM")


def test_a_wrong_password_of_a_store_or_a_key_is_named(tmp_path):
    store = BROKER.write_pkcs12(tmp_path / "broker.p12", "secret")
    config = TlsConfig(ssl_keystore_location=str(store), ssl_keystore_password="wrong")
    assert "or ssl.keystore.password is not its password" in refused(config)
    file = BROKER.write_pem(tmp_path / "broker.pem", "secret")
    assert "the private key needs its ssl.key.password" in refused(pem_file(file))
    wrong = TlsConfig(ssl_keystore_type="PEM", ssl_keystore_location=str(file), ssl_key_password="xyzzy")
    told = refused(wrong)
    assert "does not open with ssl.key.password" in told and "xyzzy" not in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no PEM private key"),
        (BROKER.key_pem(), "has no certificate"),
        (OTHER.key_pem() + BROKER.chain_pem(), "does not belong to the first certificate, CN=broker"),
        (BROKER.key_pem() + pem_of(BROKER.certificate)[:200], "has no certificate"),
        (BROKER.key_pem() + pem_of(BROKER.certificate).replace("MII", "AAA"), "has a damaged certificate"),
    ],
)
def test_a_pem_file_that_is_not_whole_is_refused(tmp_path, text, told):
    (tmp_path / "broker.pem").write_text(text)
    assert told in refused(pem_file(tmp_path / "broker.pem"))


def test_a_missing_file_and_a_missing_setting_are_named(tmp_path):
    assert "cannot be read: No such file" in refused(pem_file(tmp_path / "gone.pem"))
    assert refused(TlsConfig()).startswith("ssl.keystore.location=")


def test_a_pem_store_has_one_source_and_no_password(tmp_path):
    file = str(BROKER.write_pem(tmp_path / "broker.pem"))
    both = TlsConfig(ssl_keystore_type="PEM", ssl_keystore_location=file, ssl_keystore_key=BROKER.key_pem())
    told = refused(both)
    assert "give one of both" in told and "PRIVATE" not in told
    with_password = TlsConfig(ssl_keystore_type="PEM", ssl_keystore_location=file, ssl_keystore_password="x")
    assert "a PEM store has no password" in refused(with_password)


def test_a_new_certificate_keeps_its_names_unless_settings_allow_others(tmp_path):
    def material(issued):
        return read_key(pem_file(issued.write_pem(tmp_path / "broker.pem")), read)

    before, same = material(BROKER), material(AUTHORITY.issue("broker"))
    assert changed_names(before, same, TlsConfig()) is None
    renamed = material(OTHER)
    assert "ssl.allow.dn.changes=true" in changed_names(before, renamed, TlsConfig())
    assert changed_names(before, renamed, TlsConfig(ssl_allow_dn_changes=True)) is None
    fewer = material(AUTHORITY.issue("broker", hosts=("localhost",)))
    assert "127.0.0.1, which needs ssl.allow.san.changes=true" in changed_names(before, fewer, TlsConfig())
    assert changed_names(before, fewer, TlsConfig(ssl_allow_san_changes=True)) is None


def test_a_new_certificate_may_write_its_name_with_other_letters_and_spaces(tmp_path):
    """Kafka compares X500Principal, which ignores case and repeated spaces."""

    def material(name):
        return read_key(pem_file(AUTHORITY.issue(name).write_pem(tmp_path / "broker.pem")), read)

    before = material("Broker  One")
    assert changed_names(before, material("broker one"), TlsConfig()) is None
    assert "changes from CN=Broker" in changed_names(before, material("brokerone"), TlsConfig())


def test_a_certificate_of_the_chain_that_no_peer_needs_is_no_reason_to_refuse(tmp_path):
    """An old root beside the new one of the same name, and a certificate that signs nothing."""
    now_ms = int(time.time() * 1000)
    root = AUTHORITY.issue(AUTHORITY_NAME, begins_days=-9, ends_days=-2)
    stray = AUTHORITY.issue("Stray", begins_days=-9, ends_days=-2)
    file = BROKER.write_pem(tmp_path / "broker.pem")
    with file.open("a") as chain:
        chain.write(pem_of(root.certificate) + pem_of(stray.certificate))
    material = read_key(pem_file(file), read)
    assert len(material.chain) == 4 and material.why_refused(now_ms) is None and material.expires_ms > now_ms


def test_an_issuer_that_has_expired_is_a_reason_unless_peers_trust_another(tmp_path):
    material = read_key(pem_file(AUTHORITY.issue("broker", ends_days=60).write_pem(tmp_path / "broker.pem")), read)
    why = material.why_refused(int(time.time() * 1000) + 40 * 86_400_000)
    assert f"the certificate CN={AUTHORITY_NAME} expired on" in why
    assert why.endswith("unless they trust another of its name")


def test_the_chain_of_a_pkcs12_file_has_the_issuer_that_signed_not_another_of_its_name(tmp_path):
    """An authority that has a new key keeps its name; a peer that gets the new certificate alone trusts nothing."""
    others = [Authority(AUTHORITY_NAME).certificate for _ in range(2)]
    key = NoEncryption()
    for number, store in enumerate(([AUTHORITY.certificate, *others], [*others, AUTHORITY.certificate])):
        file = tmp_path / f"{number}.p12"
        file.write_bytes(pkcs12.serialize_key_and_certificates(b"broker", BROKER.key, BROKER.certificate, store, key))
        config = TlsConfig(ssl_keystore_type="PKCS12", ssl_keystore_location=str(file))
        assert read_key(config, read).chain == (BROKER.certificate, AUTHORITY.certificate)


def test_another_issuer_of_the_same_name_says_nothing_of_when_peers_refuse(tmp_path):
    """Another key, and another kind of key; the metric and its alert are about the issuer that signed."""
    issued = [AUTHORITY.issue(AUTHORITY_NAME, kind=kind, ends_days=300).certificate for kind in (ECDSA, RSA)]
    file = BROKER.write_pem(tmp_path / "broker.pem")
    with file.open("a") as chain:
        chain.write("".join(map(pem_of, issued)))
    assert read_key(pem_file(file), read).path == (BROKER.certificate, AUTHORITY.certificate)
