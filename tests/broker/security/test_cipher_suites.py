"""The versions and suites of TLS that a listener offers, by Java's names."""

import pytest

from broker.security.cipher_suites import SUITES_OF_TLS_1_3, offer

BOTH = ["TLSv1.2", "TLSv1.3"]


def test_without_suites_openssl_chooses():
    assert offer(BOTH, []) == (("TLSv1.2", "TLSv1.3"), ())


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA"),
    ],
)
def test_a_suite_of_tls_1_2_gets_its_openssl_name_and_leaves_tls_1_3_out(java, openssl):
    assert offer(BOTH, [java]) == (("TLSv1.2",), (openssl,))


def test_the_suites_of_tls_1_3_alone_leave_tls_1_2_out():
    assert offer(BOTH, list(SUITES_OF_TLS_1_3)) == (("TLSv1.3",), ())


def test_both_versions_are_offered_when_suites_of_both_are_named():
    suites = [*SUITES_OF_TLS_1_3, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
    assert offer(BOTH, suites) == (("TLSv1.2", "TLSv1.3"), ("ECDHE-ECDSA-AES128-GCM-SHA256",))


def test_some_suites_of_tls_1_3_are_refused_with_the_names_of_the_others():
    with pytest.raises(ValueError, match="add TLS_CHACHA20_POLY1305_SHA256, TLS_AES_128_GCM_SHA256, or name none"):
        offer(BOTH, ["TLS_AES_256_GCM_SHA384"])


@pytest.mark.parametrize("suite", ["TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", "AES"])
def test_a_suite_without_forward_secrecy_or_of_a_weak_cipher_is_refused_by_name(suite):
    with pytest.raises(ValueError, match=f"{suite} is not served"):
        offer(BOTH, [suite])


def test_old_versions_are_refused():
    with pytest.raises(ValueError, match="TLSv1.1 is not served: give TLSv1.2, TLSv1.3 or both"):
        offer(["TLSv1.1", "TLSv1.2"], [])


def test_suites_of_a_version_that_is_off_are_refused():
    with pytest.raises(ValueError, match="none of these suites belongs to TLSv1.3"):
        offer(["TLSv1.3"], ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"])
