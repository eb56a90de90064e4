"""Settings as clients are told of them: value, where it comes from, and what else it could have come from.

Precedence is Kafka's (KIP-226): a topic's own, this node's altered at run time, all nodes' altered at run time, what
the process was started with, the default. `synonyms` are those that there are, in that order; the first of them holds.
"""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from broker.config import DYNAMIC, INT_MAX, LISTS, TOPIC_DEFAULTS, BrokerConfig, TopicConfig
from broker.kafka_settings import HONOURED, KafkaSetting, broker_setting, broker_settings, topic_setting, topic_settings
from idgen.config import Setting, parse_setting, settings_of


class ConfigSource(IntEnum):
    """Kafka's codes (KIP-226)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """Kafka's codes (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting. `value` is None where none is set, or where it is nobody's business."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[Synonym, ...]
    type: ConfigType
    documentation: str


class BrokerSources(NamedTuple):
    """Where a broker's settings come from, each by name and as text."""

    given: Mapping[str, str]
    """What the process was started with."""
    altered_for_all: Mapping[str, str]
    altered: Mapping[str, str]
    """What was altered at run time, of all nodes and of this one."""


_BROKER = {each.name: each for each in settings_of(BrokerConfig)}
_BROKER_DEFAULTS = {each.field: each.name for each in _BROKER.values()}
_SECRET = re.compile("password|secret|jaas|credential")
_LONG = frozenset({"ms", "messages"})  # units; and where a value may be too long for 32 bits


def text_of(value: Any) -> str | None:
    """A value as properties have it; None where there is none."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def type_of(setting: Setting) -> ConfigType:
    """The type Kafka gives to a setting of this name; to one of our own, what it would."""
    row = topic_setting(setting.name) or broker_setting(setting.name)
    if row is not None:
        return ConfigType[row.type.upper()]
    kinds = getattr(setting.type, "__args__", (setting.type,))
    if bool in kinds:
        return ConfigType.BOOLEAN
    if float in kinds:
        return ConfigType.DOUBLE
    if int not in kinds:
        return ConfigType.STRING
    long = setting.unit in _LONG or setting.name.endswith("retention.bytes") or (setting.default or 0) > INT_MAX
    return ConfigType.LONG if long else ConfigType.INT


def broker_entries(configs: Iterable[object], sources: BrokerSources) -> list[ConfigEntry]:
    """All settings of a broker's configurations, then Kafka's others with what they were given or have by default."""
    entries = [
        _entry(setting, getattr(config, setting.field), _broker_synonyms(setting, sources), setting.name not in DYNAMIC)
        for config in configs
        for setting in settings_of(type(config))
    ]
    given = sources.given
    others = [row for row in broker_settings() if _is_shown(row, given)]
    return entries + [_unused(row, given.get(row.name), ConfigSource.STATIC_BROKER, True) for row in others]


def default_entries(altered: Mapping[str, str]) -> list[ConfigEntry]:
    """What was altered at run time of all brokers' settings, and nothing else."""
    entries = []
    for name, text in altered.items():
        if name not in _BROKER:  # kept by another version of this program
            continue
        setting, value = _BROKER[name], parse_setting(_BROKER[name], text)
        synonym = Synonym(name, _shown(setting, value), ConfigSource.DYNAMIC_DEFAULT_BROKER)
        entries.append(_entry(setting, value, (synonym,), read_only=False))
    return entries


def topic_entries(config: TopicConfig, own: Mapping[str, str], sources: BrokerSources) -> list[ConfigEntry]:
    """All settings of a topic: `config` is what holds, `own` what was set for this topic."""
    entries = []
    for setting in settings_of(TopicConfig):
        value = getattr(config, setting.field)
        synonyms = _broker_synonyms(_BROKER[_BROKER_DEFAULTS[TOPIC_DEFAULTS[setting.field]]], sources)
        if setting.name in own:
            synonyms = (Synonym(setting.name, _shown(setting, value), ConfigSource.TOPIC), *synonyms)
        entries.append(_entry(setting, value, synonyms, read_only=False))
    others = [row for row in topic_settings() if _is_shown(row, own)]
    return entries + [_unused(row, own.get(row.name), ConfigSource.TOPIC, False) for row in others]


def _is_shown(row: KafkaSetting, own: Mapping[str, str]) -> bool:
    """Whether Kafka would show a setting that is left aside here: not what Kafka 4 took away, unless it was set."""
    return row.standing != HONOURED and (row.default is not None or row.name in own)


def _unused(row: KafkaSetting, own: str | None, source: ConfigSource, read_only: bool) -> ConfigEntry:
    """A setting that changes nothing here, with what it was set to; `source` is where that was."""
    sensitive = row.type == "password" or _SECRET.search(row.name) is not None
    found = [] if own is None else [Synonym(row.name, None if sensitive else own, source)]
    if row.default is not None:
        found.append(Synonym(row.name, None if sensitive else row.default, ConfigSource.DEFAULT))
    said = f"Not used here: {row.reason}."
    first, kind = found[0], ConfigType[row.type.upper()]
    return ConfigEntry(row.name, first.value, first.source, read_only, sensitive, tuple(found), kind, said)


def _broker_synonyms(setting: Setting, sources: BrokerSources) -> tuple[Synonym, ...]:
    places = (
        (sources.altered, ConfigSource.DYNAMIC_BROKER),
        (sources.altered_for_all, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (sources.given, ConfigSource.STATIC_BROKER),
    )
    found = [
        Synonym(setting.name, _shown(setting, parse_setting(setting, properties[setting.name])), source)
        for properties, source in places
        if setting.name in properties
    ]
    if setting.default is not None:
        found.append(Synonym(setting.name, _shown(setting, setting.default), ConfigSource.DEFAULT))
    return tuple(found)


def _shown(setting: Setting, value: Any) -> str | None:
    if _SECRET.search(setting.name):
        return None
    text = text_of(value)
    if text is None or setting.name not in LISTS:
        return text
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def _entry(setting: Setting, value: Any, synonyms: tuple[Synonym, ...], read_only: bool) -> ConfigEntry:
    return ConfigEntry(
        setting.name,
        _shown(setting, value),
        synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only,
        _SECRET.search(setting.name) is not None,
        synonyms,
        type_of(setting),
        setting.doc,
    )
