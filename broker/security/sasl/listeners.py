"""The mechanisms of a broker's listeners, under the settings that are altered at run time, and each client's begin.

An alteration that cannot work is refused before it is stored. Clients that are authenticated stay so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.security.sasl.authentication import Authentication
from broker.security.sasl.config import ListenerSasl, SaslConfig, sasl_of
from broker.security.sasl.exchange import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Mechanism,
    SaslExchange,
)
from broker.security.sasl.key_sets import KeySets
from broker.security.sasl.oauthbearer import OauthExchange
from broker.security.sasl.plain import Passwords, PlainExchange
from broker.security.sasl.scram import ScramCredential, ScramExchange
from broker.security.sasl.unknown_users import Credentials
from idgen.settings import InvalidSetting, from_properties

SCRAM_NUMBERS = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}
"""Kafka's numbers of the mechanisms, as AlterUserScramCredentials has them."""
SCRAM_MECHANISMS = {number: mechanism for mechanism, number in SCRAM_NUMBERS.items()}

CredentialsNow = Callable[[], Mapping[tuple[str, int], ScramCredential]]


@dataclass(slots=True)
class AuthenticationFigures:
    """Counts of authentications by outcome since the start, of those under way or waiting, and of expired sessions."""

    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    open: int = 0


class SaslListeners:
    """The listeners that ask who a client is, by name; `given` are the settings that the broker was started with.

    `secret` is the server's, `nonce` returns random text, and `report` takes a line.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        listeners: Mapping[str, ListenerSasl],
        secret: bytes,
        nonce: Callable[[], str],
        report: Callable[[str], None],
        key_sets: KeySets | None = None,
    ) -> None:
        self._given = given
        self._secret = secret
        self._nonce = nonce
        self._report = report
        self._key_sets = key_sets or KeySets()
        self.credentials: CredentialsNow = lambda: {}
        """Returns the SCRAM credentials that clients are checked against."""
        self.figures = AuthenticationFigures()
        self.config = from_properties(SaslConfig, given)
        """The settings under their names for all listeners."""
        self._scram = {
            mechanism: Credentials(mechanism, number, lambda: self.credentials(), secret)
            for mechanism, number in SCRAM_NUMBERS.items()
        }
        self._listeners = dict(listeners)
        self._mechanisms = {name: self._mechanisms_of(listener) for name, listener in listeners.items()}

    @staticmethod
    def none() -> "SaslListeners":
        """Return those of a broker without SASL."""
        return SaslListeners({}, {}, b"", str, lambda _: None)

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __contains__(self, listener: str) -> bool:
        return listener in self._mechanisms

    def begin(self, listener: str) -> Authentication:
        """Return the authentication of a new client."""
        return Authentication(lambda: self._mechanisms[listener])

    def is_over_tls(self, listener: str) -> bool:
        return self._listeners[listener].is_over_tls

    def max_receive_bytes(self, listener: str) -> int:
        return self._listeners[listener].config.sasl_server_max_receive_size

    # --- alterations ---------------------------------------------------------------------------------------------

    def check(self, altered: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless all listeners can use the settings with these alterations."""
        properties = {**self._given, **altered}
        from_properties(SaslConfig, properties)
        for name, listener in self._listeners.items():
            sasl_of(name, properties, listener.is_over_tls)

    def use(self, altered: Mapping[str, str]) -> None:
        """Use the settings with these alterations for logins from now on.

        A listener that cannot use them keeps its own, and a line says why.
        """
        properties = {**self._given, **altered}
        try:
            self.config = from_properties(SaslConfig, properties)
        except InvalidSetting as error:
            self._report(f"altered SASL settings are not used: {error}")
        for name, listener in self._listeners.items():
            try:
                settings = sasl_of(name, properties, listener.is_over_tls)
            except InvalidSetting as error:
                self._report(f"listener {name} keeps its SASL settings: {error}")
                continue
            if settings != listener:
                self._listeners[name], self._mechanisms[name] = settings, self._mechanisms_of(settings)

    def _mechanisms_of(self, listener: ListenerSasl) -> dict[str, Mechanism]:
        return {
            name: Mechanism(name, self._begin_of(name, listener), listener.max_reauth_ms[name])
            for name in listener.mechanisms
        }

    def _begin_of(self, mechanism: str, listener: ListenerSasl) -> Callable[[], SaslExchange]:
        if mechanism == PLAIN:
            passwords = Passwords(listener.passwords, self._secret)
            return lambda: PlainExchange(passwords)
        if mechanism == OAUTHBEARER:
            from broker.security.sasl.web_token import read_token  # few listeners take tokens

            keys, rules = self._key_sets.of(listener.config.key_source), listener.config.token_rules
            return lambda: OauthExchange(lambda token, wall_ms: read_token(token, keys.find, rules, wall_ms))
        credentials = self._scram[mechanism]
        return lambda: ScramExchange(mechanism, credentials.find, self._nonce())
