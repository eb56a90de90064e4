"""Which requests may see the console and use it: the operator's token, sessions, and the headers of a request.

    closed    the HTTP port can be reached by other machines, and there is no token: nothing is shown
    open      the port listens on loopback, and there is no token: a visitor gets a session at once
    locked    there is a token: a session begins with it, or each request has it (`Authorization: Bearer`)

A session is a signed cookie, valid until it expires, its visitor logs out, or the process ends. An action also needs
the session's CSRF token and an `Origin` that is exactly the host the request was sent to (OWASP, Cross-Site Request
Forgery Prevention).
"""

import hmac
from collections import deque
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from broker.address import host_port
from flakelog.config import ServerConfig
from flakelog.listeners import EVERYWHERE
from idgen.http_hosts import ANY_HOST, parse_hosts

SESSION_MS = 12 * 3_600_000  # a working day
SESSIONS_ENDED_MAX = 1_000  # logged out and not expired; one more ends all sessions, so that none works again
FAILED_LOGINS_MAX = 10  # in FAILED_LOGINS_MS, over all visitors: a token cannot be guessed at this pace
FAILED_LOGINS_MS = 60_000
BEARER = "bearer"  # the session of a request that has the token itself
FORWARDED = (
    "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-server", "x-real-ip",
    "x-client-ip", "x-original-host", "true-client-ip", "cf-connecting-ip",
)  # fmt: skip
CONTENT_SECURITY_POLICY = "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, a browser sends "Origin: null" with forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SecurityHeaders(NamedTuple):
    """The parts of a request that decide. A header that may be given once only is a sequence."""

    hosts: Sequence[str]
    origins: Sequence[str]
    cookie: str = ""
    authorization: str = ""
    fetch_site: str = ""
    fetch_mode: str = ""
    is_forwarded: bool = False


def is_in_plain_text(headers: SecurityHeaders, peer: str, *, is_tls: bool) -> bool:
    """Return True if the network can read what a visitor sends: without TLS, and not from this machine.

    `peer` is the host that has connected. The Origin says if a browser has TLS to a proxy.
    """
    if is_tls or any(origin.startswith("https://") for origin in headers.origins):
        return False
    return headers.is_forwarded or not _is_loopback(peer)


class Session(NamedTuple):
    """A visitor's session. `cookie` is the value to set, empty if the visitor has it already.

    `expires_ms` is when the session ends; that of BEARER lasts as long as its request.
    """

    id: str
    csrf: str
    cookie: str = ""
    expires_ms: int = 0


class RequestRefused(Exception):
    """A request that is not served: the HTTP status, and the reason in one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class CameByLink(Exception):
    """A request by a link on another site, with which a browser sends no session (SameSite=Strict), if it has one."""


class NeedsLogin(Exception):
    """A request without a session, to a server with a token."""


class OperatorToken:
    """The operator's token, with a limit on wrong guesses."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._failures: deque[int] = deque(maxlen=FAILED_LOGINS_MAX)

    @property
    def is_set(self) -> bool:
        return self._token is not None

    def check(self, text: str, now_ms: int, status: int) -> None:
        """Raise RequestRefused: with this status if the text is not the token, with 429 after too many wrong ones."""
        if len(self._failures) == FAILED_LOGINS_MAX and now_ms - self._failures[0] < FAILED_LOGINS_MS:
            raise RequestRefused(429, "too many wrong tokens; wait a minute")
        if not self._is_token(text):
            self._failures.append(now_ms)
            raise RequestRefused(status, "that is not the token")

    def is_in_header(self, authorization: str) -> bool:
        """Return True if an Authorization header has the token, as `Bearer TOKEN` (RFC 6750)."""
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == BEARER and self._is_token(given.strip())

    def check_header(self, authorization: str, now_ms: int) -> None:
        """Raise RequestRefused unless an Authorization header has the token.

        The right token always passes, so that the wrong ones of others keep no program out. So nothing here stops
        guesses: the token has to be random.
        """
        if self.is_in_header(authorization):
            return
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != BEARER:
            raise RequestRefused(401, "send flakelog.console.token, as `Authorization: Bearer TOKEN`")
        self.check(given.strip(), now_ms, 401)

    def _is_token(self, text: str) -> bool:
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())


class Gate:
    """The rules of one server process.

    `secret` signs sessions; it is random for each process. `is_loopback` says that only this machine can connect,
    `any_host` that every Host header is accepted, with which a web page can point its own name here (DNS rebinding).
    `is_tls` says that the port speaks HTTPS only, so that a page of plain HTTP is another site.
    """

    def __init__(
        self, *, is_loopback: bool, any_host: bool, token: str | None, secret: bytes, is_tls: bool = False
    ) -> None:
        self._operator = OperatorToken(token)
        self._schemes = ("https",) if is_tls else ("http", "https")
        self._secret = secret
        self._ended: dict[str, int] = {}
        self.closed: str | None = None
        """Why nothing is shown, None if the console is served."""
        if token is None and not is_loopback:
            self.closed = "other machines can reach this port; set flakelog.console.token to open the console"
        elif token is None and any_host:
            self.closed = "flakelog.http.hosts=* accepts every name; set flakelog.console.token to open the console"

    @property
    def is_locked(self) -> bool:
        """True if a session begins with the token."""
        return self._operator.is_set

    def session(self, headers: SecurityHeaders, now_ms: int, fresh: str) -> Session:
        """Return the request's session; `fresh` is a random text for a new one.

        Raise CameByLink if the browser may have a session that it did not send, otherwise RequestRefused or NeedsLogin.
        """
        if self.closed is not None:
            raise RequestRefused(403, self.closed)
        if headers.fetch_site in ("cross-site", "same-site") and headers.fetch_mode not in ("", "navigate"):
            raise RequestRefused(403, "a page of another site asked for this")
        if headers.is_forwarded and not self.is_locked:
            raise RequestRefused(
                403, "the request came through a proxy; set flakelog.console.token to open the console"
            )
        scheme, _, given = headers.authorization.partition(" ")
        if self.is_locked and scheme.lower() == BEARER:  # another scheme is that of a proxy in front
            self._operator.check(given.strip(), now_ms, 401)
            return Session(BEARER, self._csrf(BEARER))
        session = self._read(headers.cookie, now_ms)
        if session is not None:
            return session
        if headers.fetch_site in ("cross-site", "same-site"):
            raise CameByLink
        if self.is_locked:
            raise NeedsLogin
        return self._begin(fresh, now_ms)

    def login(self, headers: SecurityHeaders, token: str, now_ms: int, fresh: str) -> Session:
        """Return a new session for the operator's token. Raise RequestRefused."""
        if self.closed is not None:
            raise RequestRefused(403, self.closed)
        self._check_origin(headers)
        self._operator.check(token, now_ms, 403)
        return self._begin(fresh, now_ms)

    def logout(self, session: Session, now_ms: int) -> None:
        """End a session, so that its cookie counts no more, whoever has it."""
        self._ended = {id: expires_ms for id, expires_ms in self._ended.items() if expires_ms > now_ms}
        self._ended[session.id] = session.expires_ms
        if len(self._ended) > SESSIONS_ENDED_MAX:
            self._secret = hmac.digest(self._secret, b"all sessions end", "sha256")
            self._ended.clear()

    def is_live(self, session: Session, now_ms: int) -> bool:
        """Return True while a session that was given has not ended."""
        if session.id == BEARER:
            return True
        same = hmac.compare_digest(session.csrf, self._csrf(session.id))
        return same and session.id not in self._ended and now_ms < session.expires_ms

    def check_action(self, headers: SecurityHeaders, session: Session, csrf: str) -> None:
        """Raise RequestRefused unless the request is an action of the session's own page."""
        self._check_origin(headers)
        if not hmac.compare_digest(csrf.encode(), session.csrf.encode()):
            raise RequestRefused(403, "the form is of another session; load the page again")

    # --- internals

    def _check_origin(self, headers: SecurityHeaders) -> None:
        if len(headers.hosts) != 1 or len(headers.origins) != 1:
            raise RequestRefused(403, "an action needs one Host and one Origin, as browsers send them")
        scheme, _, host = headers.origins[0].partition("://")
        if scheme not in self._schemes or host != headers.hosts[0]:
            raise RequestRefused(403, "the Origin is not the host that was asked")
        if headers.fetch_site not in ("", "same-origin"):
            raise RequestRefused(403, "a page of another site asked for this")

    def _begin(self, id: str, now_ms: int) -> Session:
        expires_ms = now_ms + SESSION_MS
        cookie = f"{id}.{expires_ms}.{self._sign(f'session {id} {expires_ms}')}"
        return Session(id, self._csrf(id), cookie, expires_ms)

    def _read(self, cookie: str, now_ms: int) -> Session | None:
        """Return the session of a cookie; None if the cookie is not ours, or its session has ended."""
        id, _, rest = cookie.partition(".")
        expires, _, signature = rest.partition(".")
        if not (expires.isascii() and expires.isdigit() and len(expires) < 20):
            return None
        if not hmac.compare_digest(signature.encode(), self._sign(f"session {id} {expires}").encode()):
            return None
        session = Session(id, self._csrf(id), "", int(expires))
        return session if self.is_live(session, now_ms) else None

    def _csrf(self, id: str) -> str:
        return self._sign(f"csrf {id}")

    def _sign(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), "sha256").hexdigest()


def gate_of(config: ServerConfig, http: str, secret: bytes, *, has_authorizer: bool = False) -> Gate:
    """Return the gate of a server whose HTTP port listens at `http`, as "host:port"."""
    host, any_host = http.rpartition(":")[0].strip("[]"), ANY_HOST in parse_hosts(config.http_hosts)
    gate = Gate(
        is_loopback=_is_loopback(host),
        any_host=any_host,
        token=config.console_token,
        secret=secret,
        is_tls=config.http_ssl_enable,
    )
    if has_authorizer:
        gate.closed = gate.closed or missing_with_authorizer(config)
    return gate


def cookie_name(http: str, *, is_tls: bool) -> str:
    """Return the name of the session's cookie at a port, "host:port"; servers of one host do not share theirs.

    Over TLS the name begins with `__Host-`: a browser then takes the cookie only from this host and over TLS
    (RFC 6265bis, section 4.1.3.2).
    """
    return f"{'__Host-' if is_tls else ''}flakelog_console_{http.rpartition(':')[2]}"


def missing_with_authorizer(config: ServerConfig) -> str | None:
    """Return why the console is closed beside an authorizer, None if it is open.

    It needs a principal, so that it has no rights by accident, and a token, because a user of this machine may not have
    the rights of that principal.
    """
    missing = [] if config.console_principal else ["flakelog.console.principal=User:NAME"]
    missing += [] if config.console_token else ["flakelog.console.token"]
    if not missing:
        return None
    return f"authorizer.class.name is set, so the console is closed; to open it, set {' and '.join(missing)}"


def console_address(
    config: ServerConfig, http: str, machine: str, *, has_authorizer: bool = False
) -> str | None:
    """Return the address to open in a browser, None if the console is off. `machine` is the name of this machine."""
    if not config.console_enable or gate_of(config, http, b"", has_authorizer=has_authorizer).closed is not None:
        return None
    host, _, port = http.rpartition(":")
    shown = machine if host.strip("[]") in EVERYWHERE else host.strip("[]")
    return f"{config.http_scheme}://{host_port(shown, int(port))}/"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
