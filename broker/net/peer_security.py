"""SHELL (files, in what it makes): how a broker connects to others, under settings that are altered at run time.

New connections and logins use an alteration. An alteration that cannot work is refused before it is stored.
"""

from collections.abc import Callable, Mapping

from broker.client.security.client_security import ClientSecurity
from broker.client.security.settings import SecuritySettings
from idgen.settings import InvalidSetting

MakeConfig = Callable[[Mapping[str, str]], SecuritySettings | None]
"""Returns how brokers connect to each other with these settings of a broker; None in plain text."""


class PeerSecurity:
    """The security of connections to other brokers. `given` are the settings that the broker was started with.

    Raise InvalidSetting if they cannot work. `report` takes a line.
    """

    def __init__(self, make_config: MakeConfig, given: Mapping[str, str], report: Callable[[str], None]) -> None:
        self._make_config = make_config
        self._given = given
        self._report = report
        self._config = make_config(given)
        self.now = ClientSecurity.of(self._config)
        """The security of a connection that is made now; None in plain text."""

    def check(self, altered: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless the settings can be altered so."""
        config = self._make_config({**self._given, **altered})
        if config != self._config:
            ClientSecurity.of(config)

    def use(self, altered: Mapping[str, str]) -> None:
        """Use the settings with these alterations. If they cannot work, keep those before, and a line says why."""
        try:
            config = self._make_config({**self._given, **altered})
            if config != self._config:
                self.now = ClientSecurity.of(config)
                self._config = config
        except InvalidSetting as error:
            self._report(f"connections to other brokers keep their settings: {error}")
