"""The HTTP site of a command that runs until it is stopped: its options, and the port at which it listens."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flakelog.commands.arguments import Whole
from flakelog.commands.exit_codes import fail

if TYPE_CHECKING:
    from idgen.http import SmallSite
    from idgen.http_hosts import OwnHosts

Command = Callable[..., Any]


class HttpSite(NamedTuple):
    """Where to serve health and metrics; `port` None: nowhere."""

    host: str
    port: int | None

    def serve(self, make: "Callable[[OwnHosts], SmallSite]", call: Callable[[Callable[[Any], Any]], Any]) -> None:
        """Serve the site that `make` returns until the process ends; fail if the port is taken.

        `call` calls a function with the reactor in its thread, and returns the result.
        """
        if self.port is None:
            return
        from twisted.internet.error import CannotListenError

        from idgen.http_hosts import OwnHosts

        site = make(OwnHosts(bound=self.host))
        try:
            bound = call(lambda reactor: reactor.listenTCP(self.port, site, interface=self.host).getHost())
        except CannotListenError as error:
            fail(f"--http-port {self.port}: {error.socketError}; give another, or 0 for a free one")
        click.echo(f"ready: http={self.host}:{bound.port}")


def http_options(command: Command) -> Command:
    """Add --http-port and --http-host; the command gets `http_port` and `http_host`."""
    host = click.option(
        "--http-host", default="127.0.0.1", show_default=True, help="The address to serve them at."
    )(command)
    made: Command = click.option(
        "--http-port", type=Whole(0, 65535), help="Serve /health and /metrics at this port; 0 takes a free one."
    )(host)
    return made
