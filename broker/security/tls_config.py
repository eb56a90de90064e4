"""The TLS settings of a listener, under Kafka's names (https://kafka.apache.org/documentation/#brokerconfigs_ssl).

`listener.name.NAME.ssl.x` sets one for the listener NAME, `flakelog.http.ssl.x` for the HTTP port,
`flakelog.ids.ssl.x` for the id service, and `ssl.x` for all others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.security.cipher_suites import SERVED, Offer, offer
from broker.security.listener_settings import errors_as_given, properties_of_listener
from broker.security.principal_rules import Rule, parse_rules
from idgen.settings import Check, InvalidSetting, check_settings, from_properties, one_of, setting, settings_of

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
STORE_TYPES = (PEM, PKCS12, JKS)
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
CLIENT_AUTH = (NONE, REQUESTED, REQUIRED)
HTTPS = "https"


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _accepted_by(parse: Callable[[str], object]) -> Check:
    def check(value: str) -> str | None:
        try:
            parse(value)
        except ValueError as error:
            return str(error)
        return None

    return check


def _store_type(value: str) -> str | None:
    return one_of(*STORE_TYPES)(value.upper())


def _client_auth(value: str) -> str | None:
    return one_of(*CLIENT_AUTH)(value.lower())


def _identification(value: str) -> str | None:
    is_known = value.lower() in (HTTPS, "", "none")
    return None if is_known else f"must be {HTTPS}, or empty, which checks no name"


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """TLS settings of one listener. Settings of stores without a file or PEM text are empty."""

    ssl_keystore_type: str = setting(
        "ssl.keystore.type",
        JKS,
        "PEM or PKCS12. JKS, Kafka's default, reads PKCS12 too, as Java does; a store of the old format is refused "
        "with the command that converts it.",
        check=_store_type,
    )
    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location", None, "File of the private key and its certificates; it is read again when it changes."
    )
    ssl_keystore_password: str | None = setting(
        "ssl.keystore.password", None, "Password of a PKCS12 file in ssl.keystore.location."
    )
    ssl_keystore_key: str | None = setting(
        "ssl.keystore.key", None, "Private key as PEM text (PKCS#8), instead of a file (KIP-651). It touches no disk."
    )
    ssl_keystore_certificate_chain: str | None = setting(
        "ssl.keystore.certificate.chain", None, "Certificates of ssl.keystore.key as PEM text, the broker's own first."
    )
    ssl_key_password: str | None = setting("ssl.key.password", None, "Password of the private key.")
    ssl_truststore_type: str = setting(
        "ssl.truststore.type", JKS, "PEM or PKCS12; JKS as in ssl.keystore.type.", check=_store_type
    )
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location", None, "File of the authorities that sign the certificates of clients."
    )
    ssl_truststore_password: str | None = setting(
        "ssl.truststore.password", None, "Password of a PKCS12 file in ssl.truststore.location."
    )
    ssl_truststore_certificates: str | None = setting(
        "ssl.truststore.certificates", None, "Certificates of these authorities as PEM text, instead of a file."
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        NONE,
        "Whether a client shows a certificate: required, requested (it may), or none.",
        check=_client_auth,
    )
    ssl_enabled_protocols: str = setting(
        "ssl.enabled.protocols", ",".join(SERVED), "Versions of TLS: TLSv1.2, TLSv1.3 or both."
    )
    ssl_cipher_suites: str = setting(
        "ssl.cipher.suites",
        "",
        "Suites by Java's names; empty for OpenSSL's defaults with forward secrecy. Name all three suites of TLSv1.3 "
        "or none, because Python cannot choose among them.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        HTTPS,
        "https: the certificate of another broker must have the name by which it is reached; empty: any name will do.",
        check=_identification,
    )
    ssl_principal_mapping_rules: str = setting(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        "How a client's distinguished name becomes its user (KIP-371): RULE:pattern/replacement/[LU],...,DEFAULT.",
        check=_accepted_by(parse_rules),
    )
    ssl_allow_dn_changes: bool = setting(
        "ssl.allow.dn.changes", False, "Whether a new certificate may have another distinguished name."
    )
    ssl_allow_san_changes: bool = setting(
        "ssl.allow.san.changes", False, "Whether a new certificate may lack alternative names that the old one has."
    )

    def __post_init__(self) -> None:
        check_settings(self)
        try:
            self.offer  # noqa: B018
        except ValueError as error:
            name = "ssl.cipher.suites" if self.ssl_cipher_suites else "ssl.enabled.protocols"
            value = self.ssl_cipher_suites or self.ssl_enabled_protocols
            raise InvalidSetting(name, value, str(error)) from None

    @property
    def offer(self) -> Offer:
        """The versions of TLS and the cipher suites that the listener offers."""
        return offer(_list(self.ssl_enabled_protocols), _list(self.ssl_cipher_suites))

    @property
    def rules(self) -> tuple[Rule, ...]:
        return parse_rules(self.ssl_principal_mapping_rules)

    @property
    def client_auth(self) -> str:
        return self.ssl_client_auth.lower()

    @property
    def checks_name(self) -> bool:
        """True if the certificate of another broker must have the name by which it is reached."""
        return self.ssl_endpoint_identification_algorithm.lower() == HTTPS

    @property
    def files(self) -> tuple[str, ...]:
        """The files whose change makes a new certificate or new authorities."""
        return tuple(file for file in (self.ssl_keystore_location, self.ssl_truststore_location) if file is not None)


def tls_of(listener: str, properties: Mapping[str, str]) -> TlsConfig:
    """Return the TLS settings of a listener: its own go before those of all. Raise InvalidSetting."""
    with errors_as_given(listener, properties, TLS_SETTINGS):
        return from_properties(TlsConfig, properties_of_listener(listener, properties, TLS_SETTINGS))


TLS_SETTINGS = frozenset(setting.name for setting in settings_of(TlsConfig))
