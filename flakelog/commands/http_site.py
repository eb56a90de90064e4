"""The HTTP site of a command that runs until it is stopped: its options, and the port at which it listens.

With `--http-config` it speaks HTTPS, and asks for a token, by the settings that the HTTP port of a server has.
"""

import socket
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flakelog.commands.arguments import Whole
from flakelog.commands.exit_codes import WrongSettings, fail
from flakelog.visible_text import visible

if TYPE_CHECKING:
    from broker.net.tls import ListenerTls
    from flakelog.config import ServerConfig
    from flakelog.settings import Settings
    from idgen.http import SmallSite
    from idgen.http_hosts import OwnHosts

Command = Callable[..., Any]

_USED = {
    "flakelog.console.token",
    *(f"flakelog.http.{name}" for name in ("health.open", "hosts", "idle.ms", "metrics.open", "request.ms")),
}
_USED_PREFIXES = ("flakelog.http.ssl.", "ssl.")


class HttpSite(NamedTuple):
    """Where and how to serve health and metrics; `port` None: nowhere. `tls` None: in plain text."""

    host: str
    port: int | None
    settings: "Settings | None" = None
    tls: "ListenerTls | None" = None

    def serve(
        self,
        make: "Callable[[OwnHosts, ServerConfig], SmallSite]",
        call: Callable[[Callable[[Any], Any]], Any],
    ) -> None:
        """Serve the site that `make` returns until the process ends; fail if the port is taken.

        `call` calls a function with the reactor in its thread, and returns the result.
        """
        if self.port is None:
            return
        from twisted.internet.error import CannotListenError

        from flakelog.settings import Settings
        from idgen.http_hosts import OwnHosts, parse_hosts

        settings = self.settings or Settings({})
        server, own = settings.server, [socket.gethostname()]
        site = make(OwnHosts(parse_hosts(server.http_hosts), self.host, own, is_tls=self.tls is not None), server)
        try:
            bound = call(lambda reactor: self._listen(reactor, site, settings))
        except CannotListenError as error:
            fail(f"--http-port {self.port}: {error.socketError}; give another, or 0 for a free one")
        click.echo(f"ready: http={self.host}:{bound.port}")

    def _listen(self, reactor: Any, site: "SmallSite", settings: "Settings") -> Any:
        """Listen at the port, and return its address. Runs in the reactor's thread."""
        port = reactor.listenTCP(self.port, site, interface=self.host)
        if self.tls is not None:
            from broker.net.tls_listeners import TlsListeners
            from broker.security.listener_settings import HTTP

            listeners = TlsListeners(reactor, settings.broker, {HTTP: self.tls}, _say)
            listeners.secure(port, HTTP)
            listeners.serve()
        return port.getHost()


def http_options(command: Command) -> Command:
    """Add --http-port, --http-host and --http-config; the command gets `site`, an HttpSite."""

    @wraps(command)
    def with_site(http_port: int | None, http_host: str, http_config: Path | None, **more: Any) -> Any:
        return command(site=_site_of(http_host, http_port, http_config), **more)

    options: tuple[Callable[[Command], Command], ...] = (
        click.option(
            "--http-port", type=Whole(0, 65535), help="Serve /health and /metrics at this port; 0 takes a free one."
        ),
        click.option("--http-host", default="127.0.0.1", show_default=True, help="The address to serve them at."),
        click.option(
            "--http-config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Settings as those of a server's HTTP port: flakelog.http.ssl.enable for HTTPS, ssl.*, "
            "flakelog.http.metrics.open, ...",
        ),
    )
    made: Command = with_site
    for option in reversed(options):
        made = option(made)
    return made


def _site_of(host: str, port: int | None, file: Path | None) -> HttpSite:
    """Return the site by the options of a command, its certificates read. Raise WrongSettings."""
    if file is None:
        return HttpSite(host, port)
    if port is None:
        raise click.UsageError("--http-config is for --http-port, which is not given")
    from flakelog.settings import Settings, collect, errors_with_origin
    from idgen.settings import InvalidSetting

    try:
        properties = collect(file)
        texts = _used(file, properties.texts)
        with errors_with_origin(properties.given, str(file)):
            settings = Settings(texts)
            tls = _tls_of(settings)
        if tls is None and any(name.startswith("ssl.") for name in texts):  # a server's file has them for its listeners
            remedy = "flakelog.http.ssl.enable=true makes them HTTPS"
            _say(f"{file}: the pages are in plain text in spite of ssl.*; {remedy}")
        return HttpSite(host, port, settings, tls)
    except (InvalidSetting, OSError) as error:
        raise WrongSettings(str(error)) from None


def _used(file: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of an HTTP port in a file, and name the others on stderr."""
    used = {name: text for name, text in texts.items() if name in _USED or name.startswith(_USED_PREFIXES)}
    unused = [name for name in texts if name not in used]
    if unused:
        wanted = f"only {', '.join(f'{prefix}*' for prefix in _USED_PREFIXES)}, {', '.join(sorted(_USED))}"
        _say(f"{file}: {wanted} are used, not {', '.join(unused)}")
    return used


def _tls_of(settings: "Settings") -> "ListenerTls | None":
    from broker.security.listener_settings import HTTP

    if HTTP not in settings.port_tls:
        return None
    from flakelog.server.tls_ports import read_tls

    tls = read_tls(HTTP, settings, _say)
    tls.begin()
    return tls


def _say(line: str) -> None:
    click.echo(visible(line), err=True)
