"""A subject as Java writes it; the expected texts are of `X500Principal.getName()` of OpenJDK 17."""

from cryptography import x509
from cryptography.x509.oid import NameOID

from broker.security.distinguished_name import distinguished_name


def name(*attributes):
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])


def test_the_most_specific_part_comes_first():
    subject = name(
        (NameOID.COUNTRY_NAME, "NL"),
        (NameOID.ORGANIZATION_NAME, "Example, Inc."),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "Flights"),
        (NameOID.COMMON_NAME, "ada"),
    )
    assert distinguished_name(subject) == r"CN=ada,OU=Flights,O=Example\, Inc.,C=NL"


def test_parts_of_one_level_are_joined():
    level = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, "ada"), x509.NameAttribute(NameOID.USER_ID, "7")]
    )
    assert distinguished_name(x509.Name([level])) == "CN=ada+UID=7"


def test_an_attribute_without_a_name_in_java_is_written_by_its_number():
    subject = name((NameOID.COMMON_NAME, "ada"), (NameOID.EMAIL_ADDRESS, "a@b.c"))
    assert distinguished_name(subject) == "1.2.840.113549.1.9.1=#16056140622e63,CN=ada"
    long = name((NameOID.EMAIL_ADDRESS, "a" * 200))
    assert distinguished_name(long) == "1.2.840.113549.1.9.1=#1681c8" + "61" * 200
