"""SHELL (files, HTTP, random numbers): the security of a client: its TLS contexts, and the logins of its connections.

    security = ClientSecurity.of({"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", ...})
    security.context()                       for each new connection, with server_name=address.host
    security.log_in(address)                 the operation to carry out before other requests
"""

import os
import random
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from broker.client.address import Address
from broker.client.errors import NotAuthenticated
from broker.client.exchange import Steps
from broker.client.security.mechanisms import ClientExchange, OauthClient, PlainClient, ScramClient, is_token
from broker.client.security.settings import SecuritySettings, check_properties, parse_security
from broker.client.security.token_request import TokenRequest
from broker.security.references import resolve
from broker.security.sasl.exchange import OAUTHBEARER, PLAIN

if TYPE_CHECKING:
    from broker.client.security.token_endpoint import TokenEndpoint

TOKEN_FUNCTION = "oauth_cb"
TokenFunction: TypeAlias = Callable[[str], tuple[str, float]]
"""Returns a token and when it expires, in Unix seconds, as confluent-kafka's `oauth_cb`; the argument is empty."""


class ClientSecurity:
    """The security of a client, for all its connections. Raise InvalidSetting if a file of it cannot be used.

    `token` is the function that gives the tokens of OAUTHBEARER. A file of keys or authorities that changes is read
    again at the next connection; if it cannot be used then, the former one stays. A broker gives `make_context`, which
    returns the TLS of a new connection, in place of the files.
    """

    def __init__(
        self,
        settings: SecuritySettings,
        token: TokenFunction | None = None,
        *,
        make_context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.settings = settings
        self._make_context = make_context
        self.token_function = token
        self._signature: object = None
        self._context: ssl.SSLContext | None = None
        request = settings.credentials.token_request if settings.asks_login else None
        self._endpoint = None if request is None else _endpoint_of(request)
        if settings.is_tls and make_context is None:
            self._refresh()

    @staticmethod
    def of(given: "Security") -> "ClientSecurity | None":
        """Return the security with these properties, or settings; None for plain connections without a login.

        References such as `${file:...}` and `${env:...}` are replaced. Raise InvalidSetting.
        """
        if given is None or isinstance(given, ClientSecurity):
            security = given
        elif isinstance(given, SecuritySettings):
            security = ClientSecurity(given)
        elif not isinstance(cast(object, given), Mapping):
            raise TypeError(f"security={given!r}: give properties, such as {{'security.protocol': 'SSL'}}")
        else:
            security = _from_properties(given)
        is_plain = security is None or not (security.settings.is_tls or security.settings.asks_login)
        return None if is_plain else security

    def __repr__(self) -> str:
        return f"ClientSecurity({self.settings!r})"

    def __deepcopy__(self, _: object) -> "ClientSecurity":
        """Return this object: copies of what has it, such as the tasks of a spout, share it."""
        return self

    @property
    def is_tls(self) -> bool:
        return self.settings.is_tls

    @property
    def asks_login(self) -> bool:
        """Return True if each connection begins with a login."""
        return self.settings.asks_login

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS of a new connection, None for a plain one."""
        if self._make_context is not None:
            return self._make_context()
        if self._context is not None:
            self._refresh()
        return self._context

    def log_in(self, address: Address, version: int | None = None) -> Steps[int]:
        """Log in over a new connection, or anew. Return the lifetime of the session in ms, 0 without an end.

        `version` is that of SaslAuthenticate, by default the newest. Raise NotAuthenticated.
        """
        from broker.client.security.login import NEWEST_VERSION, log_in  # a Producer needs no codec of requests

        newest = NEWEST_VERSION if version is None else version
        return log_in(address, self.settings.mechanism, self._exchange(address), newest)

    def renews(self, former: "ClientSecurity") -> bool:
        """Return True if a login with this security may renew a session of the former one.

        A session keeps its user and its mechanism (KIP-368). The user in a token is not known here.
        """
        own, other = self.settings, former.settings
        if not (own.asks_login and other.asks_login):
            return False
        return own.mechanism == other.mechanism and own.credentials.user == other.credentials.user

    @staticmethod
    def renewal_ms(lifetime_ms: int) -> int | None:
        """Return how long after a login the next one begins; None for a session without an end."""
        from broker.client.security.login import renewal_ms

        return renewal_ms(lifetime_ms, random.random()) if lifetime_ms else None

    def _exchange(self, address: Address) -> ClientExchange:
        mechanism, credentials = self.settings.mechanism, self.settings.credentials
        if mechanism == PLAIN:
            return PlainClient(credentials.user, credentials.password)
        if mechanism == OAUTHBEARER:
            try:
                return OauthClient(self.token())
            except Exception as error:  # a function of the user's
                raise NotAuthenticated(str(address), f"no token of OAUTHBEARER: {error}") from error
        return ScramClient(mechanism, credentials.user, credentials.password, secrets.token_urlsafe(18))

    @property
    def must_fetch_token(self) -> bool:
        """Return True if `log_in` would wait for an identity provider now: `fetch_token` does it in another thread."""
        return self._endpoint is not None and self._endpoint.is_due

    def fetch_token(self) -> None:
        """Fetch the token for the next login if that is due. A failure of it is that login's."""
        if self._endpoint is not None:
            self._endpoint.fetch()

    def token(self) -> str:
        """Return the token of OAUTHBEARER for a login now. Raise what its function or file raises, and ValueError."""
        credentials = self.settings.credentials
        token = credentials.token
        if self._endpoint is not None:
            token = self._endpoint.token()
        elif self.token_function is not None:
            token, _ = self.token_function("")
        elif credentials.token_file is not None:
            with open(credentials.token_file) as file:
                token = file.read().strip()
        if token is None or not is_token(token):
            raise ValueError("it is no bearer token (RFC 6750)")
        return token

    def _refresh(self) -> None:
        """Make the context anew if a file of it has changed. Raise InvalidSetting if there is none yet."""
        from broker.client.security.contexts import make_context  # cryptography loads slowly
        from broker.security.tls_context import signature_of
        from idgen.settings import InvalidSetting

        signature = signature_of(self.settings.tls.files)
        if signature == self._signature:
            return
        try:
            self._context = make_context(self.settings)
        except InvalidSetting:
            if self._context is None:
                raise
        self._signature = signature


def _endpoint_of(request: TokenRequest) -> "TokenEndpoint":
    from broker.client.security.token_endpoint import TokenEndpoint  # HTTP loads slowly

    return TokenEndpoint(request)


def _from_properties(given: Mapping[str, Any]) -> ClientSecurity:
    token = given.get(TOKEN_FUNCTION)
    texts = {
        name: resolve(name, text, _read_text, os.environ) if isinstance(text, str) else text
        for name, text in given.items()
        if name != TOKEN_FUNCTION
    }
    return ClientSecurity(parse_security(texts, _has_token(given)), token)


def checked_security(given: "Security") -> "Security":
    """Return the security, of which no file is read yet. Raise InvalidSetting if it cannot work.

    Properties with references are checked when they are used, because the files may be on another machine.
    """
    if given is None or isinstance(given, (ClientSecurity, SecuritySettings)):
        return given
    properties = dict(given)
    check_properties({name: text for name, text in properties.items() if name != TOKEN_FUNCTION}, _has_token(given))
    return properties


def _has_token(given: Mapping[str, Any]) -> bool:
    return given.get(TOKEN_FUNCTION) is not None


def _read_text(location: str) -> str:
    with open(location, encoding="utf-8") as file:
        return file.read()


Security: TypeAlias = Mapping[str, Any] | SecuritySettings | ClientSecurity | None
"""A client's security as its user gives it: properties by Kafka's names, and a function of tokens as `oauth_cb`."""
