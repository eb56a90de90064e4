"""The TLS settings of a broker under those that are altered at run time (KIP-226), for all its listeners.

An alteration that cannot work is refused before it is stored: a store that is not there, or a key that does not fit.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from broker.security.handshakes import HandshakeFigures
from broker.security.listener_settings import errors_as_given
from broker.security.tls_config import TLS_SETTINGS, TlsConfig, tls_of
from idgen.settings import InvalidSetting, from_properties


class Listener(Protocol):
    """A listener that speaks TLS."""

    config: TlsConfig

    @property
    def expires_ms(self) -> int:
        """When its certificates expire, in Unix ms."""

    @property
    def refusal(self) -> InvalidSetting | None:
        """Why changed files were refused, so that new connections see older ones. None while the files fit."""

    @property
    def awaits_certificate(self) -> bool:
        """Return True if other settings were refused because their certificate is not valid yet."""

    def begin(self) -> None:
        """Serve with the present settings. Raise InvalidSetting if brokers could not reach each other by them."""

    def check(self, config: TlsConfig) -> None:
        """Raise InvalidSetting unless the listener can use these settings."""

    def use(self, config: TlsConfig) -> None:
        """Use these settings for new connections. Raise InvalidSetting, and keep the present ones."""


class AlteredTls:
    """The settings that a broker was started with, and those of its listeners, by name. `report` takes a line."""

    def __init__(
        self,
        given: Mapping[str, str],
        listeners: Mapping[str, Listener],
        report: Callable[[str], None],
        handshakes: HandshakeFigures | None = None,
    ) -> None:
        self._given = given
        self._properties = given
        self._refused: dict[str, tuple[TlsConfig | None, InvalidSetting]] = {}
        """The altered settings that a listener refused, None if they are no settings at all, and why, by its name."""
        self.listeners = listeners
        self._report = report
        self.handshakes = handshakes or HandshakeFigures()
        self.config = from_properties(TlsConfig, given)
        """The settings of listeners that have none of their own."""

    def begin(self) -> None:
        """Serve with the present settings, once those are used that were altered before this start.

        Raise InvalidSetting if brokers could not reach each other by them.
        """
        for name, listener in self.listeners.items():
            with errors_as_given(name, self._given, TLS_SETTINGS):
                listener.begin()

    def check(self, altered: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless all listeners can use the settings with these alterations."""
        properties = {**self._given, **altered}
        from_properties(TlsConfig, properties)
        for name, listener in self.listeners.items():
            config = tls_of(name, properties)
            if config != listener.config:
                with errors_as_given(name, properties, TLS_SETTINGS):
                    listener.check(config)

    def use(self, altered: Mapping[str, str]) -> None:
        """Use the settings with these alterations. A listener that cannot use them keeps its own, and a line says why.
        """
        properties = self._properties = {**self._given, **altered}
        try:
            self.config = from_properties(TlsConfig, properties)
        except InvalidSetting as error:
            self._report(f"altered TLS settings are not used: {error}")
        self._refused.clear()
        for name, listener in self.listeners.items():
            config = None
            try:
                config = tls_of(name, properties)
                if config != listener.config or listener.awaits_certificate:
                    with errors_as_given(name, properties, TLS_SETTINGS):
                        listener.use(config)
            except InvalidSetting as error:
                self._report(f"listener {name} keeps its TLS settings: {error}")
                self._refused[name] = config, error

    def refusals(self) -> dict[str, str]:
        """Return why listeners serve with older keys or authorities than their files or settings have, by name.

        A restart uses the refused ones, so it may fail. A listener is listed until its files fit, or are back.
        """
        return {name: str(why) for name, listener in self.listeners.items() if (why := self._refusal(name, listener))}

    def _refusal(self, name: str, listener: Listener) -> InvalidSetting | None:
        config, why = self._refused.get(name, (listener.config, None))
        if why is not None and config != listener.config:
            return why
        if listener.refusal is None:
            return None
        try:
            with errors_as_given(name, self._properties, TLS_SETTINGS):
                raise listener.refusal
        except InvalidSetting as given:
            return given
