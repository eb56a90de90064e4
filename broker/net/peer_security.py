"""SHELL (files, in what it makes): how a broker connects to others, under settings that are altered at run time.

New connections and logins use an alteration. An alteration that cannot work is refused before it is stored. The TLS of
connections is that of the listener of brokers, which decides whether changed files and settings are used.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.client.security.client_security import ClientSecurity
from broker.client.security.settings import SecuritySettings
from broker.security.sasl.listeners import SCRAM_NUMBERS
from idgen.settings import InvalidSetting

if TYPE_CHECKING:  # a broker in plain text does without it
    from broker.net.tls import ListenerTls

MakeConfig = Callable[[Mapping[str, str]], SecuritySettings | None]
"""Returns how brokers connect to each other with these settings of a broker; None in plain text."""


class PeerSecurity:
    """The security of connections to other brokers. `given` are the settings that the broker was started with.

    Raise InvalidSetting if they cannot work. `report` takes a line. `tls` is that of the listener of brokers, None
    without TLS.
    """

    def __init__(
        self,
        make_config: MakeConfig,
        given: Mapping[str, str],
        report: Callable[[str], None],
        tls: "ListenerTls | None" = None,
    ) -> None:
        self._make_config = make_config
        self._given = given
        self._report = report
        self._tls = tls
        self._config = make_config(given)
        self.now = self._secured(self._config)
        """The security of a connection that is made now; None in plain text."""

    @property
    def scram_user(self) -> tuple[str, int] | None:
        """The user as which this broker logs in by SCRAM, and Kafka's number of the mechanism; None if it does not."""
        config = self._config
        if config is None or not config.asks_login or config.mechanism not in SCRAM_NUMBERS:
            return None
        return config.credentials.user, SCRAM_NUMBERS[config.mechanism]

    def check(self, altered: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless the settings can be altered so."""
        config = self._make_config({**self._given, **altered})
        if config != self._config:
            self._secured(config)

    def use(self, altered: Mapping[str, str]) -> None:
        """Use the settings with these alterations. If they cannot work, keep those before, and a line says why."""
        try:
            config = self._make_config({**self._given, **altered})
            if config != self._config:
                self.now = self._secured(config)
                self._config = config
        except InvalidSetting as error:
            self._report(f"connections to other brokers keep their settings: {error}")

    def _secured(self, config: SecuritySettings | None) -> ClientSecurity | None:
        if config is None or self._tls is None:
            return ClientSecurity.of(config)
        return ClientSecurity(config, make_context=self._tls.client_context)
