"""Passwords in dynamic settings, encrypted as EncryptingPasswordEncoder of Apache Kafka 3.9.1 does it."""

import pytest

from broker.security.password_encoder import EncryptedPasswords
from idgen.settings import InvalidSetting

PASSWORD = 'pässword "x", y:z'
BY_KAFKA = (
    "initializationVector:HsWaR7eorN7cVtgqk3c/Ng==,keyLength:128,salt:4yuE1lchT50z9g3semp8iznK3FRGVyEnBjFzMOFprBjt7uP9"
    "CH5gfnNcnKmSdPw+2T/AQGfPcCna5mQy+tdZFgKidHOiuWVN/D9iSTSJaAyO6cX6+pXeZKfNIhlJgftH+NFFom6bX1e+yZU+uPHz+nKuD1sTdFaV"
    "ofm+NC0xnp7UWLduVW+3VhX5r6tg8ennNqCDOQbexNt+YmjkCDJXBj5AJuk1JeRo0humf08tt1aA/q6AoTNz4yn8h1QBHPMK+G5lnyDPjlqybhz2"
    "0fnik8p9whfojt6cUHa0T1mU6qGkKTKECGDktvCeQLjL+npv626qVREAAEgutG5JUvvrdQ==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,"
    "cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:17,encryptedPassword:X3uNM12H7xeRZfT9ubltOiP/a"
    "DFpBTcyzP3/BbarA2Q="
)
BY_KAFKA_IN_GCM = (
    "initializationVector:LP91tH9hKTT8KdxU,keyLength:128,salt:21Oc16Kc9EaotLR4WFVDdv8IWF0iaLEFdBnHgokUVjVjHJm8IQj1df5Nq"
    "IVp6t4EXWVcSVOsjmbndK9UQah4pkd3b4UpazOyRsc3bmHYDIjET5I1mIt38tBGtVNaIjImqOLNEbQc+9e//o5mD0jw37ejtRg3227jMtXeW0rdU9"
    "GzFeetzf/cqdfi/Gn631m3ggiykB0ZQXFXtfdwlDirEpcw+GmVEBDUJ/OLlATLFEOKoQKX8lB5zrkw9uMgK8Am7gxhbFo93W4kYyrMVhu7VyyF23u"
    "5G+Gto2se66INBigKPjmkhzVtX8dkA1WvxiRs7NcCLG0VC+6BgVjFw+RW5g==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgor"
    "ithm:AES/GCM/NoPadding,authenticationTagLength:128,iterations:4096,passwordLength:8,encryptedPassword:IbnorRl2476J"
    "Nr8dpTbGb2++1BZhmOFScw=="
)


def passwords(secret="encoder-secret", old_secret=None):
    return EncryptedPasswords(secret, bytes, old_secret)


def test_a_password_that_kafka_encoded_is_read():
    assert passwords().decode(BY_KAFKA) == PASSWORD
    assert passwords().decode(BY_KAFKA_IN_GCM) == "pässword"


def test_an_encoded_password_has_the_fields_that_kafka_reads_and_no_plain_text():
    text = passwords().encode("ssl.key.password", PASSWORD)
    theirs = dict(part.rpartition(":")[::2] for part in BY_KAFKA.split(","))
    ours = dict(part.rpartition(":")[::2] for part in text.split(","))
    assert ours.keys() == theirs.keys() and {len(ours[name]) == len(theirs[name]) for name in ours} == {True}
    same = "keyLength", "keyFactoryAlgorithm", "cipherAlgorithm", "iterations", "passwordLength"
    assert all(ours[name] == theirs[name] for name in same)
    assert passwords().decode(text) == PASSWORD and PASSWORD not in text


def test_the_secret_of_before_still_reads_its_passwords():
    assert passwords("new-secret", "encoder-secret").decode(BY_KAFKA) == PASSWORD


@pytest.mark.parametrize(
    "text",
    ["", "plain text", "a:b", BY_KAFKA[:-8], BY_KAFKA.replace("4096", "0"), BY_KAFKA.replace("4096", "9" * 12),
     BY_KAFKA.replace("AES/CBC", "DES/CBC"), BY_KAFKA.replace("Length:17", "Length:16"),
     BY_KAFKA.replace("keyLength:128", "keyLength:64"), BY_KAFKA_IN_GCM.replace("IbnorRl2", "AAAAAAAA")],
)  # fmt: skip
def test_text_that_does_not_decode_is_refused_and_not_shown(text):
    with pytest.raises(ValueError, match="it does not decode with password.encoder.secret"):
        passwords().decode(text)


def test_another_secret_decodes_nothing():
    for text in (BY_KAFKA, BY_KAFKA_IN_GCM):
        with pytest.raises(ValueError, match="does not decode"):
            passwords("guessed").decode(text)


def test_without_a_secret_no_password_is_kept():
    with pytest.raises(InvalidSetting, match="Password encoder secret not configured: set password.encoder.secret"):
        passwords(None).encode("listener.name.ssl.ssl.key.password", "marked")
    with pytest.raises(ValueError, match="password.encoder.secret is not set"):
        passwords(None).decode(BY_KAFKA)
