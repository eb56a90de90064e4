"""References to secrets in the values of settings, as Kafka's config providers have them."""

import pytest

from broker.security.references import has_reference, resolve
from idgen.settings import InvalidSetting

FILES = {"/run/secrets.properties": "password=a\\tb\nother = x\n", "/run/secrets/password": "whole text\n"}


def read(location):
    if location not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[location]


def resolved(text):
    return resolve("sasl.password", text, read, {"ADA": "by environment"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${file:/run/secrets.properties:password}", "a\tb"),
        ("${dir:/run/secrets:password}", "whole text"),
        ("${env:ADA}", "by environment"),
        ('username="ada" password="${env:ADA}" x="${file:/run/secrets.properties:other}";',
         'username="ada" password="by environment" x="x";'),
        ("${vault:secret/ada:password} ${ADA} $ADA", "${vault:secret/ada:password} ${ADA} $ADA"),
    ],
)  # fmt: skip
def test_a_reference_is_replaced_by_its_value(text, value):
    assert resolved(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("${env:BOB}", "sasl.password=${env:BOB}: the environment has no BOB"),
        ("${file:/run/secrets.properties:pin}", "/run/secrets.properties has no property pin"),
        ("${file:/gone:pin}", "sasl.password=${file:/gone:pin}: the file cannot be read: No such file"),
        ("${file:/run/secrets/password}", "give ${file:FILE:KEY}, a property of a file, or ${dir:DIRECTORY:FILE}"),
        ("${dir:/run/secrets:..}", "'..' is no name of a file in /run/secrets"),
        ("marked ${dir:/run:secrets/password}", "'secrets/password' is no name of a file in /run"),
    ],
)
def test_a_reference_without_a_value_is_refused(text, reason):
    with pytest.raises(InvalidSetting) as error:
        resolved(text)
    assert reason in str(error.value) and "marked" not in str(error.value)


def test_a_value_with_a_reference_is_known():
    assert has_reference("a ${env:ADA}") and not has_reference("${ADA}")
