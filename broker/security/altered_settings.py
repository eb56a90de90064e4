"""Settings of security that are altered at run time (KIP-226)."""

from collections.abc import Mapping
from typing import Protocol


class AlteredSettings(Protocol):
    """What uses such settings: listeners, or connections to other brokers."""

    def check(self, altered: Mapping[str, str]) -> None:
        """Raise InvalidSetting unless the settings can be altered so."""

    def use(self, altered: Mapping[str, str]) -> None:
        """Use the settings with these alterations."""
