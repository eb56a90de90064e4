"""The SASL settings of a listener, under Kafka's names (https://kafka.apache.org/documentation/#brokerconfigs_sasl).

`listener.name.NAME.sasl.x` sets one for the listener NAME, and `sasl.x` for all others. Some are of one mechanism too:
`listener.name.NAME.scram-sha-512.connections.max.reauth.ms`. JAAS text always is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.security.listener_settings import names_of_listener, properties_of_listener, split_name
from broker.security.sasl.assertion_config import ASSERTION_SETTINGS
from broker.security.sasl.exchange import GSSAPI, OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from broker.security.sasl.jaas import LoginModule, parse_jaas
from broker.security.sasl.token_rules import (
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    TOKEN_URL,
    KeySource,
    TokenRules,
    check_handler,
    check_token_url,
)
from idgen.settings import (
    InvalidSetting,
    at_least,
    check_settings,
    from_properties,
    parse_setting,
    setting,
    settings_of,
)

JAAS, MAX_REAUTH = "sasl.jaas.config", "connections.max.reauth.ms"
_MODULES = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
KEY_SET_URL, CALLBACK_HANDLER = "sasl.oauthbearer.jwks.endpoint.url", "sasl.server.callback.handler.class"
LOGIN_HANDLER = "sasl.login.callback.handler.class"
_OAUTH = "sasl.oauthbearer."
_TOKENS = (TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE, LOGIN_HANDLER, *ASSERTION_SETTINGS)
_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
_OLD_VALIDATOR = _VALIDATOR.replace("OAuthBearerV", "secured.OAuthBearerV")
_USER = "user_"  # begins the options of PlainLoginModule that have the password of a user
_PREFIXED = f"give it as listener.name.NAME.MECHANISM.{JAAS}, of one listener and mechanism, as in Kafka"
_GSSAPI = f"GSSAPI (Kerberos) is not served: give {SCRAM_SHA_512}, {SCRAM_SHA_256}, {PLAIN} or {OAUTHBEARER}"


def _url(value: str) -> str | None:
    is_known = value.startswith(("https://", "http://", "file:///"))
    return None if is_known else "must be https://..., http://... or file:///..."


def _callback_handler(value: str) -> str | None:
    if value in (_VALIDATOR, _OLD_VALIDATOR):
        return None
    return "a class in Java cannot be asked, so that it would check no password; leave it out"


@dataclass(frozen=True, kw_only=True)
class SaslConfig:
    """SASL settings of one listener."""

    sasl_enabled_mechanisms: str = setting(
        "sasl.enabled.mechanisms",
        GSSAPI,
        f"Mechanisms by which clients prove who they are: {', '.join(_MODULES)}. GSSAPI, Kafka's default, is not "
        "served, so that a listener of SASL_PLAINTEXT or SASL_SSL needs this setting.",
    )
    sasl_jaas_config: str | None = setting(
        JAAS,
        None,
        "JAAS text of one listener and mechanism, as listener.name.NAME.plain.sasl.jaas.config. PlainLoginModule has "
        'a password for each user: user_ada="...". username, password, clientId and clientSecret are those of the '
        "broker as a client of other brokers.",
        check=lambda value: _PREFIXED,
    )
    connections_max_reauth_ms: int = setting(
        MAX_REAUTH,
        0,
        "How long a session lasts; a client must authenticate again before its end (KIP-368), or its connection is "
        "closed at its next request. 0 is without an end.",
        check=at_least(0),
        unit="ms",
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        524_288,
        "Largest request or token of a client that is not authenticated yet.",
        check=at_least(0),
        unit="bytes",
    )

    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        KEY_SET_URL,
        None,
        "Where the identity provider publishes the keys that sign tokens of OAUTHBEARER, a JSON Web Key Set: "
        "https://..., http://... or file:///...",
        check=_url,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "How often these keys are fetched again.",
        check=at_least(1),
        unit="ms",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        100,
        "The pause after a failed fetch of the keys; it doubles with each further one.",
        check=at_least(1),
        unit="ms",
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        10_000,
        "The longest such pause.",
        check=at_least(1),
        unit="ms",
    )
    sasl_oauthbearer_expected_audience: str = setting(
        "sasl.oauthbearer.expected.audience",
        "",
        "Audiences, with a comma between, of which a token must name one. Without, a token must name none.",
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        "sasl.oauthbearer.expected.issuer", None, "The issuer of tokens; without, it is not checked."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "How far the clock of the identity provider may be off.",
        check=at_least(0),
        unit="s",
    )
    sasl_oauthbearer_scope_claim_name: str = setting(
        "sasl.oauthbearer.scope.claim.name", "scope", "The claim with the scopes of a token."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sasl.oauthbearer.sub.claim.name", "sub", "The claim with the user of a token."
    )
    sasl_server_callback_handler_class: str | None = setting(
        CALLBACK_HANDLER,
        None,
        f"Of OAUTHBEARER, Kafka's {_VALIDATOR}; the tokens are checked in the same way without it.",
        check=_callback_handler,
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        TOKEN_URL,
        None,
        "Where a broker that logs in to other brokers by OAUTHBEARER gets its tokens: https://... or http://..., the "
        "token endpoint of an identity provider, or file:///..., a file that is read at each login.",
        check=check_token_url,
    )
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(
        CLIENT_ID, None, "The id by which the identity provider knows the broker, as clientId in JAAS text."
    )
    sasl_oauthbearer_client_credentials_client_secret: str | None = setting(
        CLIENT_SECRET, None, "The secret of that id, as clientSecret in JAAS text."
    )
    sasl_oauthbearer_scope: str | None = setting(
        SCOPE, None, "The scope that the broker asks the identity provider for, as scope in JAAS text."
    )
    sasl_login_callback_handler_class: str | None = setting(
        LOGIN_HANDLER,
        None,
        "Of OAUTHBEARER, Kafka's OAuthBearerLoginCallbackHandler; tokens are taken in the same way without it.",
        check=check_handler,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def key_source(self) -> KeySource:
        """The place of the keys of OAUTHBEARER."""
        return KeySource(
            self.sasl_oauthbearer_jwks_endpoint_url or "",
            self.sasl_oauthbearer_jwks_endpoint_refresh_ms,
            self.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
            self.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )

    @property
    def token_rules(self) -> TokenRules:
        """The demands on the tokens of OAUTHBEARER."""
        return TokenRules(
            frozenset(part for part in map(str.strip, self.sasl_oauthbearer_expected_audience.split(",")) if part),
            self.sasl_oauthbearer_expected_issuer,
            self.sasl_oauthbearer_clock_skew_seconds * 1_000,
            self.sasl_oauthbearer_scope_claim_name,
            self.sasl_oauthbearer_sub_claim_name,
        )

    @property
    def mechanisms(self) -> list[str]:
        return list(dict.fromkeys(part for part in map(str.strip, self.sasl_enabled_mechanisms.split(",")) if part))


SASL_SETTINGS = frozenset((*(setting.name for setting in settings_of(SaslConfig)), *ASSERTION_SETTINGS))


@dataclass(frozen=True)
class ListenerSasl:
    """The mechanisms of a listener, the passwords that its JAAS text has, and its limits."""

    config: SaslConfig
    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)
    """The passwords of PLAIN, by user."""
    max_reauth_ms: Mapping[str, int]
    """`connections.max.reauth.ms` by mechanism."""
    is_over_tls: bool = False
    """True for SASL_SSL."""


def of_one_mechanism(own: str) -> tuple[str, str] | None:
    """Return ("scram-sha-512", "sasl.jaas.config") for such a name without its listener, None for any other."""
    mechanism, _, name = own.partition(".")
    is_of_mechanism = name in (JAAS, MAX_REAUTH, CALLBACK_HANDLER, LOGIN_HANDLER) or name.startswith(_OAUTH)
    is_known = is_of_mechanism and name in SASL_SETTINGS and mechanism.upper() in _KNOWN
    return (mechanism, name) if is_known else None


_KNOWN = (*_MODULES, GSSAPI)


def sasl_of(listener: str, properties: Mapping[str, str], is_over_tls: bool = False) -> ListenerSasl:
    """Return the SASL settings of a listener: its own go before those of all. Raise InvalidSetting."""
    own = names_of_listener(listener, properties, SASL_SETTINGS)
    texts = _of_mechanisms(listener, properties)
    of_tokens = {name: given for (mechanism, name), given in texts.items() if mechanism == OAUTHBEARER}
    names = own | {name: given for name, (given, _) in of_tokens.items()}
    try:
        config = from_properties(
            SaslConfig,
            properties_of_listener(listener, properties, SASL_SETTINGS)
            | {name: text for name, (_, text) in of_tokens.items() if name not in (JAAS, MAX_REAUTH)},
        )
    except InvalidSetting as error:
        raise InvalidSetting(names.get(error.name, error.name), error.value, error.wanted) from None
    name = own.get("sasl.enabled.mechanisms", "sasl.enabled.mechanisms")
    mechanisms = config.mechanisms
    if not mechanisms:
        raise InvalidSetting(name, config.sasl_enabled_mechanisms, f"the listener {listener} needs a mechanism")
    for mechanism in mechanisms:
        if mechanism not in _MODULES:
            wrong = _GSSAPI if mechanism == GSSAPI else f"{mechanism} is not served: give any of {', '.join(_MODULES)}"
            raise InvalidSetting(name, config.sasl_enabled_mechanisms, wrong)
    if OAUTHBEARER in mechanisms and config.sasl_oauthbearer_jwks_endpoint_url is None:
        wanted = "OAUTHBEARER needs the keys of the identity provider: give the URL of its JSON Web Key Set"
        raise InvalidSetting(names.get(KEY_SET_URL, KEY_SET_URL), "", wanted)
    modules = {mechanism: _module(*texts[mechanism, JAAS]) for mechanism in mechanisms if (mechanism, JAAS) in texts}
    for mechanism, module in modules.items():
        if module.name != _MODULES[mechanism]:
            raise InvalidSetting(texts[mechanism, JAAS][0], "(hidden)", f"{mechanism} has {_MODULES[mechanism]}")
    return ListenerSasl(
        config,
        tuple(mechanisms),
        _passwords(listener, texts, modules[PLAIN] if PLAIN in modules else None) if PLAIN in mechanisms else {},
        {mechanism: _max_reauth_ms(texts.get((mechanism, MAX_REAUTH)), config) for mechanism in mechanisms},
        is_over_tls,
    )


def _of_mechanisms(listener: str, properties: Mapping[str, str]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (name as given, text) of each setting of one mechanism, by mechanism and setting."""
    texts = {}
    for name, text in properties.items():
        parts = split_name(name)
        of_mechanism = of_one_mechanism(parts[1]) if parts is not None and parts[0] == listener else None
        if of_mechanism is not None:
            texts[of_mechanism[0].upper(), of_mechanism[1]] = name, text
    return texts


def tokens_of(listener: str, properties: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return (name as given, text) of the settings by which a broker gets tokens as a client, by their Kafka names."""
    own = names_of_listener(listener, properties, _TOKENS)
    names = {name: name for name in _TOKENS if name in properties} | own
    given = {name: (given, properties[given]) for name, given in names.items()}
    texts = _of_mechanisms(listener, properties)
    return given | {name: texts[OAUTHBEARER, name] for name in _TOKENS if (OAUTHBEARER, name) in texts}


def jaas_of(listener: str, mechanism: str, properties: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the name and the JAAS text of a mechanism at a listener; the text is None if it is not given."""
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS}"
    return _of_mechanisms(listener, properties).get((mechanism, JAAS), (name, None))


def _module(name: str, text: str) -> LoginModule:
    try:
        return parse_jaas(text)
    except ValueError as error:
        raise InvalidSetting(name, "(hidden)", str(error)) from None


def _passwords(
    listener: str, texts: Mapping[tuple[str, str], tuple[str, str]], module: LoginModule | None
) -> dict[str, str]:
    name = f"listener.name.{listener.lower()}.plain.{JAAS}"
    wanted = f'{_MODULES[PLAIN]} required user_ada="...";'
    if module is None:
        raise InvalidSetting(name, "", f"PLAIN needs the passwords of users: set it to {wanted}")
    users = {
        option.removeprefix(_USER): password for option, password in module.options.items() if option.startswith(_USER)
    }
    if not users:
        raise InvalidSetting(texts[PLAIN, JAAS][0], "(hidden)", f"it has no user, so that none can log in: {wanted}")
    return users


def _max_reauth_ms(given: tuple[str, str] | None, config: SaslConfig) -> int:
    if given is None:
        return config.connections_max_reauth_ms
    name, text = given
    of_all = next(setting for setting in settings_of(SaslConfig) if setting.name == MAX_REAUTH)
    own = of_all._replace(name=name)
    value: int = parse_setting(own, text)
    wrong = own.check(value) if own.check else None
    if wrong is not None:
        raise InvalidSetting(name, text, wrong)
    return value
