"""The settings of a client's security, under the names of Kafka's clients.

https://kafka.apache.org/documentation/#producerconfigs has them. The stores and suites of TLS are read as those of a
listener (`broker.security.tls_config`). A name that Kafka does not have, or that is not served, is refused with what
would be right. No error and no `repr` shows a secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.client.security.token_request import JWT_BEARER, TokenRequest
from broker.security.references import has_reference
from broker.security.sasl.assertion_config import ASSERTION_SETTINGS, CLAIM_ISSUER, AssertionConfig
from broker.security.sasl.exchange import GSSAPI, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, SERVED
from broker.security.sasl.jaas import LoginModule, parse_jaas
from broker.security.sasl.token_rules import CLIENT_ID, CLIENT_SECRET, SCOPE, TOKEN_URL, check_handler, check_token_url
from broker.security.tls_config import TlsConfig
from idgen.settings import InvalidSetting, Setting, check_settings, from_properties, parse_bool, setting, settings_of

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = PROTOCOLS = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
HTTPS = "https"
PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
USER, PASSWORD = "sasl.username", "sasl.password"
LOGIN_HANDLER = "sasl.login.callback.handler.class"

TLS_SETTINGS = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
)
"""Settings of a listener that a client has too."""

_LOGIN = "org.apache.kafka.common.security."
_MODULES = {
    PLAIN: f"{_LOGIN}plain.PlainLoginModule",
    SCRAM_SHA_256: f"{_LOGIN}scram.ScramLoginModule",
    SCRAM_SHA_512: f"{_LOGIN}scram.ScramLoginModule",
    OAUTHBEARER: f"{_LOGIN}oauthbearer.OAuthBearerLoginModule",
}
_NOT_SERVED = {
    "ssl.protocol": "is Java's; give ssl.enabled.protocols",
    "ssl.provider": "is Java's; leave it out",
    "ssl.engine.factory.class": "a class in Java cannot be used; leave it out",
    "ssl.keymanager.algorithm": "is Java's; leave it out",
    "ssl.trustmanager.algorithm": "is Java's; leave it out",
    "ssl.secure.random.implementation": "is Java's; leave it out",
    "sasl.client.callback.handler.class": "a class in Java cannot be used; leave it out",
    "sasl.login.class": "a class in Java cannot be used; leave it out",
    "sasl.oauthbearer.jwt.validator.class": "a class in Java cannot be used; leave it out, since brokers check tokens",
    "ssl.ca.location": "is librdkafka's; give ssl.truststore.location, with ssl.truststore.type=PEM",
    "ssl.certificate.location": "is librdkafka's; give ssl.keystore.location, with ssl.keystore.type=PEM",
    "ssl.key.location": "is librdkafka's; give ssl.keystore.location, with ssl.keystore.type=PEM",
    "sasl.mechanisms": "is librdkafka's; give sasl.mechanism",
}
_HIDDEN = "(hidden)"


def _protocol(value: str) -> str | None:
    return None if value.upper() in PROTOCOLS else f"must be one of {', '.join(PROTOCOLS)}"


def _mechanism(value: str) -> str | None:
    if value in SERVED:
        return None
    given = "GSSAPI (Kerberos) is not served" if value == GSSAPI else f"{value} is not served"
    return f"{given}: give one of {', '.join(SERVED)}"


def _identification(value: str) -> str | None:
    is_known = value.lower() in (HTTPS, "", "none")
    return None if is_known else f"must be {HTTPS}, or empty, which checks no name"


class Credentials(NamedTuple):
    """The user and password of a login, or the token of OAUTHBEARER, the file that has it or the request for one."""

    user: str = ""
    password: str = ""
    token: str | None = None
    token_file: str | None = None
    token_request: TokenRequest | None = None

    def __repr__(self) -> str:
        return f"Credentials({_HIDDEN})"


@dataclass(frozen=True, kw_only=True, repr=False)
class ClientSecurityConfig:
    """Settings of a client's security. Raise InvalidSetting if they cannot work."""

    security_protocol: str = setting(
        PROTOCOL,
        PLAINTEXT,
        f"what protects the connections: {', '.join(PROTOCOLS)}",
        check=_protocol,
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        HTTPS,
        "https: a broker's certificate must have the name by which it is reached; empty: any name will do",
        check=_identification,
    )
    sasl_mechanism: str = setting(
        MECHANISM,
        GSSAPI,
        f"the mechanism of the login: {', '.join(SERVED)}; Kafka's default, GSSAPI, is not served",
    )
    sasl_jaas_config: str | None = setting(
        JAAS, None, 'the login as JAAS text: MODULE required username="..." password="...";'
    )
    sasl_username: str | None = setting(USER, None, "the user, in place of JAAS text, as librdkafka has it")
    sasl_password: str | None = setting(PASSWORD, None, "the password of `sasl.username`")
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        TOKEN_URL,
        None,
        "where tokens of OAUTHBEARER are: https://... or http://..., the token endpoint of an identity provider, or "
        "file:///..., a file that is read at each login",
        check=check_token_url,
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        CLIENT_ID, None, "the id by which an identity provider knows this client, as clientId in JAAS text"
    )
    sasl_oauthbearer_client_credentials_client_secret: str | None = setting(
        CLIENT_SECRET, None, "the secret of that id, as clientSecret in JAAS text"
    )
    sasl_oauthbearer_scope: str | None = setting(
        SCOPE, None, "the scope that the client asks the identity provider for, as scope in JAAS text"
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        "sasl.oauthbearer.header.urlencode",
        False,
        "whether id and secret are URL-encoded for the identity provider, as RFC 6749 has it",
    )
    sasl_login_callback_handler_class: str | None = setting(
        LOGIN_HANDLER,
        None,
        "of OAUTHBEARER, Kafka's OAuthBearerLoginCallbackHandler; tokens are taken in the same way without it",
        check=check_handler,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def __repr__(self) -> str:
        return f"ClientSecurityConfig({self.security_protocol}, {self.sasl_mechanism})"


@dataclass(frozen=True, repr=False)
class SecuritySettings:
    """All settings of a client's security. Raise InvalidSetting if they cannot work together."""

    config: ClientSecurityConfig
    tls: TlsConfig
    assertion: AssertionConfig = AssertionConfig()
    has_token_function: bool = False
    """True if a function gives the token of OAUTHBEARER."""

    def __post_init__(self) -> None:
        if self.asks_login:
            wrong = _mechanism(self.mechanism)
            if wrong is not None:
                raise InvalidSetting(MECHANISM, self.mechanism, wrong)
            self.credentials  # noqa: B018

    def __repr__(self) -> str:
        mechanism = f", {self.mechanism}" if self.asks_login else ""
        return f"SecuritySettings({self.protocol}{mechanism})"

    @property
    def protocol(self) -> str:
        return self.config.security_protocol.upper()

    @property
    def mechanism(self) -> str:
        return self.config.sasl_mechanism

    @property
    def is_tls(self) -> bool:
        return self.protocol in (SSL, SASL_SSL)

    @property
    def asks_login(self) -> bool:
        """Return True if each connection begins with a login."""
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def checks_name(self) -> bool:
        """Return True if a broker's certificate must have the name by which it is reached."""
        return self.config.ssl_endpoint_identification_algorithm.lower() == HTTPS

    @property
    def has_own_certificate(self) -> bool:
        """Return True if the client shows a certificate."""
        tls = self.tls
        texts = tls.ssl_keystore_location, tls.ssl_keystore_key, tls.ssl_keystore_certificate_chain
        return any(text is not None for text in texts)

    @property
    def credentials(self) -> Credentials:
        """The credentials of the login. Raise InvalidSetting."""
        config = self.config
        if config.sasl_jaas_config is not None:
            if config.sasl_username is not None or config.sasl_password is not None:
                raise InvalidSetting(JAAS, _HIDDEN, f"is given beside {USER} or {PASSWORD}: give one of both")
            return self._of_module(_module(self.mechanism, config.sasl_jaas_config))
        if self.mechanism == OAUTHBEARER:
            return self._token({})
        module = _MODULES[self.mechanism]
        if config.sasl_username is None or config.sasl_password is None:
            wanted = f'{self.mechanism} needs {module} required username="..." password="...";'
            raise InvalidSetting(JAAS, "", wanted)
        return Credentials(config.sasl_username, config.sasl_password)

    def _of_module(self, module: LoginModule) -> Credentials:
        options = module.options
        if self.mechanism == OAUTHBEARER:
            return self._token(options)
        if options.get("tokenauth", "").lower() == "true":
            raise InvalidSetting(JAAS, _HIDDEN, "tokenauth: delegation tokens are not served")
        missing = [name for name in ("username", "password") if not options.get(name)]
        if missing:
            raise InvalidSetting(JAAS, _HIDDEN, f'it has no {" and no ".join(missing)}: add {missing[0]}="..."')
        return Credentials(options["username"], options["password"])

    def _token(self, options: Mapping[str, str]) -> Credentials:
        url = self.config.sasl_oauthbearer_token_endpoint_url
        token = options.get("token")
        if sum((token is not None, url is not None, self.has_token_function)) != 1:
            wanted = f'give one of {TOKEN_URL}, token="..." in {JAAS}, and in Python a function as oauth_cb'
            raise InvalidSetting(MECHANISM, OAUTHBEARER, wanted)
        self.assertion.check_url(TOKEN_URL, url)
        if url is None or url.startswith("file:"):
            return Credentials(token=token, token_file=url and url.removeprefix("file://"))
        return Credentials(token_request=self._token_request(url, options))

    def _token_request(self, url: str, options: Mapping[str, str]) -> TokenRequest:
        """Return the request to an identity provider. The settings go before JAAS text, as in Kafka (KIP-1139).

        So does an assertion before a secret (KIP-1258).
        """
        config, assertion = self.config, self.assertion
        if assertion.is_jwt_bearer:
            assertion.check_source()
            return TokenRequest(url, scope=config.sasl_oauthbearer_scope, assertion=assertion, grant=JWT_BEARER)
        client_id = config.sasl_oauthbearer_client_credentials_client_id or options.get("clientId")
        secret = config.sasl_oauthbearer_client_credentials_client_secret or options.get("clientSecret")
        scope = config.sasl_oauthbearer_scope or options.get("scope")
        if assertion.replaces_secret:
            assertion.check_source()
            return TokenRequest(url, client_id or "", scope=scope, assertion=assertion)
        if not client_id:
            raise InvalidSetting(CLIENT_ID, "", f"{TOKEN_URL}={url} needs the id of this client")
        if not secret:
            wanted = f"{TOKEN_URL}={url} needs the secret of {client_id}, or {CLAIM_ISSUER} for an assertion"
            raise InvalidSetting(CLIENT_SECRET, "", wanted)
        encodes_login = config.sasl_oauthbearer_header_urlencode
        return TokenRequest(url, client_id, secret, scope, encodes_login=encodes_login)


CLIENT_SETTINGS = frozenset(
    (*(setting.name for setting in settings_of(ClientSecurityConfig)), *TLS_SETTINGS, *ASSERTION_SETTINGS)
)
"""The names of all settings of a client's security."""


def is_of_security(name: str) -> bool:
    """Return True for the name of a setting of security, known or not."""
    return name.startswith(("security.", "ssl.", "sasl."))


def why_unknown(name: str) -> str:
    """Return why a name is refused, and what would be right."""
    return _NOT_SERVED.get(name, "is no setting of a client's security")


def parse_security(properties: Mapping[str, str], has_token_function: bool = False) -> SecuritySettings:
    """Return the settings in these properties. Raise InvalidSetting, also for a name that is unknown."""
    _check_names(properties)
    given = {s.field: _value(s, properties[s.name]) for s in settings_of(ClientSecurityConfig) if s.name in properties}
    tls = from_properties(TlsConfig, {name: properties[name] for name in TLS_SETTINGS if name in properties})
    assertion = from_properties(AssertionConfig, properties)
    settings = SecuritySettings(ClientSecurityConfig(**given), tls, assertion, has_token_function)
    _refuse_unused(settings, properties)
    return settings


def check_properties(properties: Mapping[str, str], has_token_function: bool = False) -> None:
    """Raise InvalidSetting if these properties cannot work, as far as that shows before references are replaced."""
    _check_names(properties)
    if not any(map(has_reference, properties.values())):
        parse_security(properties, has_token_function)


def _check_names(properties: Mapping[str, str]) -> None:
    for name, text in properties.items():
        if name not in CLIENT_SETTINGS:
            raise InvalidSetting(name, _HIDDEN, why_unknown(name))
        if not isinstance(text, str):
            raise InvalidSetting(name, _HIDDEN, "must be text")


def _value(setting: Setting, text: str) -> Any:
    """Return a setting's value; spaces around a password are its own. Raise InvalidSetting."""
    if setting.type is bool:
        return parse_bool(setting.name, text.strip())
    return text if setting.name == PASSWORD else text.strip()


def _refuse_unused(settings: SecuritySettings, properties: Mapping[str, str]) -> None:
    """Raise InvalidSetting for a setting that the protocol does not use, because its user expects protection."""
    with_tls = SASL_SSL if settings.asks_login else SSL
    for prefix, is_used, protocol in (("ssl.", settings.is_tls, with_tls), ("sasl.", settings.asks_login, SASL_SSL)):
        unused = sorted(name for name in properties if name.startswith(prefix))
        if unused and not is_used:
            wanted = f"is not used by {PROTOCOL}={settings.protocol}; set {PROTOCOL}={protocol}"
            raise InvalidSetting(unused[0], _HIDDEN, wanted)
    if settings.has_token_function and settings.mechanism != OAUTHBEARER:
        raise InvalidSetting("oauth_cb", "(function)", f"needs {MECHANISM}={OAUTHBEARER}")


def _module(mechanism: str, text: str) -> LoginModule:
    try:
        module = parse_jaas(text)
    except ValueError as error:
        raise InvalidSetting(JAAS, _HIDDEN, str(error)) from None
    if module.name != _MODULES[mechanism]:
        raise InvalidSetting(JAAS, _HIDDEN, f"{mechanism} has {_MODULES[mechanism]}")
    return module
