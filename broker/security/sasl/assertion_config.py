"""The settings of assertions, by which a client proves itself to an identity provider (KIP-1139, KIP-1258).

An assertion is a signed token (RFC 7523). It is in a file, or the client makes one for each request.
"""

from dataclasses import dataclass
from typing import Any

from idgen.settings import InvalidSetting, at_least, check_settings, setting, settings_of

RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
ASSERTION_FILE = "sasl.oauthbearer.assertion.file"
KEY_FILE = "sasl.oauthbearer.assertion.private.key.file"
PASSPHRASE = "sasl.oauthbearer.assertion.private.key.passphrase"
TEMPLATE_FILE = "sasl.oauthbearer.assertion.template.file"
CLAIM_ISSUER = "sasl.oauthbearer.assertion.claim.iss"
RS256, ES256 = ALGORITHMS = "RS256", "ES256"  # those of Kafka

_PACKAGE = "org.apache.kafka.common.security.oauthbearer."
BY_DEFAULT = f"{_PACKAGE}DefaultJwtRetriever"
FROM_FILE = f"{_PACKAGE}FileJwtRetriever"
BY_CLIENT_CREDENTIALS = f"{_PACKAGE}ClientCredentialsJwtRetriever"
BY_JWT_BEARER = f"{_PACKAGE}JwtBearerJwtRetriever"
_RETRIEVERS = BY_DEFAULT, FROM_FILE, BY_CLIENT_CREDENTIALS, BY_JWT_BEARER


def _a_retriever(value: str) -> str | None:
    return None if value in _RETRIEVERS else f"another class in Java cannot be used; give {' or '.join(_RETRIEVERS)}"


def _an_algorithm(value: str) -> str | None:
    return None if value.upper() in ALGORITHMS else f"must be one of {', '.join(ALGORITHMS)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class AssertionConfig:
    """Settings of a client's assertion. A broker that logs in to other brokers is such a client."""

    sasl_oauthbearer_jwt_retriever_class: str = setting(
        RETRIEVER,
        BY_DEFAULT,
        "How a client that logs in by OAUTHBEARER gets tokens, as one of Kafka's classes. By default a URL of file: is "
        "a file, and another one takes the client credentials grant; JwtBearerJwtRetriever takes the JWT bearer grant.",
        check=_a_retriever,
    )
    sasl_oauthbearer_assertion_file: str | None = setting(
        ASSERTION_FILE,
        None,
        "A file with the assertion, read for each request; the other settings of assertions have no effect then.",
    )
    sasl_oauthbearer_assertion_private_key_file: str | None = setting(
        KEY_FILE, None, "A PEM file with the private key that signs assertions, read for each request."
    )
    sasl_oauthbearer_assertion_private_key_passphrase: str | None = setting(
        PASSPHRASE, None, "The password of that key."
    )
    sasl_oauthbearer_assertion_algorithm: str = setting(
        "sasl.oauthbearer.assertion.algorithm",
        RS256,
        f"How the key signs: {RS256} with a key of RSA, or {ES256} with one of the curve P-256.",
        check=_an_algorithm,
    )
    sasl_oauthbearer_assertion_template_file: str | None = setting(
        TEMPLATE_FILE,
        None,
        'A file with more of the assertion, as JSON: {"header": {...}, "payload": {...}}, read for each request.',
    )
    sasl_oauthbearer_assertion_claim_iss: str | None = setting(
        CLAIM_ISSUER,
        None,
        "The issuer in the assertion. With it, or with a file of the assertion, the client credentials grant needs no "
        "secret.",
    )
    sasl_oauthbearer_assertion_claim_sub: str | None = setting(
        "sasl.oauthbearer.assertion.claim.sub", None, "The subject in the assertion."
    )
    sasl_oauthbearer_assertion_claim_aud: str | None = setting(
        "sasl.oauthbearer.assertion.claim.aud", None, "The audience in the assertion."
    )
    sasl_oauthbearer_assertion_claim_exp_seconds: int = setting(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        300,
        "How long an assertion is valid from now on.",
        check=at_least(0),
        unit="s",
    )
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = setting(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        60,
        "Since when it has been valid, before now.",
        check=at_least(0),
        unit="s",
    )
    sasl_oauthbearer_assertion_claim_jti_include: bool = setting(
        "sasl.oauthbearer.assertion.claim.jti.include",
        False,
        "Whether each assertion has an id of its own, by which a provider refuses to take it twice.",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def is_jwt_bearer(self) -> bool:
        """Return True if the assertion itself is the grant (RFC 7523, section 2.1)."""
        return self.sasl_oauthbearer_jwt_retriever_class == BY_JWT_BEARER

    @property
    def replaces_secret(self) -> bool:
        """Return True if the client credentials grant takes the assertion in place of a secret (KIP-1258)."""
        return self.sasl_oauthbearer_assertion_file is not None or self.sasl_oauthbearer_assertion_claim_iss is not None

    @property
    def claims(self) -> dict[str, Any]:
        """The claims that are set: aud, iss and sub."""
        claims = {
            "aud": self.sasl_oauthbearer_assertion_claim_aud,
            "iss": self.sasl_oauthbearer_assertion_claim_iss,
            "sub": self.sasl_oauthbearer_assertion_claim_sub,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def check_source(self) -> None:
        """Raise InvalidSetting if no assertion can be made, because there is neither a key nor a file of it."""
        if self.sasl_oauthbearer_assertion_file is None and self.sasl_oauthbearer_assertion_private_key_file is None:
            wanted = f"an assertion needs the private key that signs it; or give {ASSERTION_FILE}, which has it signed"
            raise InvalidSetting(KEY_FILE, "", wanted)

    def check_url(self, name: str, url: str | None) -> None:
        """Raise InvalidSetting if the retriever does not get tokens from this URL, which the setting `name` has."""
        retriever = self.sasl_oauthbearer_jwt_retriever_class
        if retriever == BY_DEFAULT:
            return
        wanted = "file:///..." if retriever == FROM_FILE else "https://... or http://..."
        if url is None or url.startswith("file:") != (retriever == FROM_FILE):
            raise InvalidSetting(RETRIEVER, retriever, f"needs {name}={wanted}")


ASSERTION_SETTINGS = tuple(of_one.name for of_one in settings_of(AssertionConfig))
