"""Settings from a properties file and from the command line: parsed, checked, and each unknown one refused by name."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from broker.config import BrokerConfig
from broker.group.config import GroupConfig
from flakelog.config import ServerConfig
from idgen.config import IdgenConfig, InvalidSetting, from_properties, settings_of

CONFIGS = (ServerConfig, BrokerConfig, GroupConfig, IdgenConfig)


class UnknownSetting(InvalidSetting):
    """A name that is no setting; the message has the nearest one that is."""

    def __init__(self, name: str) -> None:
        near = get_close_matches(name, names(), 1, 0.6)
        wanted = f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"
        ValueError.__init__(self, f"{name}: {wanted}")
        self.name = name


def names() -> list[str]:
    """All settings' names."""
    return sorted({each.name for config in CONFIGS for each in settings_of(config)})


def read_properties(text: str, where: str) -> dict[str, str]:
    """Java properties as Kafka's server.properties uses them: name=value, # and ! comments, \\ joins lines."""
    found: dict[str, str] = {}
    joined = text.replace("\\\r\n", "").replace("\\\n", "")
    for number, line in enumerate(joined.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, sign, value = line.partition("=")
        if not sign:
            raise InvalidSetting(f"{where}, line {number}", line, "must be name=value")
        found[name.strip()] = value.strip()
    return found


def collect(file: Path | None, assignments: Iterable[str]) -> dict[str, str]:
    """The properties of a file, with `name=value` assignments over them; InvalidSetting, UnknownSetting, OSError."""
    properties = read_properties(file.read_text(), str(file)) if file else {}
    properties |= read_properties("\n".join(assignments), "--set")
    for name in properties:
        if name not in names():
            raise UnknownSetting(name)
    return properties


class Settings:
    """All configurations of one process, made from one set of properties."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)
        self.server = from_properties(ServerConfig, properties)
        self.broker = from_properties(BrokerConfig, properties)
        self.group = from_properties(GroupConfig, properties)
        self.idgen = from_properties(IdgenConfig, properties)
